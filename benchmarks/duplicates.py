"""Near-duplicates and outliers among photographs: what is found of altered copies and of pictures of something else.

python -m benchmarks.duplicates NAME PHOTOS OTHER [--draws 3] [--work FOLDER]

PHOTOS is a folder of images with one folder per class, OTHER any folder of images that belong to none of these classes.
For each alteration, 30 photographs are copied, altered and given another label. For the outliers, 20 pictures of OTHER,
of noise and of stripes are added one kind at a time, with labels drawn at random. Each kind is drawn several times.
cleanlab's Datalab runs on the same features if it is installed. Writes benchmarks/results/duplicates.json, in which
NAME is replaced, and prints its tables.
"""

import argparse
import contextlib
import importlib.util
import io
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from labelsieve.audit.guesses import Array
from labelsieve.data import ReadOptions
from labelsieve.data.folder import IMAGE_SUFFIXES
from labelsieve.features.backbones import Backbone, find_backbone
from labelsieve.features.embed import load_embedded
from labelsieve.features.neighbours import find_other_issues
from labelsieve.runs.tables import markdown

RECORD = Path(__file__).parent / "results" / "duplicates.json"
COPIES, STRANGERS = 30, 20
OURS, THEIRS = "labelsieve", "cleanlab Datalab"
Row = dict[str, Any]
Picture = Image.Image


class Photos(NamedTuple):
    """Features (n, F), labels (n) and files of the photographs."""

    features: Tensor
    labels: Array
    files: Sequence[Path]


class Found(NamedTuple):
    """What one system found: near-duplicates of each sample, and outliers (n)."""

    sets: Sequence[Sequence[int]]
    outliers: Array

    @property
    def near_duplicates(self) -> Array:
        """Return which samples (n) have near-duplicates."""
        return np.array([len(each) > 0 for each in self.sets])


# --- pictures


def compressed(picture: Picture, quality: int) -> Picture:
    """Return a picture after JPEG compression."""
    content = io.BytesIO()
    picture.save(content, "JPEG", quality=quality)
    return Image.open(content).convert("RGB")


def cropped(picture: Picture, share: float) -> Picture:
    """Return a picture without this share of its width and height at each edge."""
    x, y = round(share * picture.width), round(share * picture.height)
    return picture.crop((x, y, picture.width - x, picture.height - y))


ALTERATIONS: dict[str, Callable[[Picture], Picture]] = {
    "the same file": lambda picture: picture,
    "JPEG, quality 75": lambda picture: compressed(picture, 75),
    "JPEG, quality 40": lambda picture: compressed(picture, 40),
    "70% of the size": lambda picture: picture.resize((round(0.7 * picture.width), round(0.7 * picture.height))),
    "20% brighter": lambda picture: ImageEnhance.Brightness(picture).enhance(1.2),
    "mirrored": ImageOps.mirror,
    "5% cut off at each edge": lambda picture: cropped(picture, 0.05),
    "10% cut off at each edge": lambda picture: cropped(picture, 0.1),
}


def noise(rng: np.random.Generator) -> Picture:
    """Return a picture of independent random pixels."""
    return Image.fromarray(rng.integers(0, 256, (192, 192, 3), dtype=np.uint8))


def stripes(rng: np.random.Generator) -> Picture:
    """Return coloured stripes of random direction, width and colours."""
    y, x = np.mgrid[:192, :192]
    direction, width = rng.uniform(0, np.pi), rng.uniform(2, 15)
    wave = np.sin((x * np.cos(direction) + y * np.sin(direction)) / width)[..., None]
    one, other = rng.integers(0, 256, (2, 3))
    return Image.fromarray((one + (other - one) * (1 + wave) / 2).astype(np.uint8))


