"""Read image folders with one folder per class, and provide helpers for readers of other folder layouts."""

import os
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from labelsieve.data.images import FileReader, Pictures, Unusable
from labelsieve.data.sets import Listing
from labelsieve.errors import InputError, nearest
from labelsieve.text import listed

IMAGE_FOLDER = "a folder of images"
IMAGE_SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"))
SYSTEM_FILES = frozenset(("__macosx", "thumbs.db", "desktop.ini"))
SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("val", "valid", "validation"), "valid"),
}
LAYOUT = "expected one folder of images per class, or the folders train, test and val with class folders inside"


class _FolderImages(NamedTuple):
    """The image files below a folder, and the files that are not images."""

    paths: list[str]  # relative to the root, sorted
    unusable: list[Unusable]


def read_folder(root: Path) -> Listing:
    """List a folder with one folder per class, or train, test and val folders with class folders inside."""
    splits = _split_folders(root)
    train, unusable = _read_classes(root, splits.get("train", ""), None)
    held_out: dict[str, Pictures] = {}
    for split in sorted(splits.keys() - {"train"}):
        held_out[split], more = _read_classes(root, splits[split], train.classes)
        unusable += more
    return Listing(train, held_out.get("test"), held_out.get("valid"), sorted(unusable), IMAGE_FOLDER)


def read_unlabelled_images(root: Path, classes: tuple[str, ...]) -> tuple[Pictures, list[Unusable]]:
    """Return all images below a folder, sorted by path, and the files that are not images; all labels are 0."""
    found = find_images(root, "")
    if not found.paths:
        raise InputError(f"{root} contains no images")
    return labelled_files(root, found.paths, [0] * len(found.paths), classes), found.unusable


def find_images(root: Path, below: str) -> _FolderImages:
    """Find all image files below a folder of the root; follow only links to files inside the root."""
    home = root.resolve()
    found = _FolderImages([], [])
    folders = [below]
    while folders:
        folder = folders.pop()
        for entry in visible_entries(root, folder):
            name = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir(follow_symlinks=False):
                folders.append(name)
            elif reason := _file_fault(entry, home):
                found.unusable.append(Unusable(name, reason))
            else:
                found.paths.append(name)
    found.paths.sort()
    found.unusable.sort()
    return found


def visible_entries(root: Path, below: str = "") -> list["os.DirEntry[str]"]:
    """Return the entries of a folder, unsorted, without hidden files and files that operating systems create."""
    try:
        with os.scandir(root / below) as found:
            return [entry for entry in found if entry.name[0] != "." and entry.name.lower() not in SYSTEM_FILES]
    except OSError as error:
        raise InputError(f"cannot list the folder {root / below}: {error.strerror}") from error


def labelled_files(root: Path, paths: Sequence[str], labels: Sequence[int], classes: Sequence[str]) -> Pictures:
    """Return files below the root as a labelled set."""
    return Pictures(paths, FileReader(root, paths), torch.tensor(labels, dtype=torch.int64), tuple(classes))


def is_readable(path: Path) -> bool:
    """Return whether a file or folder exists and can be read."""
    return os.access(path, os.R_OK)


def require_paths(root: Path, title: str, names: Iterable[str], layout: str) -> None:
    """Raise one error that lists all missing files and folders of a published dataset."""
    if missing := [name for name in names if not is_readable(root / name)]:
        raise InputError(f"{root} is not {title} as published: missing {_quoted(missing)}; expected {layout}")


def text_lines(path: Path) -> list[str]:
    """Return the lines of a text file; bytes that are not UTF-8 become surrogates, as in os.fsdecode."""
    try:
        text = path.read_bytes().decode("utf-8-sig", "surrogateescape")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; a text file is needed") from error
    return [line.rstrip("\r") for line in text.split("\n")]


def _split_folders(root: Path) -> dict[str, str]:
    """Return split -> folder; empty if the folders of the root are the classes."""
    names = sorted(entry.name for entry in visible_entries(root) if _may_be_folder(entry))
    splits = {name: SPLITS[name.lower()] for name in names if name.lower() in SPLITS}
    others = [name for name in names if name not in splits and not (root / name).is_symlink()]
    if "train" not in splits.values():
        if splits and not others:
            raise InputError(f"{root} has {_quoted(splits)} but no folder train; {LAYOUT}")
        return {}
    train = next(name for name in splits if splits[name] == "train")
    if others and any(_suffix(entry.name) in IMAGE_SUFFIXES for entry in visible_entries(root, train)):
        return {}  # a class called train
    if others and len(splits) == 1:
        raise InputError(
            f"{root} has {train!r} next to {_quoted(others)}; rename {train!r} if it is a class, "
            "otherwise move the other folders away"
        )
    return _one_folder_per_split(root, splits)


