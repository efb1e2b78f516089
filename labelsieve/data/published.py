"""published: datasets that the field knows by name, found where a person keeps them."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelsieve.data.arrays import label_tensor
from labelsieve.data.folder import Listing, entries, images_below, is_there, lines_of, listed, require
from labelsieve.data.images import Bad, Frame, Pictures
from labelsieve.data.sets import Labelled
from labelsieve.errors import InputError

FOLDER = "LABELSIEVE_DATA"  # environment variable: the folder that holds them
PUBLISHED = {  # what each may be called there, as its authors pack it
    "cifar10": (
        "cifar-10-batches-py",
        "cifar-10-batches-bin",
        "cifar-10-python.tar.gz",
        "cifar-10-binary.tar.gz",
    ),
    "cifar100": ("cifar-100-python", "cifar-100-binary", "cifar-100-python.tar.gz", "cifar-100-binary.tar.gz"),
    "tiny-imagenet": ("tiny-imagenet-200",),
    "animal10n": ("animal10n", "animal-10n", "ANIMAL-10N"),
    "clothing1m": ("clothing1m", "Clothing1M"),
}


def where(name: str) -> Path:
    """The file or folder of a published dataset."""
    folder = Path(os.environ.get(FOLDER, "data"))
    for known in PUBLISHED[name]:
        if (folder / known).exists():
            return folder / known
    raise InputError(
        f"no {name} in {folder}: put {PUBLISHED[name][0]} there as its authors publish it (docs/data.md), "
        f"or name another folder in {FOLDER}"
    )


TINY_FRAME = Frame(64, 64, 3)
TINY_TITLE = "Tiny ImageNet"
TINY_LAYOUT = "wnids.txt, words.txt, train/<wnid>/images, val/images and val/val_annotations.txt"
ANNOTATIONS = "val/val_annotations.txt"
WNID = re.compile(r"n\d{8}", re.ASCII)


def is_tiny_imagenet(root: Path) -> bool:
    """Whether a folder looks like it; reading says what is missing."""
    return is_there(root / "wnids.txt") and is_there(root / "train")


def read_tiny_imagenet(root: Path) -> Listing:
    """Training set, and the validation set as test set; the classes are the sorted wnids."""
    require(root, TINY_TITLE, ("wnids.txt", "train", "val/images", ANNOTATIONS), TINY_LAYOUT)
    wnids = _wnids(root / "wnids.txt")
    require(root, TINY_TITLE, (f"train/{wnid}/images" for wnid in wnids), TINY_LAYOUT)
    classes = _class_names(root / "words.txt", wnids)
    train, bad = _train(root, wnids, classes)
    test, more = _test(root, wnids, classes)
    return Listing(train, test, None, sorted(bad + more))


def subsampled(images: Tensor) -> Tensor:
    """Half the height and width, every second pixel, (..., H, W) -> (..., H/2, W/2).

    There is no anti-aliasing: the paper's 64×64 -> 32×32 is TensorFlow 1's bilinear resize, which looks at the source
    position 2i for row i; at exactly 2:1 that falls on a pixel, so that no other has any weight.
    """
    return images[..., ::2, ::2]


def _train(root: Path, wnids: Sequence[str], classes: Sequence[str]) -> tuple[Pictures, list[Bad]]:
    paths: list[str] = []
    labels: list[int] = []
    bad: list[Bad] = []
    for label, wnid in enumerate(wnids):  # sorted, so that the paths are sorted too
        found = images_below(root, f"train/{wnid}/images")
        if not found.paths:
            raise InputError(f"{root / 'train' / wnid / 'images'} has no images; unpack {TINY_TITLE} again")
        paths += found.paths
        labels += [label] * len(found.paths)
        bad += found.bad
    return listed(root, paths, labels, classes), bad


def _test(root: Path, wnids: Sequence[str], classes: Sequence[str]) -> tuple[Pictures, list[Bad]]:
    """Images and annotations are matched by name; what only one of them has is bad."""
    found = images_below(root, "val/images")
    label_of = _annotations(root / ANNOTATIONS, {wnid: label for label, wnid in enumerate(wnids)})
    paths = [path for path in found.paths if path in label_of]
    if not paths:
        raise InputError(
            f"none of the images in {root / 'val/images'} has a line in {ANNOTATIONS}; unpack {TINY_TITLE} again"
        )
    unlabelled = [Bad(path, f"it has no line in {ANNOTATIONS}") for path in found.paths if path not in label_of]
    known = {*found.paths, *(bad.name for bad in found.bad)}
    gone = [Bad(path, f"it is in {ANNOTATIONS} but not there") for path in label_of if path not in known]
    return listed(root, paths, [label_of[path] for path in paths], classes), found.bad + unlabelled + gone


def _wnids(path: Path) -> list[str]:
    wnids: set[str] = set()
    for number, line in enumerate(lines_of(path), 1):
        wnid = line.strip()
        if not wnid:
            continue
        if not WNID.fullmatch(wnid):
            raise InputError(
                f"{path}:{number}: {wnid[:60]!r} is no wnid such as n01443537; download {TINY_TITLE} again"
            )
        wnids.add(wnid)
    if len(wnids) < 2:
        raise InputError(f"{path} names {len(wnids)} classes, and at least two are needed; download {TINY_TITLE} again")
    return sorted(wnids)


def _class_names(path: Path, wnids: Sequence[str]) -> list[str]:
    """The wnid with the first of its words, where words.txt has them."""
    if not is_there(path):
        return list(wnids)
    rows = (line.partition("\t") for line in lines_of(path))
    words = {wnid: text.partition(",")[0].strip() for wnid, _, text in rows}
    return [f"{wnid} {words.get(wnid, '')}".strip() for wnid in wnids]


def _annotations(path: Path, number_of: dict[str, int]) -> dict[str, int]:
    """Image -> label; the boxes are not used."""
    labels: dict[str, int] = {}
    for number, line in enumerate(lines_of(path), 1):
        if not line.strip():
            continue
        cells = line.split("\t")
        if len(cells) < 2 or not cells[0]:
            raise InputError(f"{path}:{number}: a file name, a tab and a wnid are needed, got {line[:60]!r}")
        if cells[1] not in number_of:
            raise InputError(f"{path}:{number}: {cells[1][:60]!r} is not in wnids.txt; download {TINY_TITLE} again")
        label = number_of[cells[1]]
        if labels.setdefault(f"val/images/{cells[0]}", label) != label:
            raise InputError(f"{path}:{number}: {cells[0][:60]!r} has another class further up; keep one of the lines")
    return labels


ANIMAL_CLASSES = (
    "cat",
    "lynx",
    "wolf",
    "coyote",
    "cheetah",
    "jaguar",
    "chimpanzee",
    "orangutan",
    "hamster",
    "guinea pig",
)
ANIMAL_TITLE = "ANIMAL-10N"
ANIMAL_LAYOUT = "the folders training and testing with images named by label and number, such as 3_17.jpg"
NAME = re.compile("([0-9])_")


def is_animal10n(root: Path) -> bool:
    """Whether a folder looks like it: training and testing, and images named by label in the first."""
    if not all(is_there(root / name) and (root / name).is_dir() for name in ("training", "testing")):
        return False
    inside = entries(root, "training")
    return any(NAME.match(entry.name) and not entry.is_dir(follow_symlinks=False) for entry in inside)


def read_animal10n(root: Path) -> Listing:
    """Training set with the labels that people gave, and test set."""
    require(root, ANIMAL_TITLE, ("training", "testing"), ANIMAL_LAYOUT)
    train, bad = _labelled_by_name(root, "training")
    test, more = _labelled_by_name(root, "testing")
    return Listing(train, test, None, sorted(bad + more))


def _labelled_by_name(root: Path, below: str) -> tuple[Pictures, list[Bad]]:
    paths: list[str] = []
    labels: list[int] = []
    found = images_below(root, below)
    bad = found.bad
    for path in found.paths:
        if match := NAME.match(path.rpartition("/")[2]):
            paths.append(path)
            labels.append(int(match[1]))
        else:
            bad.append(Bad(path, "its name does not start with a label from 0 to 9 and an underscore"))
    if not paths:
        raise InputError(f"{root / below} has no images named by label; {root} should have {ANIMAL_LAYOUT}")
    return listed(root, paths, labels, ANIMAL_CLASSES), bad


SIDE = 64
RECORD = np.dtype([("id", ">u4"), ("label", ">u4"), ("pixels", np.uint8, (3, SIDE, SIDE))])


def is_animal10n_binary(path: Path) -> bool:
    """Whether a folder has .bin files of such records, from their first labels; CIFAR's lie beside names of classes."""
    try:
        return not (path / "batches.meta.txt").exists() and any(_starts_right(file) for file in _files(path))
    except OSError:
        return False


