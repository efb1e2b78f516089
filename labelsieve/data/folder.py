"""A folder of images with one folder per class, and what all readers of image folders share."""

import os
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from labelsieve.data.images import Bad, Files, Pictures
from labelsieve.errors import InputError, nearest

SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"))
LEFT_BY_SYSTEMS = frozenset(("__macosx", "thumbs.db", "desktop.ini"))
SPLITS = {
    "train": "train",
    "training": "train",
    "test": "test",
    "testing": "test",
    "val": "valid",
    "valid": "valid",
    "validation": "valid",
}
LAYOUT = "it should have one folder of images per class, or the folders train, test and val with those inside"


class Listing(NamedTuple):
    """The sets that a folder holds, and the files that cannot be samples."""

    train: Pictures
    test: Pictures | None
    valid: Pictures | None
    bad: list[Bad]


class Found(NamedTuple):
    """The image files below a folder, and the files that are none."""

    paths: list[str]  # relative to the root, sorted
    bad: list[Bad]


def read_folder(root: Path) -> Listing:
    """One folder per class; or train, test and val with one folder per class each."""
    splits = split_folders(root)
    train, bad = _of_classes(root, splits.get("train", ""), None)
    held_out: dict[str, Pictures] = {}
    for kind in sorted(splits.keys() - {"train"}):
        held_out[kind], more = _of_classes(root, splits[kind], train.classes)
        bad += more
    return Listing(train, held_out.get("test"), held_out.get("valid"), sorted(bad))


def split_folders(root: Path) -> dict[str, str]:
    """Which folder is train, test and valid; nothing where the folders of the root are the classes."""
    names = sorted(entry.name for entry in entries(root) if _may_be_folder(entry))
    kinds = {name: SPLITS[name.lower()] for name in names if name.lower() in SPLITS}
    others = [name for name in names if name not in kinds and not (root / name).is_symlink()]
    if "train" not in kinds.values():
        if kinds and not others:
            raise InputError(f"{root} has {_listed(kinds)} but no folder train; {LAYOUT}")
        return {}
    training = next(name for name in kinds if kinds[name] == "train")
    if others and any(_suffix(entry.name) in SUFFIXES for entry in entries(root, training)):
        return {}  # a class that is called train
    if others and len(kinds) == 1:
        raise InputError(
            f"{root} has {training!r} beside {_listed(others)}: rename {training!r} if it is a class, "
            "else move the other folders away"
        )
    return _one_each(root, kinds)


def images_below(root: Path, below: str) -> Found:
    """Every image file below a folder of the root; of links, only those to files inside the root are followed."""
    home = root.resolve()
    found = Found([], [])
    folders = [below]
    while folders:
        folder = folders.pop()
        for entry in entries(root, folder):
            name = f"{folder}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                folders.append(name)
            elif reason := _fault(entry, home):
                found.bad.append(Bad(name, reason))
            else:
                found.paths.append(name)
    found.paths.sort()
    found.bad.sort()
    return found


def entries(root: Path, below: str = "") -> list["os.DirEntry[str]"]:
    """What a folder holds, in any order, without hidden files and those that systems leave behind."""
    try:
        with os.scandir(root / below) as found:
            return [entry for entry in found if entry.name[0] != "." and entry.name.lower() not in LEFT_BY_SYSTEMS]
    except OSError as error:
        raise InputError(
            f"cannot list the folder {root / below}: {error.strerror}; give one that can be read"
        ) from error


def listed(root: Path, paths: Sequence[str], labels: Sequence[int], classes: Sequence[str]) -> Pictures:
    """Files below the root as a labelled set."""
    return Pictures(paths, Files(root, paths), torch.tensor(labels, dtype=torch.int64), tuple(classes))


def is_there(path: Path) -> bool:
    """Whether a file or folder can be read; never an error."""
    return os.access(path, os.R_OK)


def require(root: Path, title: str, names: Iterable[str], layout: str) -> None:
    """All that is missing of a published layout, in one error."""
    if missing := [name for name in names if not is_there(root / name)]:
        raise InputError(
            f"{root} is not {title} as it is published: {_listed(missing)} missing; it should have {layout}"
        )


def lines_of(path: Path) -> list[str]:
    """The lines of a text file, the first is line 1; bytes that are no UTF-8 are kept as os.fsdecode does."""
    try:
        text = path.read_bytes().decode("utf-8-sig", "surrogateescape")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; a text file is needed") from error
    return [line.rstrip("\r") for line in text.split("\n")]


