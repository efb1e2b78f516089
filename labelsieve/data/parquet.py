"""parquet: Parquet files, with images or their paths or numbers, and a label in each row.

Rows are counted from 0. The bytes of images stay in the file until they are asked for."""

import importlib
import json
import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from labelsieve.data.classes import shown
from labelsieve.data.columns import SPLITS, Roles, Rows, Table, feature_tensor, roles_of, rows_of
from labelsieve.data.images import Files, Reader, written
from labelsieve.data.table import path_faults
from labelsieve.errors import InputError

Arrow = Any  # pyarrow may be missing, so that its types cannot be named


def read_parquet(path: Path, *, label: str | None = None, image: str | None = None, split: str | None = None) -> Rows:
    """The sets of a .parquet file, or of a folder of such files with the same columns.

    Files of a folder that are all named train..., test... or validation... make the splits.
    """
    parquet = pyarrow("parquet")
    files = shards(path, "*.parquet")
    with reading(path):
        opened = [_opened(parquet, file) for file in files]
        schemas = [file.schema_arrow for file in opened]
    refuse_other_columns(files, schemas)
    roles = arrow_roles(schemas[0], str(path), label, image, split)
    pieces = [(k, group) for k, file in enumerate(opened) for group in range(file.num_row_groups)]
    sizes = [opened[k].metadata.row_group(group).num_rows for k, group in pieces]
    embedded = roles.image is not None and holds_bytes(schemas[0].field(roles.image).type)
    reader = None
    if roles.image is not None and embedded:
        reader = Cells(RowGroups(tuple(files), roles.image, tuple(pieces)), starts_of(sizes), path_folder(path))
    parts = []
    for file, content, part in zip(files, opened, splits_of(files), strict=True):
        with reading(file):
            parts.append(Part(file, part, content.read(columns=cheap_columns(roles, embedded))))
    return rows_of(arrow_table(path, parts, roles, reader, class_names(schemas[0], roles.label)))


class Part(NamedTuple):
    """One file of a table."""

    file: Path
    split: str | None
    rows: Arrow  # a table without the bytes of images


@dataclass(frozen=True)
class Cells:
    """A reader of encoded images in the cells of a column, piece by piece; it keeps the last two pieces."""

    load: Callable[[int], Arrow]  # the cells of a piece
    starts: tuple[int, ...]  # the first row of each piece
    folder: Path
    kept: dict[int, Arrow] = field(default_factory=dict, compare=False, repr=False)
    lock: Lock = field(default_factory=Lock, compare=False, repr=False)

    def __call__(self, index: int) -> bytes:
        piece = bisect_right(self.starts, index) - 1
        try:
            cell = self._piece(piece)[index - self.starts[piece]].as_py()
        except (pyarrow().ArrowException, ValueError, NotImplementedError) as error:
            raise OSError(first_line(error)) from error
        return cell_bytes(cell, self.folder)

    def stamp(self, index: int) -> str:
        """What changes when the file of this row is written again."""
        return str(self.load.stamp(bisect_right(self.starts, index) - 1))  # type: ignore[attr-defined]

    def complete(self) -> bool:
        """Return whether every cell is known to hold an image, not the path of one."""
        return bool(self.load.complete())  # type: ignore[attr-defined]

    def _piece(self, piece: int) -> Arrow:
        with self.lock:
            if piece not in self.kept:
                for oldest in list(self.kept)[:-1]:
                    del self.kept[oldest]
                self.kept[piece] = self.load(piece)
            return self.kept[piece]

    def __reduce__(self) -> tuple[Any, ...]:
        return Cells, (self.load, self.starts, self.folder)


