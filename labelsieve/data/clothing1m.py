"""Clothing1M as it is published: a million images with labels from their shops' pages, some with labels by people.

It trains on the noisy labels, and is validated and tested on the clean ones.
"""

from pathlib import Path

from labelsieve.data.image_folder import Listing, is_there, lines_of, listed, require
from labelsieve.data.pictures import Pictures
from labelsieve.errors import InputError

CLASSES = (
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
TITLE = "Clothing1M"
NOISY_LABELS = "noisy_label_kv.txt"
CLEAN_LABELS = "clean_label_kv.txt"
TRAIN_KEYS = "noisy_train_key_list.txt"
VALID_KEYS = "clean_val_key_list.txt"
TEST_KEYS = "clean_test_key_list.txt"
LISTS = (NOISY_LABELS, CLEAN_LABELS, TRAIN_KEYS, VALID_KEYS, TEST_KEYS)
LAYOUT = f"images, and beside it or in annotations {', '.join(LISTS)}"
NUMBERS = {str(number): number for number in range(len(CLASSES))}


def is_clothing1m(root: Path) -> bool:
    """Whether a folder looks like it; reading says what is missing."""
    return any(is_there(root / _place(root, name)) for name in (NOISY_LABELS, TRAIN_KEYS))


def read_clothing1m(root: Path) -> Listing:
    """Noisy training set, clean validation set and clean test set, in the order of the key lists.

    Files are not looked up: a missing one shows when it is read.
    """
    places = {name: _place(root, name) for name in LISTS}
    require(root, TITLE, ("images", *places.values()), LAYOUT)
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
            raise InputError(f"{root / place}:{number}: {key[:60]!r} has no label in {source}; download {TITLE} again")
        if not key.startswith("images/") or "\0" in key or ".." in key.split("/"):
            raise InputError(f"{root / place}:{number}: {key[:60]!r} is no path below images; download {TITLE} again")
        paths.append(key)
    if not paths:
        raise InputError(f"{root / place} names no images; download {TITLE} again")
    return listed(root, paths, [labels[path] for path in paths], CLASSES)


def _place(root: Path, name: str) -> str:
    """Where a list lies: beside images, or in annotations."""
    below = f"annotations/{name}"
    return below if is_there(root / below) and not is_there(root / name) else name


def _what_is_wrong(line: str, cells: list[str]) -> str:
    if len(cells) != 2:
        return f"a path, a space and a label are needed, got {line[:60]!r}"
    return f"the label must be 0 to {len(CLASSES) - 1}, got {cells[1][:20]!r}"
