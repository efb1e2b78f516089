"""Read published datasets: those embedded in the package, Tiny ImageNet, ANIMAL-10N and Clothing1M.

The package contains a subset of Fashion-MNIST and one of clothing-dataset-small.

Each dataset has a function that recognises its folder and one that lists it; `labelsieve.data.load` registers them.
`PUBLISHED` maps the names that users may pass to the files and folders that the authors distribute. CIFAR is in
`labelsieve.data.cifar`.
"""

import csv
import hashlib
import io
import os
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from labelsieve.data.arrays import image_tensor, label_tensor
from labelsieve.data.cifar import check_records
from labelsieve.data.classes import Array
from labelsieve.data.folder import find_images, is_readable, labelled_files, require_paths, text_lines, visible_entries
from labelsieve.data.images import Frame, Pictures, Unusable
from labelsieve.data.sets import Labelled, Listing
from labelsieve.errors import InputError

DATA_VARIABLE = "LABELSIEVE_DATA"  # environment variable: folder of the published datasets
PUBLISHED = {
    "cifar10": ("cifar-10-batches-py", "cifar-10-batches-bin", "cifar-10-python.tar.gz", "cifar-10-binary.tar.gz"),
    "cifar100": ("cifar-100-python", "cifar-100-binary", "cifar-100-python.tar.gz", "cifar-100-binary.tar.gz"),
    "tiny-imagenet": ("tiny-imagenet-200",),
    "animal10n": ("animal10n", "animal-10n", "ANIMAL-10N"),
    "clothing1m": ("clothing1m", "Clothing1M"),
}


def locate_published(name: str) -> Path:
    """Return the file or folder of a published dataset below $LABELSIEVE_DATA, or below `data`."""
    folder = Path(os.environ.get(DATA_VARIABLE, "data"))
    for known in PUBLISHED[name]:
        if (folder / known).exists():
            return folder / known
    raise InputError(
        f"no {name} in {folder}: put {PUBLISHED[name][0]} there as published (docs/data.md), "
        f"or set {DATA_VARIABLE} to its folder"
    )


# Fashion-MNIST

FASHION_FILE = Path(__file__).with_name("fashion_mnist.npz")
FASHION_DIGEST = "10bd6e32a3d057c3c94fa3468ad514456a4039eb4c8518e79759dce7b6f28699"
FASHION_CLASSES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)


def read_fashion() -> Listing:
    """Read the embedded subset of Fashion-MNIST."""
    with np.load(FASHION_FILE, allow_pickle=False) as file:
        arrays = dict(file)
    if array_digest(arrays) != FASHION_DIGEST:
        raise InputError(f"{FASHION_FILE} is damaged: install labelsieve again")
    train, test = (
        Labelled(
            image_tensor(arrays[f"{split}_images"], split),
            label_tensor(arrays[f"{split}_labels"], len(FASHION_CLASSES), split),
            FASHION_CLASSES,
        )
        for split in ("train", "test")
    )
    return Listing(train, test, kind="embedded images")


def array_digest(arrays: Mapping[str, Array]) -> str:
    """Return the SHA-256 digest of decoded arrays, which does not depend on the compression."""
    sha = hashlib.sha256()
    for name in sorted(arrays):
        sha.update(f"{name} {arrays[name].shape} {arrays[name].dtype}".encode())
        sha.update(np.ascontiguousarray(arrays[name]).tobytes())
    return sha.hexdigest()


# Photographs of clothes

PHOTOS_FILE = Path(__file__).with_name("photos.zip")
PHOTOS_DIGEST = "97ac8ab88e28f27d04b18558eac567300fc45401b7d72f402fc5cff5b21cf0fd"
EMBEDDED_DIGESTS = {"fashion": FASHION_DIGEST, "photos": PHOTOS_DIGEST}
PHOTOS_TABLE = "photos.csv"  # in the archive: path, class and split of each photograph


@dataclass(frozen=True)
class BytesReader:
    """Return encoded images that are in memory."""

    contents: Sequence[bytes]

    def __call__(self, index: int) -> bytes:
        return self.contents[index]


def read_photos() -> Listing:
    """List the embedded photographs, a subset of clothing-dataset-small."""
    try:
        with zipfile.ZipFile(PHOTOS_FILE) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile):
        members = {}
    if photos_digest(members) != PHOTOS_DIGEST:
        raise InputError(f"{PHOTOS_FILE} is damaged: install labelsieve again")
    rows = list(csv.DictReader(io.StringIO(members[PHOTOS_TABLE].decode())))
    classes = tuple(sorted({row["label"] for row in rows}))
    train, test = (
        _photos_of([row for row in rows if row["split"] == split], members, classes) for split in ("train", "test")
    )
    return Listing(train, test, kind="embedded photographs")


