"""Read CSV and TSV files with a label column, and image paths, texts or numbers."""

import csv
import itertools
import math
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
    BEYOND_FLOAT32,
    IMAGE_NAMES,
    SPLITS,
    TEXT_NAMES,
    ColumnRoles,
    RawTable,
    assign_columns,
    feature_tensor,
    list_table,
    text_faults,
    usual_column,
)
from labelsieve.data.folder import visible_entries
from labelsieve.data.images import FileReader, Pictures, Unusable
from labelsieve.data.sets import Labelled, Listing, Texts
from labelsieve.errors import InputError
from labelsieve.text import parse_number

TEXT_SUFFIXES = (".csv", ".tsv", ".txt")
SPLIT_SUFFIXES = (".csv", ".tsv")  # of the files of a folder
PEEKED = 1000  # rows from which the kind of a column is determined
MAX_LENGTH = 16 * 2**20  # characters of a line or a cell
LARGEST = torch.finfo(torch.float32).max
SEPARATORS = ",;\t|"
DECIMAL_COMMA = re.compile(r"[-+]?[0-9]*,[0-9]+([eE][-+]?[0-9]+)?")
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
DictRow = dict[str, str]  # column -> cell


class _TableCells(NamedTuple):
    """The cells of a table that are used, by column."""

    rows: list[str]  # file:line
    labels: list[str]
    strings: list[str]  # image paths or texts
    values: "array[float]"  # row by row
    faults: dict[int, str]
    splits: list[str] | None
    clean: list[str] | None


def is_table(path: Path) -> bool:
    """Return whether a file is a text table, from its suffix."""
    return path.suffix.lower() in TEXT_SUFFIXES


def read_table(path: Path, label: str | None = None, image: str | None = None, text: str | None = None) -> Listing:
    """List the rows of a CSV or TSV file.

    With a column of image paths (relative to the folder of the file) the sets are Pictures, with a column of texts they
    are Texts. Otherwise all other columns are numbers.
    """
    roles = _find_roles(path, label, image, text)
    cells = _empty_cells(roles)
    _read_cells(path, roles, cells)
    return list_table(_raw_table(path, path.parent, roles, cells), _kind(roles))


def is_table_folder(path: Path) -> bool:
    """Return whether a folder has a table train.csv or train.tsv, and no folders of classes or splits."""
    try:
        if "train" not in [split for split, _ in _split_tables(path)]:
            return False
        folders = [entry.name for entry in visible_entries(path) if entry.is_dir()]
    except (OSError, InputError):
        return False
    return len(folders) < 2 and not any(name.lower() in SPLITS for name in folders)


def read_table_folder(
    root: Path, label: str | None = None, image: str | None = None, text: str | None = None
) -> Listing:
    """List the rows of train.csv, and of test.csv and val.csv next to it; the training table defines the columns."""
    tables: dict[str, Path] = {}
    for split, path in _split_tables(root):
        if tables.setdefault(split, path) != path:
            raise InputError(f"{root} has both {tables[split].name} and {path.name}; remove one of them")
    roles = _find_roles(tables["train"], label, image, text)._replace(split=None)  # the files are the splits
    cells = _empty_cells(roles)
    splits: list[str] = []
    for split, path in tables.items():
        _read_cells(path, roles, cells, tables["train"])
        splits += [split] * (len(cells.rows) - len(splits))
    return list_table(_raw_table(root, root, roles, cells._replace(splits=splits)), f"{_kind(roles)} for each split")


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
        paths = [row[wanted[0]].strip() for _, row in rows]
        return Pictures(paths, FileReader(path.parent, paths), labels, classes)
    names = [f"{path.name}:{line}" for line, _ in rows]
    values = torch.tensor([_parse_numbers(row, columns, name) for (_, row), name in zip(rows, names, strict=True)])
    return Labelled(values, labels, classes, names=names, columns=tuple(columns))


