"""Make labelsieve/data/fashion_mnist.npz from the original Fashion-MNIST files.

    apt-get install dataset-fashion-mnist
    python tools/make_fashion_mnist.py /usr/share/datasets/fashion-mnist

Takes the first 600 training and the first 100 test images of each class, in their original order.
"""

import gzip
import sys
from pathlib import Path

import numpy as np

from labelsieve.data.published import FASHION_FILE, array_digest

PER_CLASS = {"train": 600, "t10k": 100}


def read_idx(path: Path, header: int) -> np.ndarray:
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=header)


def subset(folder: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    images = read_idx(folder / f"{split}-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28)
    labels = read_idx(folder / f"{split}-labels-idx1-ubyte.gz", 8)
    first = [np.flatnonzero(labels == k)[: PER_CLASS[split]] for k in range(10)]
    keep = np.sort(np.concatenate(first))
    return images[keep], labels[keep]


def main() -> None:
    folder = Path(sys.argv[1])
    train, test = subset(folder, "train"), subset(folder, "t10k")
    arrays = dict(zip(("train_images", "train_labels", "test_images", "test_labels"), (*train, *test), strict=True))
    np.savez_compressed(FASHION_FILE, allow_pickle=False, **arrays)
    print(f"{FASHION_FILE}: {FASHION_FILE.stat().st_size:,} bytes, digest {array_digest(arrays)}")


if __name__ == "__main__":
    main()
