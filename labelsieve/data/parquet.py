"""Read Parquet files, and datasets that Hugging Face's `save_to_disk` wrote.

Each row has a label, and an image, an image path, a text, numbers or a list of numbers. Rows are counted from 0. The
bytes of images stay in the file until they are needed.
"""

import importlib
import json
import os
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from labelsieve.data.classes import Array, join_names, quote
from labelsieve.data.columns import (
    CLEAN_NAMES,
    INDEX_NAMES,
    LABEL_NAMES,
    SPLITS,
    ColumnRoles,
    RawTable,
    assign_columns,
    feature_tensor,
    list_table,
    text_faults,
)
from labelsieve.data.images import FileReader, Reader, file_stamp
from labelsieve.data.sets import Listing
from labelsieve.data.table import path_faults
from labelsieve.errors import InputError, first_line

Arrow = Any  # an object of pyarrow, which may not be installed
PARQUET_SUFFIXES = (".parquet", ".pq")
SAVE_AGAIN = "save the dataset again with save_to_disk"


class _TableFile(NamedTuple):
    """One file of a table."""

    path: Path
    split: str | None
    rows: Arrow  # a table without the bytes of images


@dataclass(frozen=True)
class CellReader:
    """Read encoded images from the cells of a column, piece by piece; the last two pieces are kept."""

    load: "_ParquetPieces | _ArrowPieces"  # returns the cells of one piece
    starts: tuple[int, ...]  # first row of each piece
    folder: Path
    kept: dict[int, Arrow] = field(default_factory=dict, compare=False, repr=False)
    lock: Lock = field(default_factory=Lock, compare=False, repr=False)

    def __call__(self, index: int) -> bytes:
        piece = bisect_right(self.starts, index) - 1
        try:
            cell = self._piece(piece)[index - self.starts[piece]].as_py()
        except (_pyarrow().ArrowException, ValueError, NotImplementedError) as error:
            raise OSError(first_line(error)) from error
        return cell_bytes(cell, self.folder)

    def stamp(self, index: int) -> str:
        """Return a text that changes when the file of a row is rewritten."""
        return self.load.stamp(bisect_right(self.starts, index) - 1)

    def _piece(self, piece: int) -> Arrow:
        with self.lock:
            if piece not in self.kept:
                for oldest in list(self.kept)[:-1]:
                    del self.kept[oldest]
                self.kept[piece] = self.load(piece)
            return self.kept[piece]

    def __reduce__(self) -> tuple[Any, ...]:
        return CellReader, (self.load, self.starts, self.folder)


