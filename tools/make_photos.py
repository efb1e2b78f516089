"""Make labelsieve/data/photos.zip from the photographs of clothing-dataset-small.

    python tools/make_photos.py clothing-dataset-small

Takes 50 training and 15 test photographs of each of six classes: those whose file names have the smallest SHA-256
digests, which is a random draw that does not depend on the contents. They are scaled to a short side of 128 pixels and
numbered in the order of the digests. The archive contains them with a table photos.csv.
"""

import csv
import hashlib
import io
import sys
import zipfile
from pathlib import Path

from PIL import Image, ImageOps

from labelsieve.data.published import PHOTOS_FILE, PHOTOS_TABLE, photos_digest

CLASSES = ("dress", "longsleeve", "pants", "shoes", "shorts", "t-shirt")
PER_CLASS = {"train": 50, "test": 15}
SHORT_SIDE = 128
QUALITY = 80
DATE = (2026, 1, 1, 0, 0, 0)  # of all members, so that the archive depends on the photographs only


def draw(folder: Path, split: str) -> list[tuple[Path, str]]:
    """Return path and class of the photographs of a split, in the order of the digests of their names."""
    found = []
    for name in CLASSES:
        files = sorted((folder / split / name).glob("*.jpg"), key=name_digest)
        found += [(file, name) for file in files[: PER_CLASS[split]]]
    return sorted(found, key=lambda sample: name_digest(sample[0]))


def name_digest(file: Path) -> bytes:
    return hashlib.sha256(file.name.encode()).digest()


def scaled(file: Path) -> bytes:
    """Return a photograph as WebP, upright and without metadata."""
    with Image.open(file) as image:
        upright = ImageOps.exif_transpose(image).convert("RGB")
    factor = SHORT_SIDE / min(upright.size)
    size = (round(factor * upright.width), round(factor * upright.height))
    content = io.BytesIO()
    upright.resize(size, Image.Resampling.LANCZOS).save(content, "WEBP", quality=QUALITY, method=6)
    return content.getvalue()


def main() -> None:
    members: dict[str, bytes] = {}
    rows = []
    for split in PER_CLASS:
        for number, (file, name) in enumerate(draw(Path(sys.argv[1]), split)):
            path = f"{split}/{number:03}.webp"
            members[path] = scaled(file)
            rows.append((path, name, split))
    table = io.StringIO(newline="")
    csv.writer(table, lineterminator="\n").writerows([("image", "label", "split"), *rows])
    members[PHOTOS_TABLE] = table.getvalue().encode()
    with zipfile.ZipFile(PHOTOS_FILE, "w") as archive:
        for path in sorted(members):
            archive.writestr(zipfile.ZipInfo(path, DATE), members[path])
    print(f"{PHOTOS_FILE}: {PHOTOS_FILE.stat().st_size:,} bytes, digest {photos_digest(members)}")


if __name__ == "__main__":
    main()
