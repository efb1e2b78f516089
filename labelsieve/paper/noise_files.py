"""The noisy labels of every cell of the paper's tables as files for `--labels`, checked against a list of digests.

`noise.csv` lists data, noise, rate and seed of each cell, how many labels are wrong, and a digest of the labels, by
which others can check that they train on the same labels.
"""

import csv
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from labelsieve.data.labels import write_labels
from labelsieve.errors import InputError, LabelsieveError
from labelsieve.files import make_folder, write_atomically
from labelsieve.noise import corrupt
from labelsieve.paper.tables import tables
from labelsieve.runs.data import noise_matrix

LIST = Path(__file__).with_name("noise.csv")
HEADER = ("data", "noise", "rate", "seed", "wrong", "digest")


@dataclass(frozen=True, order=True)
class NoiseCell:
    """The noise that the runs of a cell and seed add to the labels of a training set."""

    data: str
    noise: str
    rate: float
    seed: int

    @property
    def file(self) -> str:
        return f"{self.data}-{self.noise.replace(':', '-')}-{round(100 * self.rate)}-seed{self.seed}.npy"


@dataclass(frozen=True)
class NoisyLabels:
    """The labels of a cell."""

    cell: NoiseCell
    labels: Any  # (n) tensor of class indices
    wrong: int  # labels that are not those of the data

    @property
    def digest(self) -> str:
        """Return the first half of the SHA-256 of the labels as unsigned bytes."""
        return hashlib.sha256(self.labels.numpy().astype("uint8").tobytes()).hexdigest()[:32]

    @property
    def row(self) -> tuple[str, ...]:
        cell = self.cell
        return (cell.data, cell.noise, f"{cell.rate:g}", str(cell.seed), str(self.wrong), self.digest)


def noise_cells(data: str) -> list[NoiseCell]:
    """Return the noise of all cells of the paper's tables on a dataset, with the seeds of each table."""
    found = {
        NoiseCell(data, cell.experiment.noise, cell.experiment.rate, seed)
        for table in tables().values()
        for cell in table.cells
        for seed in range(table.seeds)
        if cell.experiment.data == data and cell.experiment.noise and cell.experiment.rate
    }
    return sorted(found)


def draw_labels(cells: Sequence[NoiseCell], labels: Any, num_classes: int) -> Iterator[NoisyLabels]:
    """Yield the labels that a run of each cell trains on, from the labels of the data, (n)."""
    for cell in cells:
        noisy = corrupt(labels, noise_matrix(cell.noise, cell.rate, "", num_classes), cell.seed)
        yield NoisyLabels(cell, noisy, int((noisy != labels).sum()))


@cache
def published() -> dict[NoiseCell, tuple[int, str]]:
    """Return the number of wrong labels and the digest of each cell in the list."""
    with LIST.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {
        NoiseCell(row["data"], row["noise"], float(row["rate"]), int(row["seed"])): (int(row["wrong"]), row["digest"])
        for row in rows
    }


def refuse_unknown(data: str) -> None:
    """Raise InputError for a dataset that is not in the list."""
    known = list(dict.fromkeys(cell.data for cell in published()))
    if data not in known:
        raise InputError(f"--paper needs {' or '.join(known)}, whose noisy labels are published, not {data}")


def write_noise_files(data: str, labels: Any, classes: Sequence[str], folder: Path) -> list[NoisyLabels]:
    """Write the labels of every cell of a dataset to a folder, and a list of them, after checking all digests."""
    made = list(draw_labels(noise_cells(data), labels, len(classes)))
    for one in made:
        if (one.wrong, one.digest) != published()[one.cell]:
            raise LabelsieveError(
                f"the labels of {one.cell.file} are not the published ones: the labels of {data} or their order differ"
            )
    make_folder(folder)
    for one in made:
        write_labels(folder / one.cell.file, one.labels.byte(), classes)
    write_atomically(folder / f"{data}-noise.csv", list_of(made))
    return made


def list_of(made: Sequence[NoisyLabels]) -> bytes:
    """Return the list of some cells as it is published."""
    return "".join(f"{','.join(row)}\n" for row in (HEADER, *(one.row for one in made))).encode()