@dataclass(frozen=True)
class _ParquetPieces:
    """Load a column of a Parquet row group; the last file is kept open."""

    files: tuple[Path, ...]
    column: str
    groups: tuple[tuple[int, int], ...]  # file and row group of each piece
    kept: dict[int, Arrow] = field(default_factory=dict, compare=False, repr=False)

    def __call__(self, piece: int) -> Arrow:
        file, group = self.groups[piece]
        if file not in self.kept:
            self.kept.clear()
            self.kept[file] = _pyarrow("parquet").ParquetFile(self.files[file])
        return self.kept[file].read_row_group(group, columns=[self.column], use_threads=False).column(self.column)

    def stamp(self, piece: int) -> str:
        """Return a text that changes when the file of a piece is rewritten."""
        return file_stamp(self.files[self.groups[piece][0]])

    def complete(self) -> bool:
        """Return whether the statistics in the files show that no bytes are null."""
        return all(
            (known := chunk.statistics) is not None and known.has_null_count and not known.null_count
            for file in self.files
            for chunk in _column_chunks(_pyarrow("parquet").ParquetFile(file).metadata)
            if chunk.path_in_schema in (self.column, f"{self.column}.bytes")
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _ParquetPieces, (self.files, self.column, self.groups)


@dataclass(frozen=True)
class _ArrowPieces:
    """Load a column of an Arrow stream file, which is memory-mapped."""

    files: tuple[Path, ...]
    column: str

    def __call__(self, piece: int) -> Arrow:
        return _open_stream(self.files[piece]).column(self.column)

    def stamp(self, piece: int) -> str:
        """Return a text that changes when the file of a piece is rewritten."""
        return file_stamp(self.files[piece])

    def complete(self) -> bool:
        """Return True: the files that cells name are inside the dataset folder."""
        return True


class _Opened(NamedTuple):
    """The files of a table; all have the same columns."""

    files: list[Path]
    splits: list[str | None]
    contents: list[Arrow]  # Parquet files, or the tables of Arrow streams
    schema: Arrow
    saved: bool  # by `save_to_disk`

    def read(self, columns: Sequence[str]) -> list[_TableFile]:
        """Read some columns of every file."""
        parts = []
        for file, split, content in zip(self.files, self.splits, self.contents, strict=True):
            with _arrow_errors(file):
                rows = content.select(columns) if self.saved else content.read(columns=columns)
                parts.append(_TableFile(file, split, rows))
        return parts

    def cells(self, column: str, folder: Path) -> CellReader:
        """Return a reader of the encoded images in a column."""
        if self.saved:
            starts = _starts([table.num_rows for table in self.contents])
            return CellReader(_ArrowPieces(tuple(self.files), column), starts, folder)
        groups = [(k, group) for k, file in enumerate(self.contents) for group in range(file.num_row_groups)]
        sizes = [self.contents[k].metadata.row_group(group).num_rows for k, group in groups]
        return CellReader(_ParquetPieces(tuple(self.files), column, tuple(groups)), _starts(sizes), folder)


def is_parquet(path: Path) -> bool:
    """Return whether a path is a Parquet file, a folder with Parquet files, or a saved dataset."""
    if path.is_dir():
        return is_saved_dataset(path) or any(path.glob("*.parquet"))
    return path.suffix.lower() in PARQUET_SUFFIXES


def is_saved_dataset(path: Path) -> bool:
    """Return whether a folder was written by `save_to_disk`."""
    return (path / "state.json").is_file() or (path / "dataset_dict.json").is_file()


def read_parquet(path: Path, label: str | None = None, image: str | None = None, text: str | None = None) -> Listing:
    """List the rows of a Parquet file, of a folder of Parquet files with equal columns, or of a saved dataset.

    If all files of a folder have names that start with train, test or validation, they define the splits, as do the
    folders of a saved dataset dict.
    """
    opened = _open_files(path)
    roles = _assign_arrow_columns(opened.schema, str(path), label, image, text)
    embedded = _embedded_column(opened.schema, roles)
    reader = None if embedded is None else opened.cells(embedded, _image_folder(path))
    parts = opened.read(_columns_to_read(roles, embedded))
    classes = _schema_classes(opened.schema, roles.label)
    if opened.saved:
        classes = classes or _info_classes(opened.files[0].parent, roles.label)
    kind = "a saved dataset" if opened.saved else "Parquet shards" if path.is_dir() else "a Parquet table"
    kind += "" if roles.text is None else " of texts"
    return list_table(_raw_table(path, parts, roles, reader, classes), kind)


def read_table_features(path: Path) -> dict[str, Array]:
    """Return split -> features (n, F) of Parquet files or of a saved dataset; all are "train" if there are no splits.

    The features are the only column of lists, or else all numeric columns that are not named as a label or an index.
    """
    opened = _open_files(path)
    vectors, numbers = _feature_columns(opened.schema)
    if len(vectors) > 1 or not (vectors or numbers):
        known = join_names(opened.schema.names, 20)
        raise InputError(f"{path} needs one column of lists of numbers, or numeric columns (columns: {known})")
    parts: dict[str, list[_TableFile]] = {}
    for part in opened.read(vectors or numbers):
        parts.setdefault(part.split or "train", []).append(part)
    return {split: _split_features(known, vectors, numbers) for split, known in parts.items()}


def _open_files(path: Path) -> _Opened:
    """Open the files of a table; raise if their columns differ."""
    saved = is_saved_dataset(path)
    library = _pyarrow("ipc" if saved else "parquet")
    files, splits = _saved_files(path) if saved else _parquet_files(path)
    contents = []
    for file in files:
        with _arrow_errors(file):
            contents.append(_open_stream(file) if saved else library.ParquetFile(file))
    schemas = [content.schema if saved else content.schema_arrow for content in contents]
    _check_equal_columns(files, schemas)
    return _Opened(files, splits, contents, schemas[0], saved)


def _feature_columns(schema: Arrow) -> tuple[list[str], list[str]]:
    """Return the columns of lists, and the numeric columns that can be features."""
    others = {name for names in (*LABEL_NAMES, CLEAN_NAMES, INDEX_NAMES, ("split",)) for name in names}
    vectors = [column.name for column in schema if _is_vector(column.type)]
    numbers = [column.name for column in schema if _is_numeric(column.type) and column.name.lower() not in others]
    return vectors, numbers


def _split_features(parts: Sequence[_TableFile], vectors: Sequence[str], numbers: Sequence[str]) -> Array:
    if not vectors:
        return _feature_values(parts, numbers)
    faults: dict[int, str] = {}
    values = _list_values(parts, vectors[0], faults)
    if faults:
        row = min(faults)
        raise InputError(f"{parts[0].path}: row {row}: {faults[row]}; correct it, or remove the sample")
    return values


def cell_bytes(cell: Any, folder: Path) -> bytes:
    """Return the image of a cell: bytes, or {bytes, path} where the path of a file in the folder replaces null."""
    content = cell.get("bytes") if isinstance(cell, dict) else cell
    if isinstance(content, bytes):
        return content
    path = os.path.normpath(str(cell.get("path") or "")) if isinstance(cell, dict) else ""
    if path in ("", ".") or path.startswith(".."):
        raise OSError("the cell contains no image")
    whole = (folder / path).resolve()
    if not whole.is_file() or not whole.is_relative_to(folder.resolve()):
        raise OSError("the path in the cell is not a file in the folder of the table")
    return whole.read_bytes()


def _pyarrow(part: str = "") -> Any:
    """Import pyarrow or one of its modules."""
    try:
        return importlib.import_module(f"pyarrow.{part}" if part else "pyarrow")
    except ImportError:
        raise InputError("reading Parquet needs pyarrow: pip install 'labelsieve[parquet]'") from None


@contextmanager
def _arrow_errors(path: Path) -> Iterator[None]:
    """Convert errors of pyarrow to InputError."""
    try:
        yield
    except InputError:
        raise
    except (_pyarrow().ArrowException, OSError, ValueError, KeyError, MemoryError, NotImplementedError) as error:
        raise InputError(f"cannot read {path}: {first_line(error)}; write the file again") from error


def _column_chunks(metadata: Arrow) -> Iterator[Arrow]:
    for group in range(metadata.num_row_groups):
        yield from map(metadata.row_group(group).column, range(metadata.num_columns))


def _parquet_files(path: Path) -> tuple[list[Path], list[str | None]]:
    """Return the file itself, or the Parquet files of a folder sorted by name, and the split of each file."""
    if path.is_file():
        return [path], [None]
    files = sorted(file for file in path.glob("*.parquet") if file.is_file())
    if not files:
        raise InputError(f"cannot read {path}: no such file, and not a folder that directly contains .parquet files")
    return files, _splits_by_name(files)


def _image_folder(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def _splits_by_name(files: Sequence[Path]) -> list[str | None]:
    """Return the split of each file from the first word of its name, if there are several files and all have one."""
    words = [SPLITS.get(re.split(r"[-_.]", file.stem.lower())[0]) for file in files]
    return list(words) if len(files) > 1 and "train" in words and None not in words else [None] * len(files)


def _check_equal_columns(files: Sequence[Path], schemas: Sequence[Arrow]) -> None:
    for file, schema in zip(files, schemas, strict=True):
        if not schema.equals(schemas[0], check_metadata=False):
            raise InputError(
                f"the columns of {file} differ from {files[0]}: {_difference(schema, schemas[0])}; "
                "all files need equal columns"
            )


def _difference(one: Arrow, other: Arrow) -> str:
    mine, theirs = ([f"{column.name} {column.type}" for column in schema] for schema in (one, other))
    return next(
        (f"{a} instead of {b}" for a, b in zip(mine, theirs, strict=False) if a != b),
        f"{len(mine)} instead of {len(theirs)}",
    )


def _assign_arrow_columns(
    schema: Arrow, source: str, label: str | None, image: str | None, text: str | None
) -> ColumnRoles:
    """Return the roles of the columns; raise if the type of a column does not fit its role."""
    counts = Counter(schema.names)
    kinds = {name: schema.field(name).type for name in schema.names if name != label and counts[name] == 1}
    if image is None and text is None:
        image = next((name for name, kind in kinds.items() if _is_bytes(kind)), None)
    texts, vectors = ([name for name, kind in kinds.items() if fits(kind)] for fits in (_is_text, _is_vector))
    roles = assign_columns(schema.names, source, label, image, text, texts, vectors)
    needed = [(roles.label, _is_label, "labels are integers or strings")]
    if roles.clean is not None:
        needed.append((roles.clean, _is_label, "labels are integers or strings"))
    if roles.image is not None:
        needed.append((roles.image, _is_image, "images are encoded bytes, {bytes, path}, or paths"))
    if roles.text is not None:
        needed.append((roles.text, _is_text, "texts are strings"))
    other = "features are numbers; remove the column, or pass --text-column if it contains the texts"
    needed += [(name, _is_numeric, other) for name in roles.numbers]
    for name, accepts, rule in needed:
        if not accepts(schema.field(name).type):
            raise InputError(f"{source}: column {quote(name)} has the type {schema.field(name).type}; {rule}")
    return roles


def _embedded_column(schema: Arrow, roles: ColumnRoles) -> str | None:
    """Return the image column if its cells contain encoded images."""
    return roles.image if roles.image is not None and _is_bytes(schema.field(roles.image).type) else None


def _is_bytes(kind: Arrow) -> bool:
    """Return whether the cells of a column type are encoded images."""
    types = _pyarrow("types")
    if types.is_struct(kind):
        return any(kind.field(k).name == "bytes" and _is_bytes(kind.field(k).type) for k in range(kind.num_fields))
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


def _is_text(kind: Arrow) -> bool:
    types = _pyarrow("types")
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _is_vector(kind: Arrow) -> bool:
    """Return whether the cells of a column type are lists of floating-point numbers."""
    types = _pyarrow("types")
    lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    return any(fits(kind) for fits in lists) and bool(types.is_floating(kind.value_type))


def _is_image(kind: Arrow) -> bool:
    return _is_bytes(kind) or _is_text(kind)


def _is_label(kind: Arrow) -> bool:
    if _pyarrow("types").is_dictionary(kind):
        return _is_label(kind.value_type)
    return _is_text(kind) or _is_numeric(kind)


def _is_numeric(kind: Arrow) -> bool:
    types = _pyarrow("types")
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind))


