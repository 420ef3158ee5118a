"""Encoded pictures read where they are: files of a folder, or row groups of Parquet files."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from metasp.benchmarks.cache import Decoded, Table
from metasp.benchmarks.parquet import (
    BATCH,
    Chosen,
    Gathered,
    features_of,
    one_line,
    open_local,
    raw_bytes,
    row_words,
    splits_in_order,
)
from metasp.benchmarks.pictures import Decoder, as_png
from metasp.benchmarks.places import digest_of
from metasp.benchmarks.request import Request
from metasp.encoded import Array, EncodedRows
from metasp.errors import CorruptPicture, UserError, or_user_error

LARGE = 2_000_000_000  # bytes of decoded pictures above which they stay encoded


class InPlace(EncodedRows):
    """Pictures that are as the first readable one decides, unless a size and colour are asked
    for."""

    def __init__(self, size: int, request: Request) -> None:
        self._decoder = Decoder(request.image_size, request.colour)
        super().__init__(size, self._first(size, bool(request.skip_corrupt)).shape)

    @abstractmethod
    def name(self, row: int) -> str:
        """Where a picture is, as people say it."""

    def decode(self, content: bytes, row: int) -> Array:
        return self._decoder(content, lambda: self.name(row))

    def encode(self, picture: Array) -> bytes:
        return as_png(picture)

    def found(self, table: Table, identity: Mapping[str, Any]) -> Decoded:
        """All that there is to know of these pictures."""
        digest = digest_of({"encoded": dict(identity), **table.content})
        return table.of(self, digest[:16])

    def is_wanted(self, request: Request) -> bool:
        """Whether they are to stay encoded."""
        return request.decode == "lazy" or (request.decode is None and self.shape.numel() > LARGE)

    def _first(self, size: int, skip: bool) -> Array:
        for row in range(size):
            try:
                return self.decode(self.read([row])[0], row)
            except CorruptPicture as error:
                if not skip:
                    raise
                last = error
        if not size:
            raise UserError("there is not a single example in this data.")
        raise last


class Files(InPlace):
    """One picture in each file."""

    def __init__(self, files: Sequence[Path], request: Request) -> None:
        self._files = [str(path) for path in files]
        super().__init__(len(files), request)

    def read(self, rows: Sequence[int]) -> list[bytes]:
        return [read_file(Path(self._files[row])) for row in rows]

    def name(self, row: int) -> str:
        return self._files[row]


class Tables(InPlace):
    """Pictures in a column of Parquet files. A picture costs the reading of its row group."""

    def __init__(
        self, files: Sequence[tuple[str, Path]], columns: Chosen, request: Request
    ) -> None:
        import pyarrow.parquet as pq

        self._files, self._column = [path for _, path in files], columns.image
        self._about = [pq.read_metadata(path) for path in self._files]
        sizes: list[int] = []
        self._groups: list[tuple[int, int]] = []  # file and number in it
        self._splits: list[tuple[int, str]] = []  # first row of each split
        for number, ((split, _), about) in enumerate(zip(files, self._about)):
            if not self._splits or self._splits[-1][1] != split:
                self._splits.append((sum(sizes), split))
            for group in range(about.num_row_groups):
                sizes.append(about.row_group(group).num_rows)
                self._groups.append((number, group))
        self._starts = np.cumsum([0, *sizes])
        super().__init__(int(self._starts[-1]), request)

    def read(self, rows: Sequence[int]) -> list[bytes]:
        groups = np.searchsorted(self._starts, rows, side="right") - 1
        found: dict[int, bytes] = {}
        for group in dict.fromkeys(groups.tolist()):
            inside = [row for row, own in zip(rows, groups.tolist()) if own == group]
            values = self._values(*self._groups[group])
            for row in inside:
                content = values[row - int(self._starts[group])].as_py()
                found[row] = raw_bytes(content, *self._place(row))
        return [found[row] for row in rows]

    def name(self, row: int) -> str:
        return str(row_words(*self._place(row))())

    def _place(self, row: int) -> tuple[str, int]:
        start, split = next(pair for pair in reversed(self._splits) if pair[0] <= row)
        return split, row - start

    def _values(self, file: int, group: int) -> Any:
        """The column of one row group. Nothing is kept open: there may be thousands of files."""
        import pyarrow.parquet as pq

        path = self._files[file]
        try:
            with pq.ParquetFile(path, metadata=self._about[file]) as table:
                part = table.read_row_group(group, columns=[self._column], use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{path} is damaged ({one_line(error)}): get it again.") from error
        return part.column(self._column)


def open_tables(
    splits: Mapping[str, Sequence[Path]], request: Request
) -> tuple[Tables | None, Table]:
    """The pictures of Parquet files, if they are to stay encoded, and what else their rows say."""
    import pyarrow.parquet as pq

    streams, _ = open_local(splits)
    columns = Chosen.of(features_of(streams), request)
    files = [(split, path) for split in splits_in_order(splits) for path in splits[split]]
    files = [(split, path) for split, path in files if pq.read_metadata(path).num_rows]
    pictures = Tables(files, columns, request)
    if not pictures.is_wanted(request):
        return None, Table((), {}, ())
    found = Gathered(columns)
    for split in splits_in_order(streams):
        table = pa.concat_tables(
            [_beside(path, columns) for own, path in files if own == split],
            promote_options="permissive",
        )
        for batch in table.to_batches(BATCH):
            given = batch.to_pydict()
            lacking = [None] * batch.num_rows  # test data may have fewer columns
            found.add(split, {name: given.get(name, lacking) for name in columns.beside})
    return pictures, found.table()


def _beside(path: Path, columns: Chosen) -> Any:
    """What a file says of its rows besides their pictures."""
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as table:
            return table.read(columns=columns.beside)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path} is damaged ({one_line(error)}): get it again.") from error


def read_file(path: Path) -> bytes:
    with or_user_error(f"{path} cannot be read"):
        return path.read_bytes()
