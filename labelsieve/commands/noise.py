"""write_noise: labels of a dataset under a noise, in a file, to be looked at or used."""

from pathlib import Path
from typing import Any

from labelsieve import noise as label_noise
from labelsieve.data import Reading, load_data
from labelsieve.data.labels import write_labels
from labelsieve.runs.data import noise_matrix


def write_noise(
    data: str, kind: str, rate: float, noise_map: str, exact: bool, seed: int, out: Path, **reading: Any
) -> None:
    """Corrupt a dataset's labels into a file, and show the matrix that came of it."""
    train = load_data(data, Reading(**reading)).train
    matrix = noise_matrix(kind, rate, noise_map, train.num_classes)
    noisy = label_noise.corrupt(train.labels, matrix, seed, exact=exact)
    write_labels(out, noisy, train.classes, train.names)
    counts = label_noise.transition_counts(train.labels, noisy, train.num_classes)
    share = 1 - counts.diagonal().sum().item() / len(train)
    print(f"{out}: {len(train):,} labels, {100 * share:.2f}% changed")
    if train.num_classes <= 20:
        width = max(len(name) for name in train.classes)
        print("in samples, a row per true class, a column per label:")
        for name, row in zip(train.classes, counts.tolist(), strict=True):
            print(f"{name:>{width}} " + " ".join(f"{count:5}" for count in row))
