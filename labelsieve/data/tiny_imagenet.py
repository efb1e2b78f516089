"""Tiny ImageNet as it is published: 200 classes, 64×64. Test labels are secret, so the validation set is the test set.

Some of its images are gray, and all are to be brought to RGB: `FRAME`.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from labelsieve.data.decode import Frame
from labelsieve.data.image_folder import Listing, images_below, is_there, lines_of, listed, require
from labelsieve.data.pictures import Bad, Pictures
from labelsieve.errors import InputError

FRAME = Frame(64, 64, 3)
TITLE = "Tiny ImageNet"
LAYOUT = "wnids.txt, words.txt, train/<wnid>/images, val/images and val/val_annotations.txt"
ANNOTATIONS = "val/val_annotations.txt"
WNID = re.compile(r"n\d{8}", re.ASCII)


def is_tiny_imagenet(root: Path) -> bool:
    """Whether a folder looks like it; reading says what is missing."""
    return is_there(root / "wnids.txt") and is_there(root / "train")


def read_tiny_imagenet(root: Path) -> Listing:
    """Training set, and the validation set as test set; the classes are the sorted wnids."""
    require(root, TITLE, ("wnids.txt", "train", "val/images", ANNOTATIONS), LAYOUT)
    wnids = _wnids(root / "wnids.txt")
    require(root, TITLE, (f"train/{wnid}/images" for wnid in wnids), LAYOUT)
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
            raise InputError(f"{root / 'train' / wnid / 'images'} has no images; unpack {TITLE} again")
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
            f"none of the images in {root / 'val/images'} has a line in {ANNOTATIONS}; unpack {TITLE} again"
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
            raise InputError(f"{path}:{number}: {wnid[:60]!r} is no wnid such as n01443537; download {TITLE} again")
        wnids.add(wnid)
    if len(wnids) < 2:
        raise InputError(f"{path} names {len(wnids)} classes, and at least two are needed; download {TITLE} again")
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
            raise InputError(f"{path}:{number}: {cells[1][:60]!r} is not in wnids.txt; download {TITLE} again")
        label = number_of[cells[1]]
        if labels.setdefault(f"val/images/{cells[0]}", label) != label:
            raise InputError(f"{path}:{number}: {cells[0][:60]!r} has another class further up; keep one of the lines")
    return labels
