"""One picture of a comparison: error and precision by epoch, the learnt penalty labels beside the true ones."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from labelsieve.errors import InputError
from labelsieve.report.records import Array, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

COLOURS = ("#4c566a", "#d08770", "#2a7f9e", "#a3be8c", "#b48ead", "#ebcb8b")


def true_penalty(noise: Array) -> Array:
    """What the penalty labels would be, were the true labels known: per observed label, where its noise comes from."""
    by_observed = noise.T.astype(float)
    np.fill_diagonal(by_observed, 0)
    shares: Array = by_observed / np.maximum(by_observed.sum(1, keepdims=True), 1)
    return shares


def draw(groups: Mapping[str, Sequence[Run]], classes: Sequence[str], title: str, path: Path) -> None:
    """Write the picture as PNG."""
    try:
        import matplotlib
    except ImportError:
        raise InputError("the picture needs matplotlib: pip install 'labelsieve[plots]'") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with_penalty = [(method, run) for method, runs in groups.items() for run in runs if "last/penalty" in run.tables]
    figure, axes = plt.subplots(
        1, 4 if with_penalty else 2, figsize=(17 if with_penalty else 9, 4.6), layout="constrained"
    )
    figure.suptitle(title)
    for colour, (method, runs) in zip(COLOURS * len(groups), groups.items(), strict=False):
        _band(axes[0], [run.series("test_error") for run in runs], method, colour)
        _band(axes[1], [[100 * (p or 0) for p in run.series("precision")] for run in runs], method, colour)
    warmup = max(run.spec["warmup"] for runs in groups.values() for run in runs)
    for axis, label in zip(axes, ("test error %", "kept samples with a right label %"), strict=False):
        axis.axvline(warmup + 0.5, color="0.6", linestyle=":", linewidth=1)
        axis.set(xlabel="epoch (dotted: end of warm-up)", ylabel=label)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower left", ncols=3, frameon=False)
    if with_penalty:
        method, run = with_penalty[0]
        _heat(axes[2], run.tables["last/penalty"][0], classes, f"penalty labels learnt ({method})")
        colours = _heat(axes[3], true_penalty(run.tables["noise"]), classes, "and where the wrong labels come from")
        figure.colorbar(colours, ax=axes[2:], shrink=0.8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _band(axis: "Axes", series: list[list[float]], label: str, colour: str) -> None:
    values = np.array(series)
    epochs = np.arange(1, values.shape[1] + 1)
    axis.plot(epochs, values.mean(0), label=label, color=colour)
    axis.fill_between(epochs, values.min(0), values.max(0), color=colour, alpha=0.15, linewidth=0)


def _heat(axis: "Axes", matrix: Array, classes: Sequence[str], title: str) -> "AxesImage":
    image = axis.imshow(matrix, cmap="Blues", vmin=0, vmax=1)
    axis.set_title(title, fontsize=10)
    if len(classes) <= 20:
        axis.set_yticks(range(len(classes)), classes, fontsize=7)
        axis.set_xticks(range(len(classes)), classes, fontsize=7, rotation=90)
    axis.set(ylabel="observed label", xlabel="class")
    return image