def _one_folder_per_split(root: Path, splits: dict[str, str]) -> dict[str, str]:
    """Return split -> folder; raise if two folders are one split, or one folder is two splits."""
    folders: dict[str, str] = {}
    for name, split in splits.items():
        if split in folders:
            raise InputError(f"{root} has both {folders[split]!r} and {name!r}; remove one of them")
        if not (root / name).is_dir() or root.resolve() not in (root / name).resolve().parents:
            raise InputError(f"{root / name} is not a folder inside {root}; copy the folder there")
        for other in folders.values():
            if (root / name).samefile(root / other):
                raise InputError(f"{root / name} and {root / other} are the same folder; remove one of them")
        folders[split] = name
    return folders


def _read_classes(root: Path, below: str, known: tuple[str, ...] | None) -> tuple[Pictures, list[Unusable]]:
    """List the class folders of one split. `known`: the classes of the training split, for other splits."""
    folders, unusable = _class_folders(root, below)
    if known is None:
        _check_class_names(root / below, folders)
    elif unknown := sorted(set(folders) - set(known)):
        raise InputError(
            f"{root / below} has the class {unknown[0]!a}, which is not in the training split; "
            f"{nearest(unknown[0], known)}"
        )
    classes = tuple(folders) if known is None else known
    samples: list[tuple[str, int]] = []
    empty: dict[str, list[Unusable]] = {}  # classes without images, and the other files that they have
    for name in folders:
        label = classes.index(name)
        found = find_images(root, f"{below}/{name}" if below else name)
        samples += [(path, label) for path in found.paths]
        unusable += found.unusable
        if not found.paths:
            empty[name] = found.unusable
    if (empty and known is None) or not samples:
        what = f"no images of {_quoted(empty)}" if samples else "no images"
        others = [each for found in empty.values() for each in found] or unusable
        cause = f" ({others[0].name!r}: {others[0].reason})" if others else ""
        raise InputError(f"{root / below} has {what}; add images or remove the folder{cause}")
    samples.sort()
    return labelled_files(root, [path for path, _ in samples], [label for _, label in samples], classes), unusable


def _class_folders(root: Path, below: str) -> tuple[list[str], list[Unusable]]:
    home = root.resolve()
    names: list[str] = []
    unusable: list[Unusable] = []
    for entry in visible_entries(root, below):
        name = f"{below}/{entry.name}" if below else entry.name
        if entry.is_dir(follow_symlinks=False):
            names.append(entry.name)
        elif _suffix(entry.name) in IMAGE_SUFFIXES:
            unusable.append(Unusable(name, "not inside a class folder"))
        elif entry.is_symlink() and (reason := _link_fault(entry, home)):
            unusable.append(Unusable(name, reason))
    return sorted(names), sorted(unusable)


def _check_class_names(folder: Path, names: Sequence[str]) -> None:
    if len(names) < 2:
        found = f"only one class folder, {names[0]!r}" if names else "no class folders"
        raise InputError(f"{folder} has {found}; at least two are needed; {LAYOUT}")
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(unicodedata.normalize("NFC", name).casefold(), name)
        if other != name:
            raise InputError(
                f"{folder} has the classes {other!a} and {name!a}, which many systems treat as one name; "
                "merge them or rename one"
            )


def _may_be_folder(entry: "os.DirEntry[str]") -> bool:
    return entry.is_dir(follow_symlinks=False) or (
        entry.is_symlink() and (entry.name.lower() in SPLITS or Path(entry.path).is_dir())
    )


def _file_fault(entry: "os.DirEntry[str]", home: Path) -> str | None:
    """Return why a file cannot be a sample; only links are resolved, and nothing is opened."""
    if entry.is_symlink():
        if reason := _link_fault(entry, home):
            return reason
    elif not entry.is_file(follow_symlinks=False):
        return "a pipe, socket or device"
    suffix = _suffix(entry.name)
    if suffix in IMAGE_SUFFIXES:
        return None
    return f"not an image file ({f'suffix {suffix}' if suffix else 'no suffix'})"


def _link_fault(entry: "os.DirEntry[str]", home: Path) -> str | None:
    try:
        target = Path(entry.path).resolve(strict=True)
    except (OSError, RuntimeError):  # a cycle raises one or the other, depending on the version of Python
        return "a broken or cyclic link"
    if home not in (target, *target.parents):
        return "a link to a place outside the folder; copy the file instead"
    if target.is_dir():
        return "a link to a folder; only links to files are followed"
    return None if target.is_file() else "a link to a pipe, socket or device"


def _suffix(name: str) -> str:
    stem, dot, end = name.rpartition(".")
    return f".{end.lower()}" if stem and dot else ""


def _quoted(names: Iterable[str]) -> str:
    return listed(map(repr, names), 5)
