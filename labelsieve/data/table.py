"""table: CSV and TSV files, with the paths of images or with numbers, and a label in each row."""

import csv
import itertools
import os
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from torch import Tensor

from labelsieve.data.classes import shown
from labelsieve.data.columns import Roles, Rows, Table, feature_tensor, roles_of, rows_of
from labelsieve.data.images import Files
from labelsieve.errors import InputError

LONGEST = 16 * 2**20  # characters of a line or a cell
SEPARATORS = ",;\t|"
DECIMAL_COMMA = re.compile(r"[-+]?[0-9]*,[0-9]+([eE][-+]?[0-9]+)?")
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def read_table(path: Path, *, label: str | None = None, image: str | None = None, split: str | None = None) -> Rows:
    """The sets of a CSV or TSV file.

    The columns are found by the usual names unless they are given. With a column of image paths (relative to the
    file's folder) the sets are Pictures; without one all other columns are numbers and the sets are Features.
    """
    with reading_text(path), path.open(newline="", encoding="utf-8-sig") as file:
        records = _records(path, file)
        columns = [name.strip() for name in next(records, (1, []))[1]]
        if not columns:
            raise InputError(f"{path} is empty; its first line must name the columns")
        roles = roles_of(columns, str(path), label, image, split)
        cells = _collected(path, columns, roles, records)
    if not cells.lines:
        raise InputError(f"{path} has a header but no rows; at least one row per class is needed")
    return rows_of(_table(path, roles, cells))


def read_records(path: Path) -> list[tuple[int, list[str]]]:
    """All records of a CSV or TSV file, a header among them if there is one, each with the line that it starts on."""
    with reading_text(path), path.open(newline="", encoding="utf-8-sig") as file:
        return list(_records(path, file))


class Cells(NamedTuple):
    """The cells of a table that matter, column by column."""

    lines: list[int]
    labels: list[str]
    paths: list[str]
    values: "array[float]"  # row by row
    faults: dict[int, str]
    splits: list[str] | None
    clean: list[str] | None


@contextmanager
def reading_text(path: Path) -> Iterator[None]:
    """What can be wrong with a file that should be a text of rows becomes one line."""
    before = csv.field_size_limit(LONGEST)
    try:
        _refuse_utf16(path)
        yield
    except UnicodeDecodeError:
        raise InputError(
            f"{path} is not UTF-8 text ({_undecodable(path)}); save it as UTF-8 (spreadsheets call it CSV UTF-8), or "
            "convert it: iconv -f CP1252 -t UTF-8 old.csv > new.csv"
        ) from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}; give a CSV or TSV file") from error
    except csv.Error as error:
        raise InputError(f"cannot read {path}: {error}; give a CSV or TSV file") from error
    finally:
        csv.field_size_limit(before)


def _records(path: Path, file: IO[str]) -> Iterator[tuple[int, list[str]]]:
    """Each record with the line that it starts on; the first is the header."""
    opening: list[str] = []  # blank lines and the header
    lines = _lines(path, file)
    for line in lines:
        opening.append(line)
        if line.strip():
            break
    separator = separator_of(opening[-1] if opening else "")
    reader = csv.reader(itertools.chain(opening, lines), delimiter=separator, strict=True)
    start = 1
    try:
        for record in reader:
            if len(record) > 1 or "".join(record).strip():
                yield start, record
            start = reader.line_num + 1
    except csv.Error as error:
        raise InputError(
            f"{path}:{start}: a quoted cell is not closed, or is too long ({error}); put the quotes of the row right"
        ) from None


def _lines(path: Path, file: IO[str]) -> Iterator[str]:
    number = 0
    while line := file.readline(LONGEST + 1):
        number += 1
        if len(line) > LONGEST:
            raise InputError(f"{path}:{number} is longer than {LONGEST:,} characters; is this a table?")
        if "\0" in line:
            raise InputError(f"{path}:{number} holds a NUL byte; save the file as UTF-8 text")
        yield line


def separator_of(header: str) -> str:
    """The one of , ; tab | that cuts the header into most names."""
    try:
        return max(SEPARATORS, key=lambda mark: len(next(csv.reader([header], delimiter=mark), [])))
    except csv.Error:
        return ","