def photos_digest(members: Mapping[str, bytes]) -> str:
    """Return the SHA-256 digest of the files of an archive, which does not depend on how they are packed."""
    sha = hashlib.sha256()
    for name in sorted(members):
        sha.update(f"{name} {len(members[name])}\n".encode())
        sha.update(members[name])
    return sha.hexdigest()


def _photos_of(rows: Sequence[Mapping[str, str]], members: Mapping[str, bytes], classes: tuple[str, ...]) -> Pictures:
    names = [row["image"] for row in rows]
    labels = torch.tensor([classes.index(row["label"]) for row in rows])
    return Pictures(names, BytesReader([members[name] for name in names]), labels, classes)


# Tiny ImageNet

TINY_IMAGENET = "Tiny-ImageNet"
TINY_FRAME = Frame(64, 64, 3)
TINY_LAYOUT = "wnids.txt, words.txt, train/<wnid>/images, val/images and val/val_annotations.txt"
ANNOTATIONS = "val/val_annotations.txt"
WNID = re.compile(r"n\d{8}", re.ASCII)


def is_tiny_imagenet(root: Path) -> bool:
    """Return whether a folder looks like Tiny ImageNet; files may be missing."""
    return is_readable(root / "wnids.txt") and is_readable(root / "train")


def read_tiny_imagenet(root: Path) -> Listing:
    """List the training set, and the validation set as test set; the classes are the sorted wnids."""
    require_paths(root, TINY_IMAGENET, ("wnids.txt", "train", "val/images", ANNOTATIONS), TINY_LAYOUT)
    wnids = _read_wnids(root / "wnids.txt")
    require_paths(root, TINY_IMAGENET, (f"train/{wnid}/images" for wnid in wnids), TINY_LAYOUT)
    classes = _wnid_names(root / "words.txt", wnids)
    train, unusable = _tiny_train(root, wnids, classes)
    test, more = _tiny_test(root, wnids, classes)
    return Listing(train, test, None, sorted(unusable + more), TINY_IMAGENET, TINY_FRAME)


def subsampled(images: Tensor) -> Tensor:
    """Return every second pixel of every second row, (..., H, W) -> (..., H/2, W/2).

    There is no anti-aliasing: the paper reduces 64×64 to 32×32 with TensorFlow 1's bilinear resize, which samples
    source position 2i for row i. At exactly 2:1 this is a pixel, so no other pixel has any weight.
    """
    return images[..., ::2, ::2]


def _tiny_train(root: Path, wnids: Sequence[str], classes: Sequence[str]) -> tuple[Pictures, list[Unusable]]:
    paths: list[str] = []
    labels: list[int] = []
    unusable: list[Unusable] = []
    for label, wnid in enumerate(wnids):  # sorted, so that the paths are sorted
        found = find_images(root, f"train/{wnid}/images")
        if not found.paths:
            raise InputError(f"{root / 'train' / wnid / 'images'} has no images; extract {TINY_IMAGENET} again")
        paths += found.paths
        labels += [label] * len(found.paths)
        unusable += found.unusable
    return labelled_files(root, paths, labels, classes), unusable


def _tiny_test(root: Path, wnids: Sequence[str], classes: Sequence[str]) -> tuple[Pictures, list[Unusable]]:
    """Match images and annotations by name; those without a counterpart are unusable."""
    found = find_images(root, "val/images")
    label_of = _read_annotations(root / ANNOTATIONS, {wnid: label for label, wnid in enumerate(wnids)})
    paths = [path for path in found.paths if path in label_of]
    if not paths:
        raise InputError(
            f"no image in {root / 'val/images'} has an annotation in {ANNOTATIONS}; extract {TINY_IMAGENET} again"
        )
    unlabelled = [Unusable(path, f"no line in {ANNOTATIONS}") for path in found.paths if path not in label_of]
    known = {*found.paths, *(each.name for each in found.unusable)}
    missing = [Unusable(path, f"listed in {ANNOTATIONS}, but missing") for path in label_of if path not in known]
    return labelled_files(root, paths, [label_of[path] for path in paths], classes), [
        *found.unusable,
        *unlabelled,
        *missing,
    ]


def _read_wnids(path: Path) -> list[str]:
    wnids = {line.strip() for line in text_lines(path)} - {""}
    wrong = sorted(wnid for wnid in wnids if not WNID.fullmatch(wnid))
    if wrong or len(wnids) < 2:
        found = f"{wrong[0][:60]!r} is not a wnid such as n01443537" if wrong else f"{len(wnids)} classes, need two"
        raise InputError(f"{path}: {found}; download {TINY_IMAGENET} again")
    return sorted(wnids)


