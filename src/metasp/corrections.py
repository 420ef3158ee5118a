"""What a person says of examples: leave it out, it is another class, I have verified it.

In a spec all three are numbers in ascending order, so that the same corrections are the same run;
in files they are rows `id,label`, where a label is the name of a class, or its number from 0."""

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from metasp.errors import UserError, unknown

Pairs = tuple[tuple[int, int], ...]

FORMULA = ("=", "+", "-", "@", "\t", "\r")
LAST = 2**63 - 1  # the largest id
NAMED = 5  # ids that a sentence names


@dataclass(frozen=True)
class Corrections:
    """Ids to leave out, and ids with the class that they are: said, or verified."""

    exclude: tuple[int, ...] = ()
    relabel: Pairs = ()
    verified: Pairs = ()

    def __post_init__(self) -> None:
        """Sort; refuse what contradicts itself."""
        object.__setattr__(self, "exclude", tuple(sorted(set(self.exclude))))
        seen: dict[int, str] = dict.fromkeys(self.exclude, "exclude")
        for name in ("relabel", "verified"):
            pairs = {tuple(pair) for pair in getattr(self, name)}
            if any(len(pair) != 2 or min(pair) < 0 or max(pair) > LAST for pair in pairs):
                raise UserError(f"{name} must be pairs of an id and a class, both from 0.")
            labels = dict(pairs)
            if len(labels) < len(pairs):
                counts = Counter(pair[0] for pair in pairs)
                twice = [i for i, count in counts.items() if count > 1]
                raise UserError(f"{name} gives two classes to {words(twice)}: keep one.")
            both = [i for i in labels if i in seen]
            if both:
                raise UserError(
                    f"{seen[both[0]]} and {name} both have {words(both)}: keep each in one of them."
                )
            seen |= dict.fromkeys(labels, name)
            object.__setattr__(self, name, tuple(sorted(pairs)))
        if self.exclude and not 0 <= self.exclude[0] <= self.exclude[-1] <= LAST:
            raise UserError(f"exclude must be ids, whole numbers from 0 to {LAST}.")

    @property
    def ids(self) -> list[int]:
        return [*self.exclude, *(i for i, _ in self.relabel), *(i for i, _ in self.verified)]

    def updated(self, newer: "Corrections") -> "Corrections":
        """These and newer ones; of an example that both name, the newer word counts."""
        named = set(newer.ids)
        return Corrections(
            (*(i for i in self.exclude if i not in named), *newer.exclude),
            (*(pair for pair in self.relabel if pair[0] not in named), *newer.relabel),
            (*(pair for pair in self.verified if pair[0] not in named), *newer.verified),
        )


def read_corrections(
    files: Mapping[str, Path], classes: Sequence[str], train_size: int
) -> Corrections:
    """Return what the files say, by the name of what they are for; there are `train_size`
    examples. A person's verdict in `verified` counts, whatever the other files say of the same
    example. A verified example without a label is wrong, and nobody knows what it is: it is left
    out. A suspect without a suggested class keeps its label."""
    read = dict[str, Corrections]()
    for kind, path in files.items():
        columns = {"exclude": (), "relabel": ("suggested", "label"), "verified": ("label",)}[kind]
        rows = read_rows(path, train_size, columns)
        if kind == "exclude":
            read[kind] = Corrections(exclude=tuple(rows))
            continue
        named = {cell: class_of(cell, classes, path) for cell in {*rows.values()} - {""}}
        pairs = tuple((identity, named[cell]) for identity, cell in rows.items() if cell)
        unnamed = tuple(identity for identity, cell in rows.items() if not cell)
        if kind == "verified":
            read[kind] = Corrections(exclude=unnamed, verified=pairs)
        elif pairs:
            read[kind] = Corrections(relabel=pairs)
        else:
            raise UserError(
                f"{path} names no class for any example, so that nothing would change: fill in "
                "its column suggested or label, or give the file to --exclude."
            )
    exclude, relabel = (read.get(kind, Corrections()) for kind in ("exclude", "relabel"))
    verified = read.get("verified", Corrections())
    decided = set(verified.ids)
    left = Corrections(
        tuple(identity for identity in exclude.exclude if identity not in decided),
        tuple(pair for pair in relabel.relabel if pair[0] not in decided),
    )
    return left.updated(verified)