def embed(pictures: Sequence[Picture | Path], backbone: Backbone, cache: Path) -> Tensor:
    """Return the features of pictures, saved without loss, or of files as they are, read as a folder of images."""
    with tempfile.TemporaryDirectory() as folder:
        for place, picture in enumerate(pictures):
            target = Path(folder) / f"class {place % 2}" / f"{place:05}"
            target.parent.mkdir(exist_ok=True)
            if isinstance(picture, Path):
                target.with_suffix(picture.suffix).write_bytes(picture.read_bytes())
            else:
                picture.save(target.with_suffix(".png"))
        found = load_embedded(folder, ReadOptions(), backbone, cache=cache).train
        assert found.names is not None
        order = np.argsort([Path(name).stem for name in found.names])
        return found.images[torch.from_numpy(order)]


def image_files(folder: Path) -> list[Path]:
    """Return the images in a folder and its folders."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES)


Find = Callable[[Tensor, Array], Found]


# --- systems


def ours(features: Tensor, labels: Array) -> Found:
    """Return what labelsieve finds."""
    found = find_other_issues(features, labels)
    return Found(found.near_duplicate_sets, found.outliers)


def datalab(features: Tensor, labels: Array) -> Found:
    """Return what cleanlab's Datalab finds with its default settings."""
    from cleanlab import Datalab

    with contextlib.redirect_stdout(io.StringIO()):
        lab = Datalab({"label": labels}, label_name="label", verbosity=0)
        lab.find_issues(features=features.numpy(), issue_types={"near_duplicate": {}, "outlier": {}})
        twins, outliers = lab.get_issues("near_duplicate"), lab.get_issues("outlier")
    marked = zip(twins["is_near_duplicate_issue"], twins["near_duplicate_sets"], strict=True)
    return Found([list(each) if issue else [] for issue, each in marked], outliers["is_outlier_issue"].to_numpy())


def systems() -> dict[str, Find]:
    """Return the systems that are installed."""
    return {OURS: ours, **({THEIRS: datalab} if importlib.util.find_spec("cleanlab") else {})}


# --- figures


def copies_found(photos: Photos, before: Array, copies: Tensor, chosen: Array, labels: Array, find: Find) -> Row:
    """Return the share of copies found as near-duplicate of their photograph, and of the found ones that are copies.

    Photographs that have a near-duplicate `before` (n) the copies are added count neither as right nor as wrong.
    """
    count = len(photos.labels)
    found = find(torch.cat([photos.features, copies]), np.concatenate([photos.labels, labels]))
    hits = sum(int(one) in map(int, found.sets[count + place]) for place, one in enumerate(chosen))
    new = found.near_duplicates[:count] & ~before
    right = np.isin(np.arange(count), chosen)
    claimed = int(new.sum() + found.near_duplicates[count:].sum())
    true = int((new & right).sum()) + hits
    return {"recall": hits / len(chosen), "precision": true / claimed if claimed else 1.0}


def strangers_found(photos: Photos, strangers: Tensor, labels: Array, find: Find) -> Row:
    """Return the share of strangers found as outliers, and the share of the photographs that are taken for outliers."""
    count = len(photos.labels)
    found = find(torch.cat([photos.features, strangers]), np.concatenate([photos.labels, labels])).outliers
    return {"recall": float(found[count:].mean()), "flagged": float(found[:count].mean())}


def as_they_are(photos: Photos, found: Found) -> Row:
    """Return the numbers of what is found among the photographs themselves."""
    labels = photos.labels
    different = [any(labels[other] != labels[one] for other in each) for one, each in enumerate(found.sets)]
    return {
        "near_duplicate": int(found.near_duplicates.sum()),
        "near_duplicate_other_label": sum(different),
        "outlier": int(found.outliers.sum()),
    }


def mean_of(rows: Sequence[Mapping[str, float]]) -> Row:
    """Return the mean of every figure."""
    return {name: round(float(np.mean([row[name] for row in rows])), 4) for name in rows[0]}