def _wnid_names(path: Path, wnids: Sequence[str]) -> list[str]:
    """Return each wnid with the first of its words, if words.txt has it."""
    if not is_readable(path):
        return list(wnids)
    rows = (line.partition("\t") for line in text_lines(path))
    words = {wnid: text.partition(",")[0].strip() for wnid, _, text in rows}
    return [f"{wnid} {words.get(wnid, '')}".strip() for wnid in wnids]


def _read_annotations(path: Path, index: dict[str, int]) -> dict[str, int]:
    """Return image -> label; the boxes are ignored."""
    labels: dict[str, int] = {}
    for number, line in enumerate(text_lines(path), 1):
        if not line.strip():
            continue
        name, _, rest = line.partition("\t")
        wnid = rest.split("\t")[0]
        if not name or wnid not in index:
            raise InputError(
                f"{path}:{number}: expected a file name, a tab and a wnid of wnids.txt, got {line[:60]!r}; "
                f"download {TINY_IMAGENET} again"
            )
        if labels.setdefault(f"val/images/{name}", index[wnid]) != index[wnid]:
            raise InputError(f"{path}:{number}: {name[:60]!r} has another class in an earlier line; remove one")
    return labels


# ANIMAL-10N

ANIMAL_TITLE = "ANIMAL-10N"
ANIMAL_CLASSES = (
    *("cat", "lynx", "wolf", "coyote", "cheetah"),
    *("jaguar", "chimpanzee", "orangutan", "hamster", "guinea pig"),
)
ANIMAL_LAYOUT = "the folders training and testing with images named by label and number, such as 3_17.jpg"
ANIMAL_NAME = re.compile("([0-9])_")
ANIMAL_RECORD = np.dtype([("id", ">u4"), ("label", ">u4"), ("pixels", np.uint8, (3, 64, 64))])


def is_animal10n(root: Path) -> bool:
    """Return whether a folder looks like ANIMAL-10N: training and testing, with images named by label in the first."""
    if not all(is_readable(root / name) and (root / name).is_dir() for name in ("training", "testing")):
        return False
    inside = visible_entries(root, "training")
    return any(ANIMAL_NAME.match(entry.name) and not entry.is_dir(follow_symlinks=False) for entry in inside)


def read_animal10n(root: Path) -> Listing:
    """List the training set with the labels that people gave, and the test set."""
    require_paths(root, ANIMAL_TITLE, ("training", "testing"), ANIMAL_LAYOUT)
    train, unusable = _labelled_by_name(root, "training")
    test, more = _labelled_by_name(root, "testing")
    return Listing(train, test, None, sorted(unusable + more), ANIMAL_TITLE)


def _labelled_by_name(root: Path, below: str) -> tuple[Pictures, list[Unusable]]:
    paths: list[str] = []
    labels: list[int] = []
    found = find_images(root, below)
    for path in found.paths:
        if match := ANIMAL_NAME.match(path.rpartition("/")[2]):
            paths.append(path)
            labels.append(int(match[1]))
        else:
            found.unusable.append(Unusable(path, "the name does not start with a label from 0 to 9 and an underscore"))
    if not paths:
        raise InputError(f"{root / below} has no images named by label; expected {ANIMAL_LAYOUT}")
    return labelled_files(root, paths, labels, ANIMAL_CLASSES), found.unusable


def is_animal10n_binary(path: Path) -> bool:
    """Return whether a folder contains .bin files of ANIMAL-10N, from their first labels and the absence of CIFAR's."""
    try:
        return not (path / "batches.meta.txt").exists() and any(_has_animal_labels(file) for file in _bin_files(path))
    except OSError:
        return False


def read_animal10n_binary(folder: Path) -> Listing:
    """Read training and test set of the binary version."""
    try:
        files = _bin_files(folder)
        train = [file for file in files if "test" not in file.name.lower()]
        test = [file for file in files if "test" in file.name.lower()]
        if not train or not test:
            missing = "test_batch.bin" if train else "data_batch_1.bin"
            raise InputError(f"{folder} has no {missing}; {ANIMAL_TITLE} needs data_batch_*.bin and test_batch.bin")
        return Listing(_read_bin(train), _read_bin(test), kind=f"{ANIMAL_TITLE}, binary")
    except OSError as error:
        raise InputError(f"cannot read {error.filename or folder}: {error.strerror or error}") from error


def _bin_files(folder: Path) -> list[Path]:
    """Return the .bin files, batch 2 before batch 10."""
    files = [file for file in folder.glob("*.bin") if file.is_file()]
    return sorted(files, key=lambda file: ([int(number) for number in re.findall(r"\d+", file.name)], file.name))


