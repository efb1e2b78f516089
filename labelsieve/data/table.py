"""Read CSV and TSV files with a label column, and image paths or numbers."""

import csv
import itertools
import os
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import torch
from torch import Tensor

from labelsieve.data.classes import quote
from labelsieve.data.columns import (
    IMAGE_NAMES,
    ColumnRoles,
    RawTable,
    assign_columns,
    feature_tensor,
    list_table,
    usual_column,
)
from labelsieve.data.images import FileReader, Pictures
from labelsieve.data.sets import Labelled, Listing
from labelsieve.errors import InputError

TEXT_SUFFIXES = (".csv", ".tsv", ".txt")
MAX_LENGTH = 16 * 2**20  # characters of a line or a cell
SEPARATORS = ",;\t|"
DECIMAL_COMMA = re.compile(r"[-+]?[0-9]*,[0-9]+([eE][-+]?[0-9]+)?")
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
DictRow = dict[str, str | None]  # column -> cell; None if the row is too short


class _TableCells(NamedTuple):
    """The cells of a table that are used, by column."""

    lines: list[int]
    labels: list[str]
    paths: list[str]
    values: "array[float]"  # row by row
    faults: dict[int, str]
    splits: list[str] | None
    clean: list[str] | None


def is_table(path: Path) -> bool:
    """Return whether a file is a text table, from its suffix."""
    return path.suffix.lower() in TEXT_SUFFIXES


def read_table(path: Path, label: str | None = None, image: str | None = None) -> Listing:
    """List the rows of a CSV or TSV file.

    With a column of image paths (relative to the folder of the file) the sets are Pictures. Without one, all other
    columns are numbers.
    """
    with _text_file(path) as file:
        records = _records(path, file)
        columns = [name.strip() for name in next(records, (1, []))[1]]
        if not columns:
            raise InputError(f"{path} is empty; its first line must contain the column names")
        roles = assign_columns(columns, str(path), label, image)
        cells = _collect_cells(path, columns, roles, records)
    if not cells.lines:
        raise InputError(f"{path} has a header but no rows; at least one row per class is needed")
    return list_table(_raw_table(path, roles, cells), "a table")


def read_unlabelled_table(
    path: Path, classes: tuple[str, ...], image: str | None, columns: Sequence[str] | None
) -> Pictures | Labelled:
    """Return the rows of a CSV or TSV file; all labels are 0.

    `columns`: feature columns of the model; None for a model of images.
    """
    header, rows = read_dict_rows(path)
    if not rows:
        raise InputError(f"{path} has no rows")
    labels = torch.zeros(len(rows), dtype=torch.int64)
    wanted = [image or usual_column(header, IMAGE_NAMES) or "image"] if columns is None else columns
    for column in wanted:
        if column not in header:
            fix = "pass the image column with --image-column" if columns is None else "the model was trained on it"
            raise InputError(f"{path} has no column {column!r}; {fix}")
    if columns is None:
        paths = [row[wanted[0]] or "" for _, row in rows]
        return Pictures(paths, FileReader(path.parent, paths), labels, classes)
    names = [f"{path.name}:{line}" for line, _ in rows]
    values = torch.tensor([_parse_numbers(row, columns, name) for (_, row), name in zip(rows, names, strict=True)])
    return Labelled(values, labels, classes, names=names, columns=tuple(columns))


def read_records(path: Path) -> list[tuple[int, list[str]]]:
    """Return all records of a CSV or TSV file, including any header, with the line that each starts on."""
    with _text_file(path) as file:
        return list(_records(path, file))


def read_dict_rows(path: Path) -> tuple[list[str], list[tuple[int, DictRow]]]:
    """Return the column names of a CSV or TSV file, and its rows with the line that each ends on."""
    with _text_file(path) as file:
        separator = detect_separator(file.readline())
        file.seek(0)
        rows = csv.DictReader(file, delimiter=separator)
        return list(rows.fieldnames or ()), [(rows.line_num, row) for row in rows]


def detect_separator(header: str) -> str:
    """Return the separator (comma, semicolon, tab or bar) that splits the header into the most names."""
    try:
        return max(SEPARATORS, key=lambda mark: len(next(csv.reader([header], delimiter=mark), [])))
    except csv.Error:
        return ","


def _not_a_number(cell: str) -> str:
    """Return why a cell is not a number, and the fix."""
    if DECIMAL_COMMA.fullmatch(cell.strip()):
        return f"has a decimal comma; use decimal points: {cell.strip().replace(',', '.')}"
    return "is not a number; correct it, or remove the column"


def path_faults(folder: Path, paths: Sequence[str], labels: Sequence[object], rows: Sequence[str]) -> dict[int, str]:
    """Return row -> reason for image paths that cannot be used, or that have another label in an earlier row."""
    faults: dict[int, str] = {}
    is_file = _file_finder(folder)
    first: dict[str, int] = {}
    for row, path in enumerate(paths):
        normal = os.path.normpath(path) if path else ""
        if fault := _path_fault(path, normal, is_file):
            faults[row] = fault
            continue
        other = first.setdefault(normal, row)
        if labels[other] != labels[row]:
            both = f"{quote(labels[row])} here and {quote(labels[other])} in {rows[other]}"
            faults[row] = f"{quote(path)} has the label {both}; remove one of the rows"
    return faults