def measure(photos: Photos, others: Sequence[Path], draws: int, backbone: Backbone, cache: Path) -> Row:
    """Return all figures of one set of photographs."""
    classes, finders = int(photos.labels.max()) + 1, systems()
    kinds: dict[str, Callable[[np.random.Generator], Sequence[Picture | Path]]] = {
        "other photographs": lambda rng: [others[k] for k in rng.permutation(len(others))[:STRANGERS]],
        "noise": lambda rng: [noise(rng) for _ in range(STRANGERS)],
        "stripes": lambda rng: [stripes(rng) for _ in range(STRANGERS)],
    }
    before = {name: find(photos.features, photos.labels) for name, find in finders.items()}
    copies: dict[str, dict[str, list[Row]]] = {name: {each: [] for each in ALTERATIONS} for name in finders}
    strangers: dict[str, dict[str, list[Row]]] = {name: {each: [] for each in kinds} for name in finders}
    for draw in range(draws):
        rng = np.random.default_rng(draw)
        chosen = rng.permutation(len(photos.labels))[:COPIES]
        labels = (photos.labels[chosen] + rng.integers(1, classes, COPIES)) % classes
        opened = [Image.open(photos.files[k]).convert("RGB") for k in chosen]
        for each, alter in ALTERATIONS.items():
            same = each == "the same file"
            features = embed([photos.files[k] for k in chosen] if same else list(map(alter, opened)), backbone, cache)
            for name, find in finders.items():
                known = before[name].near_duplicates
                copies[name][each].append(copies_found(photos, known, features, chosen, labels, find))
        for each, make in kinds.items():
            features, drawn = embed(make(rng), backbone, cache), rng.integers(0, classes, STRANGERS)
            for name, find in finders.items():
                strangers[name][each].append(strangers_found(photos, features, drawn, find))
    return {
        "copies": {name: {each: mean_of(rows) for each, rows in found.items()} for name, found in copies.items()},
        "strangers": {name: {each: mean_of(rows) for each, rows in found.items()} for name, found in strangers.items()},
        "as they are": {name: as_they_are(photos, found) for name, found in before.items()},
    }


# --- tables


def tables(record: Mapping[str, Row]) -> str:
    """Return the figures of all sets of photographs as Markdown tables."""
    columns = [(data, name) for data, row in record.items() for name in row["copies"]]
    copies = [["copies found (precision)", *(f"{data}, {name}" for data, name in columns)]]
    for each in ALTERATIONS:
        shown = (record[data]["copies"][name][each] for data, name in columns)
        copies.append([each, *(f"{100 * row['recall']:.0f}% ({100 * row['precision']:.0f}%)" for row in shown)])
    strangers = [["outliers found (photographs flagged)", *copies[0][1:]]]
    for each in next(iter(record.values()))["strangers"][OURS]:
        shown = (record[data]["strangers"][name][each] for data, name in columns)
        strangers.append([each, *(f"{100 * row['recall']:.0f}% ({100 * row['flagged']:.2f}%)" for row in shown)])
    return f"{markdown(copies)}\n\n{markdown(strangers)}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", metavar="NAME", help="name of the photographs in the record")
    parser.add_argument("photos", type=Path, metavar="PHOTOS", help="folder of images, one folder per class")
    parser.add_argument("other", type=Path, metavar="OTHER", help="folder of images of something else")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--backbone", default="lite0")
    parser.add_argument("--work", type=Path, help="folder for features. Default: a temporary one")
    parser.add_argument("--out", type=Path, default=RECORD)
    options = parser.parse_args(arguments)
    backbone = find_backbone(options.backbone)
    with tempfile.TemporaryDirectory() as folder:
        cache = options.work or Path(folder)
        found = load_embedded(str(options.photos), ReadOptions(), backbone, cache=cache).train
        assert found.names is not None
        photos = Photos(found.images, found.labels.numpy(), [options.photos / name for name in found.names])
        start = time.process_time()
        find_other_issues(photos.features, photos.labels)
        facts = {
            "samples": len(photos.labels),
            "classes": int(photos.labels.max()) + 1,
            "backbone": {"name": backbone.name, "size": backbone.size},
            "draws": options.draws,
            "cpu_seconds": round(time.process_time() - start, 2),
            "versions": {
                "torch": torch.__version__,
                **({"cleanlab": version("cleanlab")} if THEIRS in systems() else {}),
            },
        }
        facts |= measure(photos, image_files(options.other), options.draws, backbone, cache)
    record = json.loads(options.out.read_text()) if options.out.exists() else {}
    record[options.name] = facts
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    print(tables(record))


if __name__ == "__main__":
    main()