def _refuse_utf16(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(2) in (b"\xff\xfe", b"\xfe\xff"):
            raise InputError(f"{path} is UTF-16 text; convert it: iconv -f UTF-16 -t UTF-8 old.csv > new.csv")


def _undecodable(path: Path) -> str:
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST), b""), 1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                return f"line {number}, byte {line[error.start]:#x}"
    return "its last character is cut off"


def _collected(path: Path, columns: Sequence[str], roles: Roles, records: Iterator[tuple[int, list[str]]]) -> Cells:
    place = {name: column for column, name in enumerate(columns)}
    label = place[roles.label]
    image = None if roles.image is None else place[roles.image]
    numbers = [(place[name], name) for name in roles.numbers]
    cells = Cells([], [], [], array("f"), {}, None if roles.split is None else [], None if roles.clean is None else [])
    same: dict[str, str] = {}  # one object per distinct label
    for line, record in records:
        if len(record) != len(columns):
            raise InputError(
                f"{path}:{line} has {len(record)} cells where the header names {len(columns)}; "
                "correct the row, and quote cells that hold the separator"
            )
        if image is None:
            _add_numbers(record, numbers, cells)
        else:
            cells.paths.append(record[image].strip())
        cells.lines.append(line)
        cells.labels.append(same.setdefault(record[label], record[label]))
        if cells.splits is not None and roles.split is not None:
            cells.splits.append(same.setdefault(record[place[roles.split]], record[place[roles.split]]))
        if cells.clean is not None and roles.clean is not None:
            cells.clean.append(same.setdefault(record[place[roles.clean]], record[place[roles.clean]]))
    return cells


def _add_numbers(record: list[str], numbers: list[tuple[int, str]], cells: Cells) -> None:
    try:
        cells.values.extend([float(record[column]) for column, _ in numbers])
    except ValueError:
        cells.values.extend([0.0] * len(numbers))
        cells.faults[len(cells.lines)] = next(
            f"column {shown(name)} holds {shown(record[column])}, which {no_number(record[column])}"
            for column, name in numbers
            if not _is_number(record[column])
        )


def no_number(cell: str) -> str:
    """Why a cell is no number, and what to do."""
    if DECIMAL_COMMA.fullmatch(cell.strip()):
        return f"has a decimal comma; write {cell.strip().replace(',', '.')}: save the table with decimal points"
    return "is no number; correct it, or drop the column"


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _table(path: Path, roles: Roles, cells: Cells) -> Table:
    rows = [f"{path.name}:{line}" for line in cells.lines]
    faults = cells.faults
    if roles.image is None:
        inputs: Files | Tensor = feature_tensor(cells.values, roles.numbers, faults)
        names: Sequence[str] = rows
    else:
        inputs, names = Files(path.parent, cells.paths), cells.paths
        faults = path_faults(path.parent, cells.paths, cells.labels, rows)
    return Table(str(path), rows, names, inputs, roles.numbers, cells.labels, faults, cells.splits, cells.clean)


def path_faults(folder: Path, paths: Sequence[str], labels: Sequence[object], rows: Sequence[str]) -> dict[int, str]:
    """Rows whose image is not a file of the folder, or was there before under another label."""
    faults: dict[int, str] = {}
    is_file = _finder(folder)
    first: dict[str, int] = {}
    for row, path in enumerate(paths):
        plain = os.path.normpath(path) if path else ""
        if fault := _path_fault(path, plain, is_file):
            faults[row] = fault
            continue
        other = first.setdefault(plain, row)
        if labels[other] != labels[row]:
            both = f"{shown(labels[row])} here and {shown(labels[other])} in {rows[other]}"
            faults[row] = f"{shown(path)} has the label {both}; keep one of the two"
    return faults


def _path_fault(path: str, plain: str, is_file: Callable[[str], bool]) -> str | None:
    if not path:
        return "it names no image; give a path or remove the row"
    if URL.match(path):
        return f"{shown(path)} is a URL; download the image and give its path"
    if plain == ".." or plain.startswith(("../", "..\\")):
        return f"{shown(path)} leads out of the table's folder; give an absolute path or move the table"
    if not is_file(plain):
        hint = "; write paths with /" if "\\" in path else ""
        return f"{shown(path)} is not a file; paths are relative to the table's folder{hint}"
    return None


def _finder(folder: Path) -> Callable[[str], bool]:
    """Whether a path is a file; each folder is listed once, which is faster than asking for each file."""
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
    except (OSError, ValueError):  # a name that no file can have
        return False