def read_animal10n_binary(folder: Path) -> tuple[Labelled, Labelled]:
    """Training and test set."""
    try:
        files = _files(folder)
        train = [file for file in files if "test" not in file.name.lower()]
        test = [file for file in files if "test" in file.name.lower()]
        if not train or not test:
            missing = "test_batch.bin" if train else "data_batch_1.bin"
            raise InputError(f"{folder} has no {missing}; ANIMAL-10N needs data_batch_*.bin and test_batch.bin")
        return _read(train), _read(test)
    except OSError as error:
        raise InputError(f"cannot read {error.filename or folder}: {error.strerror or error}") from error


def records(content: bytes, source: str) -> np.ndarray[Any, Any]:
    """(n) records of id, label and pixels (3, 64, 64)."""
    count, rest = divmod(len(content), RECORD.itemsize)
    if rest:
        raise InputError(
            f"{source} is cut off in record {count}: its {len(content):,} bytes are no whole number of records "
            f"of {RECORD.itemsize:,}; download it again"
        )
    if not count:
        raise InputError(f"{source} is empty; download it again")
    return np.frombuffer(content, RECORD)


def _files(folder: Path) -> list[Path]:
    """The .bin files, batch 2 before batch 10."""
    files = [file for file in folder.glob("*.bin") if file.is_file()]
    return sorted(files, key=lambda file: ([int(number) for number in re.findall(r"\d+", file.name)], file.name))