@dataclass(frozen=True)
class RowGroups:
    """Loads a column of a row group; it keeps the last file open."""

    files: tuple[Path, ...]
    column: str
    groups: tuple[tuple[int, int], ...]  # file and row group of each piece
    kept: dict[int, Arrow] = field(default_factory=dict, compare=False, repr=False)

    def __call__(self, piece: int) -> Arrow:
        file, group = self.groups[piece]
        if file not in self.kept:
            self.kept.clear()
            self.kept[file] = pyarrow("parquet").ParquetFile(self.files[file])
        return self.kept[file].read_row_group(group, columns=[self.column], use_threads=False).column(self.column)

    def stamp(self, piece: int) -> str:
        return written(self.files[self.groups[piece][0]])

    def complete(self) -> bool:
        """Return whether the statistics of the files show that no bytes are missing."""
        for file in self.files:
            found = pyarrow("parquet").ParquetFile(file).metadata
            for group in range(found.num_row_groups):
                for chunk in map(found.row_group(group).column, range(found.num_columns)):
                    if chunk.path_in_schema in (self.column, f"{self.column}.bytes"):
                        known = chunk.statistics
                        if known is None or not known.has_null_count or known.null_count:
                            return False
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        return RowGroups, (self.files, self.column, self.groups)


def cell_bytes(cell: Any, folder: Path) -> bytes:
    """The image of a cell: bytes, or {bytes, path} where the path counts if there are no bytes."""
    content = cell.get("bytes") if isinstance(cell, dict) else cell
    if isinstance(content, bytes):
        return content
    path = os.path.normpath(str(cell.get("path") or "")) if isinstance(cell, dict) else ""
    if path in ("", ".") or path.startswith(".."):
        raise OSError("the cell holds no image")
    whole = (folder / path).resolve()
    if not whole.is_file() or not whole.is_relative_to(folder.resolve()):
        raise OSError("the cell names no file beside the table")
    return whole.read_bytes()


def pyarrow(part: str = "") -> Any:
    try:
        return importlib.import_module(f"pyarrow.{part}" if part else "pyarrow")
    except ImportError:
        raise InputError("reading Parquet needs pyarrow: pip install 'labelsieve[parquet]'") from None


@contextmanager
def reading(path: Path) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except (pyarrow().ArrowException, OSError, ValueError, KeyError, MemoryError, NotImplementedError) as error:
        raise InputError(f"cannot read {path}: {first_line(error)}; write the file again") from error


def first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__


def _opened(parquet: Any, file: Path) -> Arrow:
    with reading(file):
        return parquet.ParquetFile(file)


def shards(path: Path, pattern: str) -> list[Path]:
    """The file itself, or the files of a folder in the order of their names."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputError(f"cannot read {path}: there is no such file or folder")
    files = sorted(file for file in path.glob(pattern) if file.is_file())
    if not files:
        raise InputError(f"{path} holds no {pattern} files itself; give the folder that does, or one file")
    return files


def path_folder(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def splits_of(files: Sequence[Path]) -> list[str | None]:
    """train, test or valid by the first word of each name, if there are several files and all have such a word."""
    words = [SPLITS.get(re.split(r"[-_.]", file.stem.lower())[0]) for file in files]
    return list(words) if len(files) > 1 and "train" in words and None not in words else [None] * len(files)


def refuse_other_columns(files: Sequence[Path], schemas: Sequence[Arrow]) -> None:
    for file, schema in zip(files, schemas, strict=True):
        if not schema.equals(schemas[0], check_metadata=False):
            raise InputError(
                f"{file} has other columns than {files[0]}: {_difference(schema, schemas[0])}; write all files alike"
            )


def _difference(one: Arrow, other: Arrow) -> str:
    mine, theirs = ([f"{column.name} {column.type}" for column in schema] for schema in (one, other))
    return next(
        (f"{a} instead of {b}" for a, b in zip(mine, theirs, strict=False) if a != b),
        f"{len(mine)} instead of {len(theirs)}",
    )


def arrow_roles(schema: Arrow, source: str, label: str | None, image: str | None, split: str | None) -> Roles:
    """Which column is what; columns that cannot be used as that are refused."""
    if image is None:
        image = next(
            (
                name
                for name in schema.names
                if schema.names.count(name) == 1 and name != label and holds_bytes(schema.field(name).type)
            ),
            None,
        )
    roles = roles_of(schema.names, source, label, image, split)
    types = pyarrow("types")
    for name in (roles.label, roles.clean):
        if name is not None and not _is_label(schema.field(name).type):
            raise InputError(
                f"{source}: column {shown(name)} holds {schema.field(name).type}, which is no label; "
                "labels are whole numbers or words"
            )
    if roles.image is not None:
        kind = schema.field(roles.image).type
        if not (holds_bytes(kind) or types.is_string(kind) or types.is_large_string(kind)):
            raise InputError(
                f"{source}: column {shown(roles.image)} holds {kind}; give encoded bytes, {{bytes, path}}, or paths"
            )
    for name in roles.numbers:
        if not _is_numeric(schema.field(name).type):
            raise InputError(
                f"{source}: column {shown(name)} holds {schema.field(name).type}, which is no number; "
                "leave it out, or give one column for each number"
            )
    return roles


def holds_bytes(kind: Arrow) -> bool:
    """Whether a column's cells are encoded images."""
    types = pyarrow("types")
    if types.is_struct(kind):
        return any(kind.field(k).name == "bytes" and holds_bytes(kind.field(k).type) for k in range(kind.num_fields))
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