@contextmanager
def _text_file(path: Path) -> Iterator[IO[str]]:
    """Open a CSV or TSV file, and convert all errors of reading it to InputError."""
    before = csv.field_size_limit(MAX_LENGTH)
    try:
        with path.open("rb") as raw:
            if raw.read(2) in (b"\xff\xfe", b"\xfe\xff"):
                raise InputError(f"{path} is UTF-16 text; convert it: iconv -f UTF-16 -t UTF-8 old.csv > new.csv")
        with path.open(newline="", encoding="utf-8-sig") as file:
            yield file
    except UnicodeDecodeError:
        raise InputError(
            f"{path} is not UTF-8 text ({_undecodable_place(path)}); save it as UTF-8 (spreadsheets: CSV UTF-8), or "
            "convert it: iconv -f CP1252 -t UTF-8 old.csv > new.csv"
        ) from None
    except (OSError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(f"cannot read {path}: {reason}; a CSV or TSV file is needed") from error
    finally:
        csv.field_size_limit(before)


def _records(path: Path, file: IO[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield each record with the line that it starts on; the first is the header."""
    opening: list[str] = []  # blank lines and the header
    lines = _checked_lines(path, file)
    for line in lines:
        opening.append(line)
        if line.strip():
            break
    separator = detect_separator(opening[-1] if opening else "")
    reader = csv.reader(itertools.chain(opening, lines), delimiter=separator, strict=True)
    start = 1
    try:
        for record in reader:
            if len(record) > 1 or "".join(record).strip():
                yield start, record
            start = reader.line_num + 1
    except csv.Error as error:
        raise InputError(
            f"{path}:{start}: a quoted cell is not closed, or is too long ({error}); correct the quotes of the row"
        ) from None


def _checked_lines(path: Path, file: IO[str]) -> Iterator[str]:
    number = 0
    while line := file.readline(MAX_LENGTH + 1):
        number += 1
        if len(line) > MAX_LENGTH:
            raise InputError(f"{path}:{number} is longer than {MAX_LENGTH:,} characters; is this a table?")
        if "\0" in line:
            raise InputError(f"{path}:{number} contains a NUL byte; save the file as UTF-8 text")
        yield line


def _undecodable_place(path: Path) -> str:
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LENGTH), b""), 1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                return f"line {number}, byte {line[error.start]:#x}"
    return "the last character is truncated"


def _collect_cells(
    path: Path, columns: Sequence[str], roles: ColumnRoles, records: Iterator[tuple[int, list[str]]]
) -> _TableCells:
    position = {name: column for column, name in enumerate(columns)}
    label = position[roles.label]
    image, split, clean = (None if name is None else position[name] for name in (roles.image, roles.split, roles.clean))
    numbers = [(position[name], name) for name in roles.numbers]
    cells = _TableCells([], [], [], array("f"), {}, None if split is None else [], None if clean is None else [])
    same: dict[str, str] = {}  # one object per distinct text
    for line, record in records:
        if len(record) != len(columns):
            raise InputError(
                f"{path}:{line} has {len(record)} cells, but the header has {len(columns)}; "
                "correct the row, and quote cells that contain the separator"
            )
        if image is None:
            _add_numbers(record, numbers, cells)
        else:
            cells.paths.append(record[image].strip())
        cells.lines.append(line)
        for collected, column in ((cells.labels, label), (cells.splits, split), (cells.clean, clean)):
            if collected is not None and column is not None:
                collected.append(same.setdefault(record[column], record[column]))
    return cells


def _add_numbers(record: list[str], numbers: list[tuple[int, str]], cells: _TableCells) -> None:
    try:
        cells.values.extend([float(record[column]) for column, _ in numbers])
    except ValueError:
        cells.values.extend([0.0] * len(numbers))
        cells.faults[len(cells.lines)] = next(
            f"column {quote(name)} contains {quote(record[column])}, which {_not_a_number(record[column])}"
            for column, name in numbers
            if not _is_number(record[column])
        )


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _parse_numbers(row: DictRow, columns: Sequence[str], name: str) -> list[float]:
    numbers = []
    for column in columns:
        cell = row[column] or ""
        try:
            numbers.append(float(cell))
        except ValueError:
            raise InputError(
                f"{name}: column {quote(column)} contains {quote(cell)}, which {_not_a_number(cell)}"
            ) from None
    return numbers


def _raw_table(path: Path, roles: ColumnRoles, cells: _TableCells) -> RawTable:
    rows = [f"{path.name}:{line}" for line in cells.lines]
    faults = cells.faults
    if roles.image is None:
        inputs: FileReader | Tensor = feature_tensor(cells.values, roles.numbers, faults)
        names: Sequence[str] = rows
    else:
        inputs, names = FileReader(path.parent, cells.paths), cells.paths
        faults = path_faults(path.parent, cells.paths, cells.labels, rows)
    return RawTable(str(path), rows, names, inputs, roles.numbers, cells.labels, faults, cells.splits, cells.clean)


def _path_fault(path: str, normal: str, is_file: Callable[[str], bool]) -> str | None:
    if not path:
        return "no image path; add one or remove the row"
    if URL.match(path):
        return f"{quote(path)} is a URL; download the image and use its path"
    if normal == ".." or normal.startswith(("../", "..\\")):
        return f"{quote(path)} is outside the folder of the table; use an absolute path or move the table"
    if not is_file(normal):
        hint = "; use / in paths" if "\\" in path else ""
        return f"{quote(path)} is not a file; paths are relative to the folder of the table{hint}"
    return None


def _file_finder(folder: Path) -> Callable[[str], bool]:
    """Return a function that checks whether a path is a file; it lists each folder once, which is faster."""
    listed: dict[str, set[str]] = {}

    def is_file(path: str) -> bool:
        parent, name = os.path.split(path)
        if parent not in listed:
            listed[parent] = _files_in(folder / parent)
        return name in listed[parent] or _is_file(folder / path)

    return is_file


def _files_in(folder: Path) -> set[str]:
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if entry.is_file()}
    except (OSError, ValueError):
        return set()


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # not a valid file name
        return False
