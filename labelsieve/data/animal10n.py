"""ANIMAL-10N as it is published: the label of an image is the number before the first underscore of its name."""

import re
from pathlib import Path

from labelsieve.data.image_folder import Listing, entries, images_below, is_there, listed, require
from labelsieve.data.pictures import Bad, Pictures
from labelsieve.errors import InputError

CLASSES = (
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
TITLE = "ANIMAL-10N"
LAYOUT = "the folders training and testing with images named by label and number, such as 3_17.jpg"
NAME = re.compile("([0-9])_")


def is_animal10n(root: Path) -> bool:
    """Whether a folder looks like it: training and testing, and images named by label in the first."""
    if not all(is_there(root / name) and (root / name).is_dir() for name in ("training", "testing")):
        return False
    inside = entries(root, "training")
    return any(NAME.match(entry.name) and not entry.is_dir(follow_symlinks=False) for entry in inside)


def read_animal10n(root: Path) -> Listing:
    """Training set with the labels that people gave, and test set."""
    require(root, TITLE, ("training", "testing"), LAYOUT)
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
        raise InputError(f"{root / below} has no images named by label; {root} should have {LAYOUT}")
    return listed(root, paths, labels, CLASSES), bad