def _starts_right(file: Path) -> bool:
    with file.open("rb") as stream:
        start = stream.read(10 * RECORD.itemsize)
    whole = len(start) // RECORD.itemsize
    return whole > 0 and bool((np.frombuffer(start, RECORD, whole)["label"] < len(ANIMAL_CLASSES)).all())


def _read(files: list[Path]) -> Labelled:
    parts = [_part(file) for file in files]
    return Labelled(
        torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts]), ANIMAL_CLASSES
    )


def _part(file: Path) -> Labelled:
    found = records(file.read_bytes(), str(file))
    labels = label_tensor(found["label"].astype(np.int64), len(ANIMAL_CLASSES), str(file))
    return Labelled(torch.from_numpy(found["pixels"].copy()), labels, ANIMAL_CLASSES)


CLOTHING_CLASSES = (
    "T-Shirt",
    "Shirt",
    "Knitwear",
    "Chiffon",
    "Sweater",
    "Hoodie",
    "Windbreaker",
    "Jacket",
    "Down Coat",
    "Suit",
    "Shawl",
    "Dress",
    "Vest",
    "Underwear",
)
CLOTHING_TITLE = "Clothing1M"
NOISY_LABELS = "noisy_label_kv.txt"
CLEAN_LABELS = "clean_label_kv.txt"
TRAIN_KEYS = "noisy_train_key_list.txt"
VALID_KEYS = "clean_val_key_list.txt"
TEST_KEYS = "clean_test_key_list.txt"
LISTS = (NOISY_LABELS, CLEAN_LABELS, TRAIN_KEYS, VALID_KEYS, TEST_KEYS)
CLOTHING_LAYOUT = f"images, and beside it or in annotations {', '.join(LISTS)}"
NUMBERS = {str(number): number for number in range(len(CLOTHING_CLASSES))}


def is_clothing1m(root: Path) -> bool:
    """Whether a folder looks like it; reading says what is missing."""
    return any(is_there(root / _place(root, name)) for name in (NOISY_LABELS, TRAIN_KEYS))


def read_clothing1m(root: Path) -> Listing:
    """Noisy training set, clean validation set and clean test set, in the order of the key lists.

    Files are not looked up: a missing one shows when it is read.
    """
    places = {name: _place(root, name) for name in LISTS}
    require(root, CLOTHING_TITLE, ("images", *places.values()), CLOTHING_LAYOUT)
    noisy = labels_in(root / places[NOISY_LABELS])
    clean = labels_in(root / places[CLEAN_LABELS])
    return Listing(
        train=_keyed(root, places[TRAIN_KEYS], noisy, NOISY_LABELS),
        test=_keyed(root, places[TEST_KEYS], clean, CLEAN_LABELS),
        valid=_keyed(root, places[VALID_KEYS], clean, CLEAN_LABELS),
        bad=[],
    )


def labels_in(path: Path) -> dict[str, int]:
    """Key -> label, from lines such as `images/0/12/xyz.jpg 5`."""
    labels: dict[str, int] = {}
    for number, line in enumerate(lines_of(path), 1):
        cells = line.split()
        if len(cells) == 2 and (label := NUMBERS.get(cells[1])) is not None:
            if labels.setdefault(cells[0], label) != label:
                raise InputError(
                    f"{path}:{number}: {cells[0][:60]!r} has another label further up; keep one of the lines"
                )
        elif cells:
            raise InputError(f"{path}:{number}: {_what_is_wrong(line, cells)}")
    return labels


def _keyed(root: Path, place: str, labels: dict[str, int], source: str) -> Pictures:
    """The images that a key list names."""
    paths: list[str] = []
    for number, line in enumerate(lines_of(root / place), 1):
        key = line.strip()
        if not key:
            continue
        if key not in labels:
            raise InputError(
                f"{root / place}:{number}: {key[:60]!r} has no label in {source}; download {CLOTHING_TITLE} again"
            )
        if not key.startswith("images/") or "\0" in key or ".." in key.split("/"):
            raise InputError(
                f"{root / place}:{number}: {key[:60]!r} is no path below images; download {CLOTHING_TITLE} again"
            )
        paths.append(key)
    if not paths:
        raise InputError(f"{root / place} names no images; download {CLOTHING_TITLE} again")
    return listed(root, paths, [labels[path] for path in paths], CLOTHING_CLASSES)


def _place(root: Path, name: str) -> str:
    """Where a list lies: beside images, or in annotations."""
    below = f"annotations/{name}"
    return below if is_there(root / below) and not is_there(root / name) else name


def _what_is_wrong(line: str, cells: list[str]) -> str:
    if len(cells) != 2:
        return f"a path, a space and a label are needed, got {line[:60]!r}"
    return f"the label must be 0 to {len(CLOTHING_CLASSES) - 1}, got {cells[1][:20]!r}"
