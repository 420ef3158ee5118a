"""Code of the user's own, from files (`--import FILE`) and from installed packages.

Such code adds to METHODS, SELECTIONS, METRICS, BENCHMARKS or REPORTS when it is imported. Nothing
is ever imported because a run directory names it: a run stores the path and the digest of each
file, and whoever resumes the run names the file again."""

import hashlib
import importlib
import importlib.util
import json
import sys
import traceback
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path

from metasp.errors import UserError, or_user_error
from metasp.store.manifest import stored_content

GROUP = "metasp.methods"
STORED = "plugins.json"  # in a run directory
IMPORTED: dict[str, str] = {}
"""The SHA-256 of each file that was imported into this process, by its absolute path."""


def import_packages() -> None:
    """Import the modules that installed packages name in the entry-point group `metasp.methods`.

    Entries that name a class are methods, which METHODS loads when they are used."""
    for point in entry_points(group=GROUP):
        if not point.attr:
            importlib.import_module(point.module)


def import_files(files: Iterable[str | Path]) -> None:
    """Run Python files, each once in this process."""
    for file in files:
        path = Path(file).absolute()
        if str(path) in IMPORTED:
            continue
        with or_user_error(f"cannot import {file}"):
            content = path.read_bytes()
        name = f"metasp_plugin_{path.stem}"
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise UserError(f"{file} is not a Python file: --import takes one that ends in .py.")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except UserError:
            raise
        except Exception as error:
            line = traceback.extract_tb(error.__traceback__)[-1].lineno
            reason = " ".join(str(error).split())
            raise UserError(
                f"{file} cannot be imported: {type(error).__name__} in line {line}: {reason}."
            ) from error
        IMPORTED[str(path)] = hashlib.sha256(content).hexdigest()


def changed_since(run: Path) -> list[str]:
    """Return the files of a stored run that have changed since; raise where one is not imported."""
    content = stored_content(run, STORED)
    stored: dict[str, str] = {} if content is None else json.loads(content)
    names = {Path(imported).name for imported in IMPORTED}
    missing = [file for file in stored if Path(file).name not in names]
    if missing:
        flags = " ".join(f"--import {file}" for file in missing)
        raise UserError(f"{run} was made with code of your own: add {flags}.")
    digests = set(IMPORTED.values())
    return [file for file, digest in stored.items() if digest not in digests]
