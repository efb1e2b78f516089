"""`labelsieve compare` and `labelsieve demo`: train several methods on the same noise and seeds, and compare them."""

import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from labelsieve import catalogue
from labelsieve.data import Trainable
from labelsieve.errors import InputError, LabelsieveError, nearest
from labelsieve.files import refuse_no_folder, write_atomically
from labelsieve.models import default_model
from labelsieve.noise import transition
from labelsieve.runs.data import Shelf, reading_of
from labelsieve.runs.execute import method_of
from labelsieve.runs.read import Array, Run, neglected_classes, read_run
from labelsieve.runs.spec import (
    OPEN_SETTINGS,
    Experiment,
    MethodChoice,
    experiment_for,
    parse_method,
    suited_to_network,
)
from labelsieve.runs.tables import (
    Block,
    Document,
    check_output,
    comparison,
    output,
    paired_differences,
    render,
    run_by_run,
)
from labelsieve.runtime import usable_device
from labelsieve.sweep.sweep import folder_of
from labelsieve.sweep.watch import run_all
from labelsieve.text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

COLOURS = ("#4c566a", "#d08770", "#2a7f9e", "#a3be8c", "#b48ead", "#ebcb8b")
MOST_CURVES = 6  # in one picture
TITLES = {"fashion": "Fashion-MNIST"}


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
    """Train every method on the noise of every seed, and print a table and draw a picture of the results.

    Args:
        data: A dataset with a test set.
        methods: Methods as parse_method reads them.
        noise, rate: Noise to add; None for the labels as they are.
        noise_rate: Noise rate passed to the methods.
        out: Folder for the runs, table.md and the picture.
        at_once, on: See sweep().
        against: Method that the others are compared with; None for the default of runs.tables.pairs_among.
        form: A key of runs.tables.FORMATS.
        save: File for the table; None for standard output.
        settings: Further fields of the experiments.
    """
    check_output(form, save)
    refuse_no_folder(out)
    choices = list(dict.fromkeys(map(parse_method, methods)))
    base = None if against is None else _find_choice(choices, against)
    first = experiment_for(data, noise_rate=noise_rate, **settings)
    shelf = Shelf()
    train, test, _ = shelf.load(data, reading_of(first))
    if test is None and not first.test:
        raise InputError(f"{data} has no test set to compare methods on: draw one with --test 0.2")
    if noise is not None:
        transition(noise, train.num_classes, rate)  # raises for wrong noise before anything runs
    runs = _plan_runs(train, choices, seeds, data, noise=noise, rate=rate, noise_rate=noise_rate, **settings)
    about = f"{100 * rate:g}% {noise} noise" if noise else "original labels"
    count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    messages = sys.stdout if form == "text" or save else sys.stderr  # standard output is for the table alone
    print(f"{count}: {', '.join(methods)}; {about}; {_describe_seeds(seeds)}", file=messages, flush=True)
    failed = run_all(list(runs), out, at_once, on, shelf)
    if groups := _grouped({run: choice for run, choice in runs.items() if run not in failed}, out):
        title = f"{TITLES.get(data, Path(data).stem)}, {len(train):,} images, {about}, {_describe_seeds(seeds)}"
        output(_table_document(groups, title, base, form), form, save)
        write_atomically(
            out / "table.md", render(_table_document(groups, title, base, "markdown"), "markdown").encode()
        )
        for line in _given_up(groups):
            print(line, file=messages)
        _write_picture(groups, list(train.classes), title, out / f"{noise or 'given'}-{rate:g}.png", messages)
    if failed:
        raise LabelsieveError(f"{len(failed)} of {len(runs)} runs failed; the reasons are printed above")


def _find_choice(choices: list[MethodChoice], against: str) -> str:
    """Return the name in tables of the method that `against` means."""
    if parse_method(against) not in choices:
        raise InputError(f"--against {against} is not one of the methods; {nearest(against, map(str, choices))}")
    return str(parse_method(against))


def _plan_runs(
    train: Trainable, choices: list[MethodChoice], seeds: range, data: str, **settings: Any
) -> dict[Experiment, MethodChoice]:
    """Return an experiment for every seed and method; raise an error for unknown or unsuitable methods."""
    first = experiment_for(data, **settings)
    model = default_model(train.shape, usable_device(first.device)) if first.model == "auto" else first.model
    still_open = [name for name in OPEN_SETTINGS if settings.get(name) is None]
    runs = {}
    for seed in seeds:
        for choice in choices:
            experiment = experiment_for(data, seed=seed, **choice._asdict(), **settings)
            runs[suited_to_network(experiment, model, still_open, len(train))] = choice
    for run in list(runs)[: len(choices)]:
        method_of(run, train)
    return runs


def _grouped(runs: dict[Experiment, MethodChoice], out: Path) -> dict[str, list[Run]]:
    """Read finished runs, by the name of their method in tables."""
    groups: dict[str, list[Run]] = {}
    for run, choice in runs.items():
        groups.setdefault(str(choice), []).append(read_run(folder_of(run, out)))
    return groups