def _of_classes(root: Path, below: str, known: tuple[str, ...] | None) -> tuple[Pictures, list[Bad]]:
    """The images in the class folders of one split; `known`: the classes of training, where this is another split."""
    folders, bad = _class_folders(root, below)
    if known is None:
        _check_classes(root / below, folders)
    elif unknown := sorted(set(folders) - set(known)):
        raise InputError(
            f"{root / below} has the class {unknown[0]!a}, unknown in training; {nearest(unknown[0], known)}"
        )
    classes = tuple(folders) if known is None else known
    samples: list[tuple[str, int]] = []
    empty: list[str] = []
    instead: list[Bad] = []  # what empty classes have
    for name in folders:
        label = classes.index(name)
        found = images_below(root, f"{below}/{name}" if below else name)
        samples += [(path, label) for path in found.paths]
        bad += found.bad
        if not found.paths:
            empty.append(name)
            instead += found.bad
    if empty and known is None:
        raise InputError(
            f"{root / below} has no images of {_listed(empty)}: fill or remove the folder{_cause(instead)}"
        )
    if not samples:
        raise InputError(f"{root / below} has no images: fill or remove the folder{_cause(bad)}")
    samples.sort()
    return listed(root, [path for path, _ in samples], [label for _, label in samples], classes), bad


def _class_folders(root: Path, below: str) -> tuple[list[str], list[Bad]]:
    home = root.resolve()
    names: list[str] = []
    bad: list[Bad] = []
    for entry in entries(root, below):
        name = f"{below}/{entry.name}" if below else entry.name
        if entry.is_dir(follow_symlinks=False):
            names.append(entry.name)
        elif _suffix(entry.name) in SUFFIXES:
            bad.append(Bad(name, "it lies in no class folder"))
        elif entry.is_symlink() and (reason := _link_fault(entry, home)):
            bad.append(Bad(name, reason))
    return sorted(names), sorted(bad)


def _check_classes(folder: Path, names: Sequence[str]) -> None:
    if len(names) < 2:
        found = f"only one class folder, {names[0]!r}" if names else "no class folders"
        raise InputError(f"{folder} has {found}, and at least two are needed; {LAYOUT}")
    seen: dict[str, str] = {}
    for name in names:
        twin = seen.setdefault(unicodedata.normalize("NFC", name).casefold(), name)
        if twin != name:
            raise InputError(
                f"{folder} has the classes {twin!a} and {name!a}, which many systems take for one; "
                "merge them or rename one"
            )


def _one_each(root: Path, kinds: dict[str, str]) -> dict[str, str]:
    """Kind -> folder; two folders of a kind, or one that is another's, are refused."""
    splits: dict[str, str] = {}
    for name, kind in kinds.items():
        if kind in splits:
            raise InputError(f"{root} has both {splits[kind]!r} and {name!r}: keep one of them")
        if not (root / name).is_dir() or root.resolve() not in (root / name).resolve().parents:
            raise InputError(
                f"{root / name} is a link that does not lead to a folder inside {root}: copy the folder there"
            )
        for other in splits.values():
            if (root / name).samefile(root / other):
                raise InputError(
                    f"{root / name} and {root / other} are the same folder: training must not see the test set"
                )
        splits[kind] = name
    return splits


def _may_be_folder(entry: "os.DirEntry[str]") -> bool:
    return entry.is_dir(follow_symlinks=False) or (
        entry.is_symlink() and (entry.name.lower() in SPLITS or Path(entry.path).is_dir())
    )


def _fault(entry: "os.DirEntry[str]", home: Path) -> str | None:
    """Why a file cannot be a sample; it is not opened, and only links are looked up."""
    if entry.is_symlink():
        if reason := _link_fault(entry, home):
            return reason
    elif not entry.is_file(follow_symlinks=False):
        return "it is a pipe, a socket or a device"
    suffix = _suffix(entry.name)
    if suffix in SUFFIXES:
        return None
    return f"it is no image file ({f'suffix {suffix}' if suffix else 'no suffix'})"


def _link_fault(entry: "os.DirEntry[str]", home: Path) -> str | None:
    try:
        target = Path(entry.path).resolve(strict=True)
    except (OSError, RuntimeError):  # a loop is one or the other, as Python's version has it
        return "it is a link that leads nowhere or in a circle"
    if home not in (target, *target.parents):
        return "it is a link that leads out of the folder; copy the file there"
    if target.is_dir():
        return "it is a link to a folder; only links to files are followed"
    return None if target.is_file() else "it is a link to a pipe, a socket or a device"


def _suffix(name: str) -> str:
    stem, dot, end = name.rpartition(".")
    return f".{end.lower()}" if stem and dot else ""


def _listed(names: Iterable[str]) -> str:
    shown = [repr(name) for name in names]
    return ", ".join(shown[:5]) + (f" and {len(shown) - 5:,} more" if len(shown) > 5 else "")


def _cause(bad: Sequence[Bad]) -> str:
    return f" ({bad[0].name!r}: {bad[0].reason})" if bad else ""