def read_rows(path: Path, train_size: int, label_columns: Sequence[str] = ()) -> dict[int, str]:
    """Return the rows of a CSV file by id, with the cell of the first of `label_columns` that the
    file has, as it is written."""
    if not path.is_file() and path.exists():
        raise UserError(f"{path} is a folder or a pipe: give a CSV file.")
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            return _rows(csv.reader(file), path, train_size, label_columns)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise _not_utf8(path) from error
    except csv.Error as error:
        raise UserError(f"{path} is not a CSV file ({error}): save it as one.") from error


def _rows(
    lines: Iterable[list[str]], path: Path, train_size: int, label_columns: Sequence[str]
) -> dict[int, str]:
    reader = iter(lines)
    names = [name.strip().lower() for name in next(reader, [])]
    if any("\0" in name for name in names):  # UTF-16 without a mark at its start
        raise _not_utf8(path)
    label = next((name for name in label_columns if name in names), None)
    for name in ("id", label or label_columns[-1]) if label_columns else ("id",):
        if names.count(name) != 1:
            found = ", ".join(map(repr, names)) or "none"
            raise UserError(
                f"{path} needs a first line with one column {name!r}, separated by commas; its "
                f"columns are {found[:200]}."
            )
    id_at, label_at = names.index("id"), None if label is None else names.index(label)
    rows: dict[int, str] = {}
    for number, cells in enumerate(reader, start=2):
        if len(cells) != len(names):
            if not any(cell.strip() for cell in cells):
                continue
            raise UserError(
                f"line {number} of {path} has {len(cells)} cells and the first line has "
                f"{len(names)}: correct it."
            )
        if not any(cell.strip() for cell in cells):
            continue
        identity = _id_in(cells[id_at], number, path)
        cell = "" if label_at is None else from_cell(cells[label_at].strip())
        if identity in rows:
            how = "" if rows[identity] == cell else f", as {rows[identity]!r} and as {cell!r}"
            raise UserError(f"line {number} of {path} names id {identity} again{how}: keep one.")
        rows[identity] = cell
        if len(rows) > train_size:
            raise UserError(
                f"{path} has more rows than there are train examples ({train_size}): check that it "
                "belongs to this data."
            )
    return rows


def _not_utf8(path: Path) -> UserError:
    return UserError(
        f"{path} is not UTF-8 text (it may be UTF-16, or Windows or Latin-1 text): save it as CSV "
        "in UTF-8."
    )


def _id_in(cell: str, number: int, path: Path) -> int:
    text = cell.strip()
    if not (text.isascii() and text.isdecimal()) or len(text) > 19 or int(text) > LAST:
        raise UserError(
            f"line {number} of {path} has the id {text[:60]!r}: ids are whole numbers from 0."
        )
    return int(text)


def class_of(cell: str, classes: Sequence[str], path: Path) -> int:
    """The number of a class from its name; or from its number, where no class is named by one."""
    names = [name.strip() for name in classes]  # as cells are
    if cell in names:
        return names.index(cell)
    numbered = not any(name.isdecimal() for name in classes)
    if numbered and cell.isascii() and cell.isdecimal() and int(cell[:9]) < len(classes):
        return int(cell[:9])
    raise unknown(f"class in {path}", cell[:60], classes)


def words(ids: Sequence[int]) -> str:
    """Some ids in a sentence."""
    told = ", ".join(map(str, sorted(ids)[:NAMED]))
    more = f" and {len(ids) - NAMED} more" if len(ids) > NAMED else ""
    return f"{'id' if len(ids) == 1 else 'ids'} {told}{more}"


def as_cell(text: str) -> str:
    """A name as a cell of a CSV file: a spreadsheet takes a text that begins so for a formula."""
    return f"'{text}" if text.lstrip("'").startswith(FORMULA) else text


def from_cell(cell: str) -> str:
    """The name that `as_cell` wrote."""
    return cell[1:] if cell.startswith("'") and as_cell(cell) != cell else cell
