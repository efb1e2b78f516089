"""Cell and Table: numbers to be reproduced, each beside the experiment that does it."""

from dataclasses import dataclass

from labelsieve.experiments.spec import Experiment

Published = tuple[float, float | None]  # error in percent, its standard error where it is printed


@dataclass(frozen=True)
class Cell:
    """One number of a table and the experiment that reproduces it."""

    experiment: Experiment  # of seed 0, on no particular device
    published: Published | None = None
    variant: str = ""  # what sets it apart from other cells of the same method
    measure: str = "best"  # which error of the run: best, chosen (of the delivered epoch), or round 1 and so on
    start: Experiment | None = None  # the run whose model it is fine-tuned from

    @property
    def row(self) -> str:
        return f"{self.experiment.method} ({self.variant})" if self.variant else self.experiment.method


@dataclass(frozen=True)
class Table:
    """Cells that are shown together."""

    name: str
    title: str
    cells: tuple[Cell, ...]
    digits: int = 1  # after the point, as printed
    seeds: int = 3
    notes: tuple[str, ...] = ()