def read_unlabelled_texts(path: Path, classes: tuple[str, ...], text: str | None) -> tuple[Texts, list[Unusable]]:
    """Return the texts of a CSV or TSV file, without the empty ones, and those; all labels are 0."""
    header, rows = read_dict_rows(path)
    column = usual_column(header, TEXT_NAMES) if text is None else text
    if column is None or column not in header:
        raise InputError(f"{path} has no column {column or 'text'!r}; pass the text column with --text-column")
    texts = [row[column] for _, row in rows]
    names = [f"{path.name}:{line}" for line, _ in rows]
    faults = text_faults(texts)
    found = Texts(names, texts, torch.zeros(len(texts), dtype=torch.int64), classes)
    good = [row for row in range(len(texts)) if row not in faults]
    if not good:
        raise InputError(f"{path} has no texts in the column {column!r}")
    return found.at(good), [Unusable(names[row], reason) for row, reason in faults.items()]


def read_records(path: Path) -> list[tuple[int, list[str]]]:
    """Return all records of a CSV or TSV file, including any header, with the line that each starts on."""
    with _text_file(path) as file:
        return list(_records(path, file))


def read_dict_rows(path: Path) -> tuple[list[str], list[tuple[int, DictRow]]]:
    """Return the column names of a CSV or TSV file, and its rows with the line that each starts on."""
    with _text_file(path) as file:
        records = _records(path, file)
        columns = _header(path, records)
        rows = ((line, _checked(record, columns, path, line)) for line, record in records)
        return columns, [(line, dict(zip(columns, record, strict=True))) for line, record in rows]


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
    if " " in cell.strip():
        return "is not a number; pass --text-column if these are the texts, otherwise correct or remove the column"
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
    start, columns = 1, 0
    try:
        for record in reader:
            # where there is one column, white space is a cell; elsewhere, a line of it is blank
            if record and (columns == 1 or len(record) > 1 or not record[0].isspace()):
                columns = columns or len(record)
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


def _split_tables(root: Path) -> list[tuple[str, Path]]:
    """Return split and path of the tables of a folder that are named as a split, the training table first."""
    paths = sorted(root / entry.name for entry in visible_entries(root) if entry.is_file())
    found = [(SPLITS.get(path.stem.lower(), ""), path) for path in paths if path.suffix.lower() in SPLIT_SUFFIXES]
    return sorted([(split, path) for split, path in found if split], key=lambda table: table[0] != "train")


def _kind(roles: ColumnRoles) -> str:
    return "a table" if roles.text is None else "a table of texts"


def _header(path: Path, records: Iterator[tuple[int, list[str]]]) -> list[str]:
    columns = [name.strip() for name in next(records, (1, []))[1]]
    if not columns:
        raise InputError(f"{path} is empty; its first line must contain the column names")
    return columns


def _find_roles(path: Path, label: str | None, image: str | None, text: str | None) -> ColumnRoles:
    """Return the roles of the columns, from their names and the first rows."""
    with _text_file(path) as file:
        records = _records(path, file)
        columns = _header(path, records)
        usual = {name: k for k, name in enumerate(columns) if name.lower() in TEXT_NAMES}
        first = [record for _, record in itertools.islice(records, PEEKED if usual else 0)]
    texts = [name for name, k in usual.items() if _are_texts(first, k)]
    return assign_columns(columns, str(path), label, image, text, texts)


def _are_texts(records: Sequence[list[str]], column: int) -> bool:
    """Return whether most of the cells of a column that are not empty are not numbers."""
    cells = [record[column] for record in records if column < len(record) and record[column].strip()]
    return 2 * sum(map(_is_number, cells)) < len(cells)


def _empty_cells(roles: ColumnRoles) -> _TableCells:
    return _TableCells(
        *([], [], [], array("f"), {}),
        splits=None if roles.split is None else [],
        clean=None if roles.clean is None else [],
    )