def _is_label(kind: Arrow) -> bool:
    types = pyarrow("types")
    if types.is_dictionary(kind):
        return _is_label(kind.value_type)
    return bool(types.is_string(kind) or types.is_large_string(kind) or _is_numeric(kind))


def _is_numeric(kind: Arrow) -> bool:
    types = pyarrow("types")
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind))


def cheap_columns(roles: Roles, embedded: bool) -> list[str]:
    """What is read at once: all but the bytes of images."""
    named = (roles.label, roles.split, roles.clean, None if embedded else roles.image, *roles.numbers)
    return list(dict.fromkeys(name for name in named if name is not None))


def class_names(schema: Arrow, label: str) -> tuple[str, ...] | None:
    """The names of the classes where the schema gives them, as Hugging Face's ClassLabel does."""
    try:
        return names_in(json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"][label])
    except (KeyError, ValueError, TypeError):
        return None


def names_in(feature: Any) -> tuple[str, ...] | None:
    names = feature.get("names") if isinstance(feature, dict) else None
    if not isinstance(names, list) or len(set(map(str, names))) < max(2, len(names)):
        return None
    return tuple(map(str, names))


def starts_of(sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(accumulate(sizes[:-1], initial=0))


def arrow_table(
    path: Path, parts: Sequence[Part], roles: Roles, reader: Reader | None, classes: tuple[str, ...] | None
) -> Table:
    """Files with the same columns as one table."""
    rows = [f"{part.file.name}:{row}" for part in parts for row in range(part.rows.num_rows)]
    if not rows:
        raise InputError(f"{path} has no rows; at least one per class is needed")
    labels = _values(parts, roles.label)
    clean = None if roles.clean is None else _values(parts, roles.clean)
    whole_numbers = all(label is None or type(label) is int for label in (*labels, *(clean or ())))
    faults: dict[int, str] = {}
    names: Sequence[str] = rows
    if roles.image is None:
        inputs: Any = feature_tensor(_numbers(parts, roles), roles.numbers, faults)
    elif reader is not None:
        inputs = reader
    else:
        names = [(name or "").strip() for name in _values(parts, roles.image)]
        inputs, faults = Files(path_folder(path), names), path_faults(path_folder(path), names, labels, rows)
    return Table(
        str(path),
        rows,
        names,
        inputs,
        roles.numbers,
        labels,
        faults,
        splits=_splits(parts, roles),
        clean=clean,
        classes=classes if whole_numbers else None,
    )


def _splits(parts: Sequence[Part], roles: Roles) -> list[Any] | None:
    if roles.split is not None:
        return _values(parts, roles.split)
    if parts[0].split is None:
        return None
    return [part.split for part in parts for _ in range(part.rows.num_rows)]


def _values(parts: Sequence[Part], column: str) -> list[Any]:
    values: list[Any] = []
    for part in parts:
        with reading(part.file):
            cells = part.rows.column(column)
            if pyarrow("types").is_decimal(cells.type):
                cells = cells.cast("float64")
            values += cells.to_pylist()
    return values


def _numbers(parts: Sequence[Part], roles: Roles) -> np.ndarray[Any, Any]:
    """(n, F) float32, with NaN where a cell is empty."""
    table = np.empty((sum(part.rows.num_rows for part in parts), len(roles.numbers)), dtype=np.float32)
    start = 0
    for part in parts:
        stop = start + part.rows.num_rows
        with reading(part.file), np.errstate(over="ignore"):
            for place, name in enumerate(roles.numbers):
                cells = part.rows.column(name).cast("float64", safe=False)
                table[start:stop, place] = cells.to_numpy()
        start = stop
    return table


NEEDED = "a folder that save_to_disk wrote is needed"


def is_saved_dataset(path: Path) -> bool:
    return (path / "state.json").is_file() or (path / "dataset_dict.json").is_file()


def read_saved_dataset(
    path: Path, *, label: str | None = None, image: str | None = None, split: str | None = None
) -> Rows:
    """The sets of a saved dataset; the folders of a dataset dict are its splits."""
    pyarrow("ipc")
    folders = _folders(path)
    files = [(file, part) for part, folder in folders for file in _data_files(folder)]
    paths = [file for file, _ in files]
    tables = []
    for file in paths:
        with reading(file):
            tables.append(_stream(file))
    refuse_other_columns(paths, [table.schema for table in tables])
    schema = tables[0].schema
    roles = arrow_roles(schema, str(path), label, image, split)
    embedded = roles.image is not None and holds_bytes(schema.field(roles.image).type)
    reader = None
    if roles.image is not None and embedded:
        starts = starts_of([table.num_rows for table in tables])
        reader = Cells(Streams(tuple(paths), roles.image), starts, path)
    cheap = cheap_columns(roles, embedded)
    parts = [Part(file, part, table.select(cheap)) for (file, part), table in zip(files, tables, strict=True)]
    classes = class_names(schema, roles.label) or _names_beside(folders[0][1], roles.label)
    return rows_of(arrow_table(path, parts, roles, reader, classes))


@dataclass(frozen=True)
class Streams:
    """Loads a column of a file; the file is mapped into memory, not read."""

    files: tuple[Path, ...]
    column: str

    def __call__(self, piece: int) -> Arrow:
        return _stream(self.files[piece]).column(self.column)

    def stamp(self, piece: int) -> str:
        return written(self.files[piece])


def _stream(file: Path) -> Arrow:
    return pyarrow("ipc").open_stream(pyarrow().memory_map(str(file))).read_all()


def _folders(path: Path) -> Sequence[tuple[str | None, Path]]:
    """The split and folder of each dataset."""
    if not (path / "dataset_dict.json").is_file():
        return [(None, path)]
    names = _json(path / "dataset_dict.json").get("splits")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise InputError(f"{path / 'dataset_dict.json'} names no splits; {NEEDED}")
    for name in names:
        if Path(name).name != name or not (path / name).is_dir():
            raise InputError(f"{path} has no folder {name!r}, which its dataset_dict.json names; save it again")
    known = [(SPLITS[name.lower()], path / name) for name in names if name.lower() in SPLITS]
    if not any(part == "train" for part, _ in known):
        raise InputError(f"{path} has no split train (it has: {', '.join(names)}); give the folder of one split")
    return known


def _data_files(folder: Path) -> list[Path]:
    state = _json(folder / "state.json")
    if state.get("_indices_data_files"):
        raise InputError(f"{folder} keeps its rows in another order; call flatten_indices() and save it again")
    listed = state.get("_data_files")
    if not isinstance(listed, list) or not listed:
        raise InputError(f"{folder / 'state.json'} names no data files; {NEEDED}")
    return [_data_file(folder, entry.get("filename") if isinstance(entry, dict) else entry) for entry in listed]


def _data_file(folder: Path, name: Any) -> Path:
    if not isinstance(name, str) or Path(name).name != name or not (folder / name).is_file():
        raise InputError(f"{folder} has no file {name!r}, which its state.json names; save it again")
    return folder / name


def _names_beside(folder: Path, label: str) -> tuple[str, ...] | None:
    if not (folder / "dataset_info.json").is_file():
        return None
    features = _json(folder / "dataset_info.json").get("features")
    return names_in(features.get(label)) if isinstance(features, dict) else None


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}; {NEEDED}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file} is no JSON ({error}); save the dataset again") from error
    if not isinstance(content, dict):
        raise InputError(f"{file} is no JSON object; {NEEDED}")
    return content
