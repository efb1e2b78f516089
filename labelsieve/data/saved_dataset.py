"""saved_dataset: a dataset that Hugging Face's save_to_disk wrote: Arrow streams and two JSON files in a folder."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labelsieve.data.features import SPLITS, Rows, rows_of
from labelsieve.data.parquet import (
    Arrow,
    Cells,
    Part,
    arrow_roles,
    arrow_table,
    cheap_columns,
    class_names,
    holds_bytes,
    names_in,
    pyarrow,
    reading,
    refuse_other_columns,
    starts_of,
    written,
)
from labelsieve.errors import InputError

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