def _read_cells(path: Path, roles: ColumnRoles, cells: _TableCells, train: Path | None = None) -> None:
    """Add the rows of a file; `train`: the file that the roles come from, if it is another one."""
    before = len(cells.rows)
    with _text_file(path) as file:
        records = _records(path, file)
        columns = _header(path, records)
        named = (roles.label, roles.image, roles.text, roles.split, roles.clean, *roles.numbers)
        known = frozenset(columns)
        missing = [name for name in named if name is not None and name not in known]
        if missing:
            raise InputError(f"{path} has no column {quote(missing[0])}, but {train} has; add it, or pass {train}")
        _collect_cells(path, columns, roles, records, cells)
    if len(cells.rows) == before:
        raise InputError(f"{path} has a header but no rows; at least one row per class is needed")


def _collect_cells(
    path: Path, columns: Sequence[str], roles: ColumnRoles, records: Iterator[tuple[int, list[str]]], cells: _TableCells
) -> None:
    position = {name: column for column, name in enumerate(columns)}
    label = position[roles.label]
    used = (roles.image, roles.text, roles.split, roles.clean)
    image, text, split, clean = (None if name is None else position[name] for name in used)
    numbers = [(position[name], name) for name in roles.numbers]
    same: dict[str, str] = {}  # one object per distinct text
    for line, record in records:
        _checked(record, columns, path, line)
        if image is not None:
            cells.strings.append(record[image].strip())
        elif text is not None:
            cells.strings.append(record[text])
        else:
            _add_numbers(record, numbers, cells)
        cells.rows.append(f"{path.name}:{line}")
        for collected, column in ((cells.labels, label), (cells.splits, split), (cells.clean, clean)):
            if collected is not None and column is not None:
                collected.append(same.setdefault(record[column], record[column]))


def _checked(record: list[str], columns: Sequence[str], path: Path, line: int) -> list[str]:
    """Return a record with as many cells as the header; refuse any other."""
    if len(record) != len(columns):
        raise InputError(
            f"{path}:{line} has {len(record)} {'cell' if len(record) == 1 else 'cells'}, but the header has "
            f"{len(columns)}; "
            "correct the row, and quote cells that contain the separator"
        )
    return record


def _add_numbers(record: list[str], numbers: list[tuple[int, str]], cells: _TableCells) -> None:
    try:
        values = [record[column] for column, _ in numbers]
        unusual = "_" in (joined := "".join(values)) or not joined.isascii()
        cells.values.extend(list(map(parse_number if unusual else float, values)))
    except ValueError:
        cells.values.extend([0.0] * len(numbers))
        cells.faults[len(cells.rows)] = next(
            f"column {quote(name)} contains {quote(record[column])}, which {_not_a_number(record[column])}"
            for column, name in numbers
            if not _is_number(record[column])
        )


def _is_number(cell: str) -> bool:
    try:
        parse_number(cell)
    except ValueError:
        return False
    return True


def _parse_numbers(row: DictRow, columns: Sequence[str], name: str) -> list[float]:
    numbers = []
    for column in columns:
        cell, value = row[column], math.nan
        try:
            value = parse_number(cell)
            fault = f"{BEYOND_FLOAT32}; correct it, or remove the row"
        except ValueError:
            fault = _not_a_number(cell)
        if not abs(value) <= LARGEST:
            raise InputError(f"{name}: column {quote(column)} contains {quote(cell)}, which {fault}")
        numbers.append(value)
    return numbers


def _raw_table(source: Path, folder: Path, roles: ColumnRoles, cells: _TableCells) -> RawTable:
    inputs: FileReader | Tensor | None = None
    names, texts, faults = cells.rows, None, cells.faults
    if roles.image is not None:
        inputs, names = FileReader(folder, cells.strings), cells.strings
        faults = path_faults(folder, cells.strings, cells.labels, cells.rows)
    elif roles.text is not None:
        texts, faults = cells.strings, text_faults(cells.strings)
    else:
        inputs = feature_tensor(cells.values, roles.numbers, faults)
    return RawTable(
        *(str(source), cells.rows, names, inputs, roles.numbers, cells.labels, faults, cells.splits, cells.clean),
        texts=texts,
    )


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
