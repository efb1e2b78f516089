"""One picture of a comparison: error and precision by epoch, the learnt penalty labels beside the true ones."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from labelsieve.errors import InputError
from labelsieve.runs.read import Array, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage
import sys
from importlib.util import find_spec
from typing import Any, NamedTuple, TextIO

from labelsieve.auto.plan import FREE, suited
from labelsieve.data import Trainable, load_data
from labelsieve.errors import LabelsieveError, nearest
from labelsieve.files import refuse_no_folder, write_atomically
from labelsieve.methods import METHODS
from labelsieve.models import default_model
from labelsieve.noise import transition
from labelsieve.runs.data import reading_of
from labelsieve.runs.execute import method_of
from labelsieve.runs.read import read_run
from labelsieve.runs.spec import Experiment, experiment_for, parse_options
from labelsieve.runs.tables import (
    Block,
    Document,
    comparison,
    paired_differences,
    publish,
    refuse_unwritable,
    run_by_run,
    written,
)
from labelsieve.runtime import usable_device
from labelsieve.sweep.sweep import folder_of
from labelsieve.sweep.watch import run_all

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


MOST_CURVES = 6  # in one picture
TITLES = {"fashion": "Fashion-MNIST"}


class Named(NamedTuple):
    """A method as it is to be compared."""

    method: str
    criterion: str | None
    options: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        """co-teaching (all), mentornet-prop (lam 0.5)"""
        chosen = [*filter(None, [self.criterion]), *(f"{name} {value}" for name, value in self.options)]
        return f"{self.method} ({', '.join(chosen)})" if chosen else self.method


def compare(
    data: str,
    methods: list[str],
    *,
    noise: str | None,
    rate: float,
    noise_rate: float,
    seeds: range,
    out: Path,
    at_once: int | None = None,
    on: str = "here",
    against: str | None = None,
    form: str = "text",
    save: Path | None = None,
    **settings: Any,
) -> None:
    """Train every method on every seed's noise, then show what came of it. `settings` as of an Experiment.

    `against`: which method the others are set against, if not each what pairs_among says.
    """
    if not seeds:
        raise InputError("seeds must be at least 1")
    refuse_unwritable(form, save)
    refuse_no_folder(out)
    every = list(dict.fromkeys(named(method) for method in methods))
    base = None if against is None else among(every, against)
    asked = experiment_for(data, noise_rate=noise_rate, **settings)
    train, test, _ = load_data(data, reading_of(asked))
    if test is None and not asked.test:
        raise InputError(f"{data} has no test set to compare methods on: draw one with --test 0.2")
    if noise is not None:
        transition(noise, train.num_classes, rate)  # refuses wrong noise before anything runs
    runs = runs_of(train, every, seeds, data, noise=noise, rate=rate, noise_rate=noise_rate, **settings)
    about = f"{100 * rate:g}% {noise} noise" if noise else "labels as they are"
    count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    aside = sys.stdout if form == "text" or save else sys.stderr  # else the table is to be alone there
    print(f"{count}: {', '.join(methods)}; {about}; {spoken(seeds)}", file=aside, flush=True)
    failed = run_all(list(runs), out, at_once, on)
    if groups := grouped({run: one for run, one in runs.items() if run not in failed}, out):
        title = f"{TITLES.get(data, Path(data).stem)}, {len(train):,} images, {about}, {spoken(seeds)}"
        publish(document(groups, title, base, form), form, save)
        write_atomically(out / "table.md", written(document(groups, title, base, "markdown"), "markdown").encode())
        picture(groups, list(train.classes), title, out / f"{noise or 'given'}-{rate:g}.png", aside)
    if failed:
        raise LabelsieveError(f"{len(failed)} of {len(runs)} runs failed; see above")


def runs_of(train: Trainable, every: list[Named], seeds: range, data: str, **settings: Any) -> dict[Experiment, Named]:
    """Every method on every seed's noise; a method that is wrong, or cannot do what is asked, is refused."""
    asked = experiment_for(data, **settings)
    model = default_model(train.shape, usable_device(asked.device)) if asked.model == "auto" else asked.model
    free = [name for name in FREE if settings.get(name) is None]
    runs = {
        suited(experiment_for(data, seed=seed, **one._asdict(), **settings), model, free, len(train)): one
        for seed in seeds
        for one in every
    }
    for run in list(runs)[: len(every)]:
        method_of(run, train)
    return runs


def grouped(runs: dict[Experiment, Named], out: Path) -> dict[str, list[Run]]:
    """What finished runs left, by method."""
    groups: dict[str, list[Run]] = {}
    for run, one in runs.items():
        groups.setdefault(str(one), []).append(read_run(folder_of(run, out)))
    return groups


def document(groups: dict[str, list[Run]], title: str, against: str | None, form: str) -> Document:
    """The table with the differences seed by seed; as CSV a line per run."""
    if form == "csv":
        return Document("", [Block("", run_by_run(groups, against or next(iter(groups))))], ())
    return Document(title, [Block("", comparison(groups))], paired_differences(groups, against=against))


def picture(groups: dict[str, list[Run]], classes: list[str], title: str, file: Path, aside: TextIO) -> None:
    """How they learn, if there is something to draw it with."""
    if find_spec("matplotlib") is None:
        print("no picture: pip install 'labelsieve[plots]'", file=aside)
        return
    few = {method: groups[method] for method in list(groups)[:MOST_CURVES]}
    draw(few, classes, title, file)
    print(f"picture: {file}", file=aside)


def spoken(seeds: range) -> str:
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    return f"{len(seeds)} seeds" if seeds.start == 0 else f"seeds {seeds[0]} to {seeds[-1]}"


def expanded(methods: str) -> list[str]:
    """The methods that a person names with commas between them, each once; all of them for `all`."""
    if methods == "all":
        return [*METHODS, "co-teaching:all"]
    every = list(dict.fromkeys(name for words in methods.split(",") if (name := words.strip())))
    if not every:
        raise InputError("--methods names no method; write such as default,mentornet-prop, or all")
    return every


def named(words: str) -> Named:
    """co-teaching:all is the method co-teaching with the criterion all, mentornet-prop:lam=0.5 one with an option."""
    method, *rest = words.split(":")
    criteria = [word for word in rest if "=" not in word]
    if len(criteria) > 1:
        raise InputError(f"{words} names two criteria, {criteria[0]} and {criteria[1]}; leave one out")
    return Named(method, criteria[0] if criteria else None, parse_options(word for word in rest if "=" in word))


def among(every: list[Named], against: str) -> str:
    """The compared method that is meant, as it is shown."""
    if named(against) not in every:
        raise InputError(f"--against {against} is not among the methods; {nearest(against, map(str, every))}")
    return str(named(against))
