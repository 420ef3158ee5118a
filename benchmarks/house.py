"""Measure the source itself: size, names, docstrings and imports, by its syntax trees alone.

    python -m benchmarks.house            # the package beside this folder
    python benchmarks/house.py DIR        # another tree

Lines of code are counted without blanks, comments and docstrings. "Per 1000" is per 1000 lines of a
file as it stands. Modules that a registry names as text ("package.module:name") and commands count
as imported by more than one."""

import argparse
import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src"
VAGUE = {
    "amiss", "apart", "both", "each", "entry", "fine", "found", "given", "heard", "held", "here",
    "kept", "known", "meanwhile", "mine", "other", "others", "own", "parts", "place", "said",
    "some", "sure", "there", "thing", "things", "told", "usual", "who", "whole", "words", "yours",
}  # fmt: skip
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LONGEST_FUNCTION, LONGEST_FILE = 60, 400
PLACE = re.compile(r"^([\w.]+):\w+$")


@dataclass(frozen=True)
class Source:
    """One parsed module."""

    name: str  # dotted
    path: Path
    lines: list[str]
    tree: ast.Module


def parse(root: Path) -> list[Source]:
    """Parse every module below `root`, in the order of their paths."""
    sources = []
    for path in sorted(root.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        steps = path.relative_to(root).with_suffix("").parts
        name = ".".join(steps[:-1] if steps[-1] == "__init__" else steps)
        sources.append(Source(name, path, text.splitlines(), ast.parse(text)))
    return sources


def docstrings(source: Source) -> Iterator[ast.Constant]:
    """Yield the constant of every docstring of a module."""
    for node in ast.walk(source.tree):
        if not isinstance(node, DOCUMENTED) or not node.body:
            continue
        first = node.body[0]
        if not isinstance(first, ast.Expr) or not isinstance(first.value, ast.Constant):
            continue
        if isinstance(first.value.value, str):
            yield first.value


def docstring_lines(source: Source) -> set[int]:
    lines: set[int] = set()
    for constant in docstrings(source):
        lines.update(range(constant.lineno, (constant.end_lineno or constant.lineno) + 1))
    return lines


def code_lines(source: Source) -> int:
    """Count the lines that are not blank, comments or docstrings."""
    documented = docstring_lines(source)
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in documented
        for number, line in enumerate(source.lines, 1)
    )


def bindings(source: Source) -> Iterator[str]:
    """Yield the name of every parameter and assigned variable."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg) and node.arg not in ("self", "cls"):
            yield node.arg


def imports(source: Source, names: set[str]) -> Iterator[str]:
    """Yield the modules of the package that a module imports, also by registry text."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            submodules = [f"{node.module}.{alias.name}" for alias in node.names]
            modules = [name for name in submodules if name in names]
            yield from modules or [node.module]


def named_as_text(source: Source) -> Iterator[str]:
    """Yield the modules that a module names as text, "package.module:name" or "module:name"."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            place = PLACE.match(node.value)
            if place is not None:
                yield place[1]


def imported_once(sources: list[Source]) -> list[str]:
    """Return the modules that exactly one other imports and that are no entry of a registry."""
    names = {source.name for source in sources}
    importers: dict[str, set[str]] = defaultdict(set)
    registered: set[str] = set()
    for source in sources:
        for module in imports(source, names):
            importers[module].add(source.name)
        for place in named_as_text(source):
            registered.update(n for n in names if n == place or n.endswith(f".{place}"))
    return sorted(
        name
        for name in names
        if len(importers[name] - {name}) == 1
        and name not in registered
        and ".cli." not in name
        and not name.endswith("__main__")
    )


def privates(sources: list[Source]) -> set[str]:
    """Return the names of the private attributes and methods that classes of the package define."""
    names: set[str] = set()
    for source in sources:
        for node in ast.walk(source.tree):
            if not isinstance(node, ast.ClassDef):
                continue
            for inner in ast.walk(node):
                if isinstance(inner, FUNCTIONS):
                    names.add(inner.name)
                elif isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
                    names.add(inner.target.id)
                elif isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
                    names.add(inner.attr)
    return {name for name in names if re.match(r"_[a-z]", name)}


def reaches_into_privates(source: Source, private: set[str]) -> list[str]:
    """Return the functions outside a class that touch what the class keeps to itself."""
    culprits = []
    inside: set[int] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ClassDef):
            inside.update(map(id, ast.walk(node)))
    for node in ast.walk(source.tree):
        if not isinstance(node, FUNCTIONS) or id(node) in inside:
            continue
        touched = {
            inner.attr
            for inner in ast.walk(node)
            if isinstance(inner, ast.Attribute) and inner.attr in private
        }
        if touched:
            culprits.append(
                f"{source.path}:{node.lineno} {node.name}: {', '.join(sorted(touched))}"
            )
    return culprits


def measure(root: Path) -> dict[str, object]:
    """Measure the tree below `root`. Returns figures by name, lists where something is over."""
    sources = parse(root)
    total = sum(len(source.lines) for source in sources)
    comprehensions = nested = 0
    openings: Counter[str] = Counter()
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, COMPREHENSIONS):
                comprehensions += 1
                nested += len(node.generators) > 1
        for constant in docstrings(source):
            text = str(constant.value).lstrip()
            openings["The same" if text.startswith("The same") else text.split(maxsplit=1)[0]] += 1
    documented = sum(openings.values())
    vague_openings = sum(openings[word] for word in ("What", "How", "Whether", "The same"))
    all_bindings = Counter(name for source in sources for name in bindings(source))
    vague = {word: all_bindings[word] for word in VAGUE if all_bindings[word]}
    files = Counter(s.path.name for s in sources if not s.path.name.startswith("__"))
    long_functions = []
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, FUNCTIONS):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > LONGEST_FUNCTION:
                    long_functions.append(f"{source.path}:{node.lineno} {node.name} ({length})")
    private = privates(sources)
    culprits: list[str] = []
    for source in sources:
        culprits += reaches_into_privates(source, private)
    return {
        "lines of code": sum(code_lines(source) for source in sources),
        "modules": len(sources),
        "comprehensions per 1000 lines": round(1000 * comprehensions / total, 1),
        "comprehensions with two loops": nested,
        "docstring lines per 1000": round(
            1000 * sum(len(docstring_lines(source)) for source in sources) / total
        ),
        "docstrings that open with What, How, Whether, The same, %": round(
            100 * vague_openings / max(1, documented), 1
        ),
        "bindings to vague words, %": round(
            100 * sum(vague.values()) / max(1, all_bindings.total()), 1
        ),
        "the commonest of them": dict(Counter(vague).most_common(8)),
        "functions over 60 lines": long_functions,
        "files over 400 lines": [str(s.path) for s in sources if len(s.lines) > LONGEST_FILE],
        "modules imported by exactly one other": imported_once(sources),
        "file names that occur twice": sorted(name for name, n in files.items() if n > 1),
        "functions outside a class that touch its privates": culprits,
    }


def report(root: Path = SOURCE) -> str:
    """Return the measurements as text, one a line, lists with their length first."""
    rows = []
    for name, value in measure(root).items():
        if isinstance(value, list):
            rows.append(f"{name}: {len(value)}")
            rows += [f"    {item}" for item in value]
        else:
            rows.append(f"{name}: {value}")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("root", nargs="?", type=Path, default=SOURCE)
    print(report(parser.parse_args().root))


if __name__ == "__main__":
    main()