def _has_animal_labels(file: Path) -> bool:
    with file.open("rb") as stream:
        start = stream.read(10 * ANIMAL_RECORD.itemsize)
    whole = len(start) // ANIMAL_RECORD.itemsize
    return whole > 0 and bool((np.frombuffer(start, ANIMAL_RECORD, whole)["label"] < len(ANIMAL_CLASSES)).all())


def _read_bin(files: list[Path]) -> Labelled:
    images, labels = [], []
    for file in files:
        content = file.read_bytes()
        check_records(content, ANIMAL_RECORD.itemsize, file)
        found = np.frombuffer(content, ANIMAL_RECORD)
        images.append(torch.from_numpy(found["pixels"].copy()))
        labels.append(label_tensor(found["label"].astype(np.int64), len(ANIMAL_CLASSES), str(file)))
    return Labelled(torch.cat(images), torch.cat(labels), ANIMAL_CLASSES)


# Clothing1M

CLOTHING_TITLE = "Clothing1M"
CLOTHING_CLASSES = (
    *("T-Shirt", "Shirt", "Knitwear", "Chiffon", "Sweater", "Hoodie", "Windbreaker"),
    *("Jacket", "Down Coat", "Suit", "Shawl", "Dress", "Vest", "Underwear"),
)
NOISY_LABELS = "noisy_label_kv.txt"
CLEAN_LABELS = "clean_label_kv.txt"
TRAIN_KEYS = "noisy_train_key_list.txt"
VALID_KEYS = "clean_val_key_list.txt"
TEST_KEYS = "clean_test_key_list.txt"
CLOTHING_LISTS = (NOISY_LABELS, CLEAN_LABELS, TRAIN_KEYS, VALID_KEYS, TEST_KEYS)
CLOTHING_LAYOUT = f"images, and next to it or in annotations {', '.join(CLOTHING_LISTS)}"
CLOTHING_LABELS = {str(number): number for number in range(len(CLOTHING_CLASSES))}


def is_clothing1m(root: Path) -> bool:
    """Return whether a folder looks like Clothing1M; files may be missing."""
    return any(is_readable(root / _list_path(root, name)) for name in (NOISY_LABELS, TRAIN_KEYS))


def read_clothing1m(root: Path) -> Listing:
    """List the noisy training set, the clean validation set and the clean test set, in the order of the key lists.

    Missing images are reported when they are read, not here.
    """
    places = {name: _list_path(root, name) for name in CLOTHING_LISTS}
    require_paths(root, CLOTHING_TITLE, ("images", *places.values()), CLOTHING_LAYOUT)
    noisy = read_key_labels(root / places[NOISY_LABELS])
    clean = read_key_labels(root / places[CLEAN_LABELS])
    return Listing(
        train=_read_key_list(root, places[TRAIN_KEYS], noisy, NOISY_LABELS),
        test=_read_key_list(root, places[TEST_KEYS], clean, CLEAN_LABELS),
        valid=_read_key_list(root, places[VALID_KEYS], clean, CLEAN_LABELS),
        unusable=[],
        kind=CLOTHING_TITLE,
    )


def read_key_labels(path: Path) -> dict[str, int]:
    """Return path -> label, from lines such as `images/0/12/xyz.jpg 5`."""
    labels: dict[str, int] = {}
    for number, line in enumerate(text_lines(path), 1):
        cells = line.split()
        if len(cells) == 2 and (label := CLOTHING_LABELS.get(cells[1])) is not None:
            if labels.setdefault(cells[0], label) != label:
                raise InputError(f"{path}:{number}: {cells[0][:60]!r} has another label in an earlier line; remove one")
        elif cells:
            expected = f"a path, a space and a label from 0 to {len(CLOTHING_CLASSES) - 1}"
            raise InputError(f"{path}:{number}: expected {expected}, got {line[-60:]!r}")
    return labels


def _read_key_list(root: Path, place: str, labels: dict[str, int], label_file: str) -> Pictures:
    """Return the images that a key list names."""
    paths: list[str] = []
    for number, line in enumerate(text_lines(root / place), 1):
        key = line.strip()
        if not key:
            continue
        inside = key.startswith("images/") and "\0" not in key and ".." not in key.split("/")
        if not inside or key not in labels:
            fault = f"has no label in {label_file}" if inside else "is not a path below images"
            raise InputError(f"{root / place}:{number}: {key[:60]!r} {fault}; download {CLOTHING_TITLE} again")
        paths.append(key)
    if not paths:
        raise InputError(f"{root / place} lists no images; download {CLOTHING_TITLE} again")
    return labelled_files(root, paths, [labels[path] for path in paths], CLOTHING_CLASSES)


def _list_path(root: Path, name: str) -> str:
    """Return the path of a list: next to images, or in annotations."""
    below = f"annotations/{name}"
    return below if is_readable(root / below) and not is_readable(root / name) else name