def _columns_to_read(roles: ColumnRoles, embedded: str | None) -> list[str]:
    """Return the columns that are read at once: all that are used, except the bytes of images."""
    named = (roles.label, roles.split, roles.clean, roles.image, roles.text, roles.vector, *roles.numbers)
    return list(dict.fromkeys(name for name in named if name not in (None, embedded)))


def _schema_classes(schema: Arrow, label: str) -> tuple[str, ...] | None:
    """Return the class names in the schema, as written for Hugging Face's ClassLabel."""
    try:
        return _feature_classes(json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"][label])
    except (KeyError, ValueError, TypeError):
        return None


def _info_classes(folder: Path, label: str) -> tuple[str, ...] | None:
    """Return the class names in the dataset_info.json of a saved dataset."""
    if not (folder / "dataset_info.json").is_file():
        return None
    features = _read_json(folder / "dataset_info.json").get("features")
    return _feature_classes(features.get(label)) if isinstance(features, dict) else None


def _feature_classes(feature: Any) -> tuple[str, ...] | None:
    names = feature.get("names") if isinstance(feature, dict) else None
    if not isinstance(names, list) or len(set(map(str, names))) < max(2, len(names)):
        return None
    return tuple(map(str, names))


def _starts(sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(accumulate(sizes[:-1], initial=0))


def _raw_table(
    path: Path, parts: Sequence[_TableFile], roles: ColumnRoles, reader: Reader | None, classes: tuple[str, ...] | None
) -> RawTable:
    """Join files with equal columns."""
    rows = [f"{part.path.name}:{row}" for part in parts for row in range(part.rows.num_rows)]
    labels = _column_values(parts, roles.label)
    clean = None if roles.clean is None else _column_values(parts, roles.clean)
    integers = all(label is None or type(label) is int for label in (*labels, *(clean or ())))
    faults: dict[int, str] = {}
    names: Sequence[str] = rows
    texts, columns = None, roles.numbers
    inputs: Any = reader
    if roles.text is not None:
        texts = [text or "" for text in _column_values(parts, roles.text)]
        faults = text_faults(texts)
    if roles.vector is not None:
        values = _list_values(parts, roles.vector, faults)
        columns = tuple(f"{roles.vector}[{k}]" for k in range(values.shape[1]))
        inputs = feature_tensor(values, columns, faults)
    elif roles.numbers:
        inputs = feature_tensor(_feature_values(parts, roles.numbers), roles.numbers, faults)
    elif roles.image is not None and reader is None:
        folder = _image_folder(path)
        names = [(name or "").strip() for name in _column_values(parts, roles.image)]
        inputs, faults = FileReader(folder, names), path_faults(folder, names, labels, rows)
    return RawTable(
        str(path),
        rows,
        names,
        inputs,
        columns,
        labels,
        faults,
        splits=_split_values(parts, roles),
        clean=clean,
        classes=classes if integers else None,
        texts=texts,
    )


def _split_values(parts: Sequence[_TableFile], roles: ColumnRoles) -> list[Any] | None:
    if roles.split is not None:
        return _column_values(parts, roles.split)
    if parts[0].split is None:
        return None
    return [part.split for part in parts for _ in range(part.rows.num_rows)]


def _column_values(parts: Sequence[_TableFile], column: str) -> list[Any]:
    values: list[Any] = []
    for part in parts:
        with _arrow_errors(part.path):
            cells = part.rows.column(column)
            if _pyarrow("types").is_decimal(cells.type):
                cells = cells.cast("float64")
            values += cells.to_pylist()
    return values


def _feature_values(parts: Sequence[_TableFile], columns: Sequence[str]) -> Array:
    """Return (n, F) float32, with NaN for empty cells."""
    table = np.empty((sum(part.rows.num_rows for part in parts), len(columns)), dtype=np.float32)
    start = 0
    for part in parts:
        stop = start + part.rows.num_rows
        with _arrow_errors(part.path), np.errstate(over="ignore"):
            for column, name in enumerate(columns):
                table[start:stop, column] = part.rows.column(name).cast("float64", safe=False).to_numpy()
        start = stop
    return table


def _list_values(parts: Sequence[_TableFile], column: str, faults: dict[int, str]) -> Array:
    """Return the lists of a column as (n, F) float32; rows without a list of the usual length become faults."""
    lists = [(part.path, chunk) for part in parts for chunk in part.rows.column(column).chunks]
    length = _pyarrow("compute").list_value_length
    lengths = [length(chunk).fill_null(0).to_numpy(zero_copy_only=False) for _, chunk in lists]
    whole = np.concatenate(lengths) if lengths else np.zeros(0, np.int64)
    if not whole.any():
        raise InputError(f"{parts[0].path}: the lists of column {quote(column)} are empty")
    width = int(np.bincount(whole[whole > 0]).argmax())
    for row in np.flatnonzero(whole != width).tolist():
        faults.setdefault(row, f"column {quote(column)} has {whole[row]} numbers, other rows have {width}")
    table = np.full((len(whole), width), np.nan, dtype=np.float32)
    start = 0
    for (path, chunk), found in zip(lists, lengths, strict=True):
        with _arrow_errors(path), np.errstate(over="ignore"):
            good = found == width
            numbers = chunk.filter(_pyarrow().array(good)).flatten().to_numpy(zero_copy_only=False)
            table[start : start + len(chunk)][good] = numbers.reshape(-1, width)
        start += len(chunk)
    return table


def _open_stream(file: Path) -> Arrow:
    return _pyarrow("ipc").open_stream(_pyarrow().memory_map(str(file))).read_all()


def _saved_files(path: Path) -> tuple[list[Path], list[str | None]]:
    """Return the files of a saved dataset, and the split of each."""
    found = [(file, split) for split, folder in _dataset_folders(path) for file in _dataset_files(folder)]
    return [file for file, _ in found], [split for _, split in found]


def _dataset_folders(path: Path) -> Sequence[tuple[str | None, Path]]:
    """Return split and folder of each dataset below a saved dataset or dataset dict."""
    if not (path / "dataset_dict.json").is_file():
        return [(None, path)]
    names = _read_json(path / "dataset_dict.json").get("splits")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"{path / 'dataset_dict.json'} has no list of splits; {SAVE_AGAIN}")
    for name in names:
        if Path(name).name != name or not (path / name).is_dir():
            raise InputError(f"{path} has no folder {name!r}, which its dataset_dict.json lists; {SAVE_AGAIN}")
    known = [(SPLITS[name.lower()], path / name) for name in names if name.lower() in SPLITS]
    if not any(split == "train" for split, _ in known):
        raise InputError(f"{path} has no split train (splits: {', '.join(names)}); pass the folder of one split")
    return known


def _dataset_files(folder: Path) -> list[Path]:
    state = _read_json(folder / "state.json")
    if state.get("_indices_data_files"):
        raise InputError(f"{folder} stores its rows in another order; call flatten_indices() and save it again")
    entries = state.get("_data_files")
    if not isinstance(entries, list) or not entries:
        raise InputError(f"{folder / 'state.json'} has no list of data files; {SAVE_AGAIN}")
    names: list[Any] = [entry.get("filename") if isinstance(entry, dict) else entry for entry in entries]
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not (folder / name).is_file():
            raise InputError(f"{folder} has no file {name!r}, which its state.json lists; {SAVE_AGAIN}")
    return [folder / name for name in names]


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}; {SAVE_AGAIN}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file} is not valid JSON ({error}); {SAVE_AGAIN}") from error
    if not isinstance(content, dict):
        raise InputError(f"{file} is not a JSON object; {SAVE_AGAIN}")
    return content
