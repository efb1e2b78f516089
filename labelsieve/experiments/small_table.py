"""A table of our own on the embedded data: minutes on two cores, with no number printed anywhere to compare with."""

from labelsieve.experiments.cell import Cell, Table
from labelsieve.experiments.spec import planned

METHODS = ("default", "mentornet", "mentornet-prop", "sl-prop")
NOISES = ("pair", "symmetry")
RATE = 0.4
EPOCHS = 12


def small_table(epochs: int = EPOCHS) -> Table:
    """Four methods under two kinds of noise."""
    cells = tuple(
        Cell(planned("fashion", method=method, noise=noise, rate=RATE, noise_rate=RATE, epochs=epochs))
        for noise in NOISES
        for method in METHODS
    )
    return Table("small", "Embedded Fashion-MNIST, best test error in percent", cells, seeds=2)
