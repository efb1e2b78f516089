"""A table of our own on the embedded data: minutes on two cores, with no number printed anywhere to compare with."""

from collections.abc import Iterable

from labelsieve.experiments.cell import Cell, Table
from labelsieve.experiments.spec import planned

OWN = ("default", "mentornet", "mentornet-prop", "sl-prop")
NOISES = ("pair", "symmetry")
RATE = 0.4
EPOCHS = 12


def small_table(epochs: int | None = None, others: Iterable[str] = ()) -> Table:
    """Four methods, and others that are named, under two kinds of noise."""
    told = {"noise_rate": RATE, "rate": RATE, "epochs": EPOCHS if epochs is None else epochs}
    cells = tuple(
        Cell(planned("fashion", method=method, noise=noise, **told))
        for noise in NOISES
        for method in dict.fromkeys((*OWN, *others))
    )
    return Table("small", "Embedded Fashion-MNIST, best test error in percent", cells, seeds=2)