def _table_document(groups: dict[str, list[Run]], title: str, against: str | None, form: str) -> Document:
    """Return the table with the differences seed by seed; for CSV a row per run."""
    if form == "csv":
        return Document("", [Block("", run_by_run(groups, against or next(iter(groups))))], ())
    return Document(title, [Block("", comparison(groups))], paired_differences(groups, against=against))


def _given_up(groups: dict[str, list[Run]]) -> list[str]:
    """Say of which runs the selection gave up a class, which costs accuracy, and what prevents it (decision 32)."""
    lines = []
    for name, runs in groups.items():
        for run in runs:
            if neglected := neglected_classes(run):
                kept = printable(", ".join(neglected))
                what = f"the selection kept few samples of {kept}, and the network hardly learned them"
                lines.append(f"{name}, seed {run.spec['seed']}: {what}{_remedy(run, groups)}")
    return lines


def _remedy(run: Run, groups: Mapping[str, object]) -> str:
    """Return what prevents that a class is given up, if the method has such an option and does not use it."""
    options = catalogue.options_of(run.method) if run.method in catalogue.methods() else {}
    if "align" not in options or dict(run.spec["options"]).get("align"):
        return ""
    aligned = f"{run.method}:align=true"
    beside = str(parse_method(aligned))
    return f"; {beside} prevents this" if beside in groups else f"; to prevent this, add {aligned} to --methods"


def _describe_seeds(seeds: range) -> str:
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    return f"{len(seeds)} seeds" if seeds.start == 0 else f"seeds {seeds[0]} to {seeds[-1]}"


def _write_picture(groups: dict[str, list[Run]], classes: list[str], title: str, file: Path, messages: TextIO) -> None:
    """Draw the picture if matplotlib is installed."""
    if find_spec("matplotlib") is None:
        print("no picture: matplotlib is missing; run pip install 'labelsieve[plots]'", file=messages)
        return
    draw_comparison({method: groups[method] for method in list(groups)[:MOST_CURVES]}, classes, title, file)
    print(f"picture: {file}", file=messages)


def draw_comparison(groups: Mapping[str, Sequence[Run]], classes: Sequence[str], title: str, path: Path) -> None:
    """Draw error and precision by epoch, and learned penalty labels next to the true ones, as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with_penalty = [(method, run) for method, runs in groups.items() for run in runs if "last/penalty" in run.tables]
    figure, axes = plt.subplots(
        1, 4 if with_penalty else 2, figsize=(14 if with_penalty else 9, 4.1), layout="constrained"
    )
    figure.suptitle(title, x=0.01, horizontalalignment="left")
    for colour, (method, runs) in zip(COLOURS * len(groups), groups.items(), strict=False):
        _plot_band(axes[0], [run.series("test_error") for run in runs], method, colour)
        _plot_band(axes[1], [[100 * (p or 0) for p in run.series("precision")] for run in runs], method, colour)
    warmup = max(run.spec["warmup"] for runs in groups.values() for run in runs)
    for axis, label in zip(axes, ("test error %", "kept samples with a correct label %"), strict=False):
        axis.axvline(warmup + 0.5, color="0.6", linestyle=":", linewidth=1)
        axis.set(xlabel="epoch (dotted: end of warm-up)", ylabel=label)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower left", ncols=4, frameon=False)
    if with_penalty:
        method, run = with_penalty[0]
        _plot_matrix(axes[2], run.tables["last/penalty"][0], classes, f"learned penalty labels ({method})")
        image = _plot_matrix(axes[3], true_penalty(run.tables["noise"]), classes, "true sources of the wrong labels")
        figure.colorbar(image, ax=axes[2:], shrink=0.8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def true_penalty(noise: Array) -> Array:
    """Return the ideal penalty labels, a row per observed label, from counts (true class, observed label)."""
    by_observed = noise.T.astype(float)
    np.fill_diagonal(by_observed, 0)
    return by_observed / np.maximum(by_observed.sum(1, keepdims=True), 1)


def _plot_band(axis: "Axes", series: list[list[float]], label: str, colour: str) -> None:
    values = np.array(series)
    epochs = np.arange(1, values.shape[1] + 1)
    axis.plot(epochs, values.mean(0), label=label, color=colour)
    axis.fill_between(epochs, values.min(0), values.max(0), color=colour, alpha=0.15, linewidth=0)


def _plot_matrix(axis: "Axes", matrix: Array, classes: Sequence[str], title: str) -> "AxesImage":
    image = axis.imshow(matrix, cmap="Blues", vmin=0, vmax=1)
    axis.set_title(title, fontsize=10)
    if len(classes) <= 20:
        axis.set_yticks(range(len(classes)), classes, fontsize=7)
        axis.set_xticks(range(len(classes)), classes, fontsize=7, rotation=90)
    axis.set(ylabel="observed label", xlabel="class")
    return image
