"""The command line. Each command is a thin function; what it needs is imported when it runs."""

import contextlib
import functools
import inspect
import io
import json
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, ParamSpec

import tyro
from tyro.conf import Positional, UseAppendAction, arg

import labelsieve
from labelsieve.errors import InputError, LabelsieveError, nearest

P = ParamSpec("P")
own_default = functools.partial(arg, help_behavior_hint="")  # the help text itself says what happens without it
Text = Annotated[str | None, own_default(metavar="TEXT")]
Number = Annotated[float | None, own_default(metavar="NUMBER")]
Whole = Annotated[int | None, own_default(metavar="N")]
File = Annotated[Path | None, own_default(metavar="PATH")]
Data = Positional[Annotated[str, arg(metavar="DATA")]]


def demo(
    noise: str = "pair",
    rate: float = 0.4,
    seeds: int = 3,
    first_seed: int = 0,
    methods: str = "default,mentornet,mentornet-prop",
    out: Path = Path("runs/demo"),
) -> None:
    """Compare the methods on the embedded data: a table, and a picture of how they learn.

    Args:
        noise: Kind of label noise that is added: pair, symmetry or mixed.
        rate: Share of the labels that it makes wrong.
        seeds: How many times each method is trained, each time with other noise.
        first_seed: The first of these seeds.
        methods: Which methods, with commas between them; co-teaching:all is co-teaching with criterion all; all of them
            for all.
        out: Folder for the runs and the picture. Runs that are there already are not run again.
    """
    from labelsieve.experiments.compare import compare, expanded

    every = range(first_seed, first_seed + seeds)
    compare("fashion", expanded(methods), noise=noise, rate=rate, noise_rate=rate, seeds=every, out=out)


def train(
    data: Data = "fashion",
    *,
    method: Text = None,
    criterion: Text = None,
    lam: Number = None,
    set: UseAppendAction[tuple[str, ...]] = (),
    noise_rate: Text = None,
    noise: Text = None,
    rate: Number = None,
    noise_map: str = "",
    exact_noise: bool = False,
    labels: Text = None,
    size: Whole = None,
    label_column: Text = None,
    image_column: Text = None,
    test: float = 0.0,
    skip_bad: bool = False,
    stream: bool = False,
    cache: Text = None,
    workers: Whole = None,
    model: Text = None,
    weights: Text = None,
    epochs: Whole = None,
    warmup: Whole = None,
    batch: Whole = None,
    lr: Number = None,
    sampler: str = "permutation",
    forward: str = "one",
    augment: str = "",
    normalise: str = "image",
    valid: float = 0.0,
    init: Text = None,
    scores: str = "",
    seed: int = 0,
    device: str = "auto",
    precision: Text = None,
    threads: Whole = None,
    out: File = None,
    dry_run: bool = False,
) -> None:
    """Train a model that is robust to wrong labels. The same command goes on where a run was cut.

    Args:
        data: A folder of images with a folder per class; a .csv, .tsv or .parquet table with a label column and image
            paths or numbers; a .npz file with images and labels; a published dataset as it was unpacked; or fashion,
            the embedded data. docs/data.md says how each must look.
        method: How to learn; `labelsieve methods` lists them. Default: mentornet-prop, or what suits the noise that is
            found.
        criterion: What decides which samples look clean: ol, pl, all or margin. Default: the method's own.
        lam: λ, how much Criteria_ALL subtracts for the penalty label.
        set: An option of the method, as name=value; may be repeated.
        noise_rate: The share of labels that is believed wrong, 0 to 1, or auto: found out by a probe first. Default:
            the rate of the added noise, or auto.
        noise: To try things out, corrupt the labels first: pair, symmetry, mixed, asymmetric, or a .npy or .csv file
            with a transition matrix. Of mixed noise 0.75 goes to one class; mixed:0.6 says another share.
        rate: Share of the labels that the added noise makes wrong.
        noise_map: For asymmetric noise, which class becomes which: 9:1,2:0.
        exact_noise: Give each class its exact share of the added noise instead of drawing it sample by sample.
        labels: A .csv or .npy file with labels to use instead of the data's own, or CIFAR-N's as file:kind.
        size: Scale images to this side. Default: as they are, if all have one size up to 224, else squares of their
            median shorter side, at most 224.
        label_column: The column of a table with the labels. Default: label, class, target or y.
        image_column: The column of a table with the images. Default: image, path or file; without one, numbers.
        test: Share of the data that is drawn as a test set, class by class, where it has none.
        skip_bad: Train without the files and rows that cannot be used.
        stream: Read images from disk while training, even if all would fit into memory; beyond 4 GiB they always are.
        cache: When streaming, a folder in which decoded images are kept, so that each is decoded once.
        workers: When streaming, threads that decode. Default: all cores.
        model: The network: a name (resnet-18, densenet-25-12, mlp, ...), package.module:factory, or timm:name. Default:
            what suits the data.
        weights: A file with pretrained weights for it, in torchvision's names: .pth, .safetensors or .npz.
        epochs: How many times each sample is seen. Default: what suits the data, or 100.
        warmup: How many of these epochs learn from all samples before the selecting begins. Default: what suits the
            data, or 25.
        batch: Samples per step. Default: 128.
        lr: Learning rate at the start; times 0.2 after a half and three quarters of the epochs. Default: what suits the
            data, or 0.1.
        sampler: permutation: each sample once an epoch. independent: each batch drawn by itself.
        forward: one: learn from the pass that decides. second: from another one over the kept samples alone, for
            methods that only select.
        augment: Change the images at random while training, such as crop4,flip,cutout8; window224 cuts windows out of
            images that are scaled to 256.
        normalise: image: each image by itself, as the paper does. imagenet: by its colours, as pretrained weights want.
        valid: Share of the training data that is held out, noise and all, to choose the best epoch.
        init: The folder of a finished run whose model is the start, instead of random weights.
        scores: Epochs after which every sample's scores are kept in the run's folder, with commas between them: 25,40.
        seed: Of everything random.
        device: auto, cpu or cuda.
        precision: bf16 or fp32. Default: bf16 on a GPU.
        threads: CPU threads; part of what makes a run repeatable. Default: all cores.
        out: The run's folder. Default: runs/ and a name made from all of the above.
        dry_run: Only say what would be done and what it would cost.
    """
    from labelsieve.experiments import single

    experiment, unknown = single.from_options(
        data,
        method=method,
        criterion=criterion,
        options=method_options(lam, set),
        noise_rate=noise_rate,
        noise=noise,
        rate=rate,
        noise_map=noise_map,
        exact_noise=exact_noise,
        labels=labels,
        size=size,
        label_column=label_column,
        image_column=image_column,
        test=test,
        skip_bad=skip_bad,
        stream=stream,
        cache=cache,
        workers=workers,
        model=model,
        weights=weights,
        epochs=epochs,
        warmup=warmup,
        batch=batch,
        lr=lr,
        sampler=sampler,
        forward=forward,
        augment=augment,
        normalise=normalise,
        valid=valid,
        init=init,
        scores=single.epoch_numbers(scores),
        seed=seed,
        device=device,
        precision=precision,
        threads=threads,
    )
    path = out or Path("runs") / (experiment.name() + ("-auto" if unknown else ""))
    named = {"epochs": epochs, "warmup": warmup, "batch": batch, "lr": lr}
    free = [name for name, value in named.items() if value is None]
    experiment, probes = single.settled(experiment, free) if unknown else (experiment, [])
    if dry_run:
        print(single.forecast(experiment, path, probes))
    elif probes:
        single.train_auto(experiment, probes, path, method)
    else:
        single.train(experiment, path)


def compare(
    data: Data = "fashion",
    *,
    methods: str = "default,mentornet,mentornet-prop",
    noise: Text = None,
    rate: Number = None,
    noise_rate: Number = None,
    labels: Text = None,
    size: Whole = None,
    label_column: Text = None,
    image_column: Text = None,
    test: float = 0.0,
    skip_bad: bool = False,
    seeds: int = 3,
    first_seed: int = 0,
    model: Text = None,
    epochs: Whole = None,
    warmup: Whole = None,
    batch: Whole = None,
    lr: Number = None,
    device: str = "auto",
    precision: Text = None,
    at_once: Whole = None,
    on: str = "here",
    out: Path = Path("runs/compare"),
) -> None:
    """Train several methods over several seeds, side by side on a GPU, and compare their errors on the test set.

    Args:
        data: As for train, with a test set.
        methods: Which methods, with commas between them; co-teaching:all is co-teaching with criterion all; all of them
            for all.
        noise: Corrupt the labels first: pair, symmetry or mixed. Default: the labels as they are.
        rate: Share of the labels that the added noise makes wrong.
        noise_rate: The share of labels that is believed wrong. Default: the rate of the added noise.
        labels: As for train.
        size: As for train.
        label_column: As for train.
        image_column: As for train.
        test: As for train.
        skip_bad: As for train.
        seeds: How many times each method is trained, each time with other noise.
        first_seed: The first of these seeds.
        model: As for train.
        epochs: As for train.
        warmup: As for train.
        batch: As for train.
        lr: As for train.
        device: auto, cpu or cuda.
        precision: bf16 or fp32. Default: bf16 on a GPU.
        at_once: How many runs share a GPU. Default: as many as pay and fit.
        on: here, or over machines with Ray: ray, ray:ADDRESS or ray://HOST:PORT; docs/sweeps.md says more.
        out: Folder for the runs, the table and the picture. Runs that are there already are not run again.
    """
    from labelsieve.experiments.compare import expanded
    from labelsieve.experiments.single import compare_options

    compare_options(
        data,
        expanded(methods),
        noise=noise,
        rate=rate,
        noise_rate=noise_rate,
        seeds=range(first_seed, first_seed + seeds),
        out=out,
        at_once=at_once,
        on=on,
        labels=labels,
        size=size,
        label_column=label_column,
        image_column=image_column,
        test=test,
        skip_bad=skip_bad,
        model=model,
        epochs=epochs,
        warmup=warmup,
        batch=batch,
        lr=lr,
        device=device,
        precision=precision,
    )


def table(
    name: Positional[Annotated[str, arg(metavar="N")]],
    *,
    dataset: Text = None,
    noise: Text = None,
    rate: Text = None,
    methods: Text = None,
    seeds: Whole = None,
    epochs: Whole = None,
    show: bool = False,
    device: str = "auto",
    precision: Text = None,
    threads: int = 1,
    at_once: Whole = None,
    on: str = "here",
    out: Path = Path("runs/paper"),
    results: Path = Path("results"),
    format: str = "text",
    save: File = None,
) -> None:
    """Reproduce a table of the paper: run what is missing of it, and print our numbers beside the printed ones.

    Args:
        name: The table: 1, 2, 3, 5, 6, 7 or 8 of the paper, or small, a table on the embedded data.
        dataset: Only these datasets, with commas between them: cifar10, cifar100, tiny-imagenet, ...
        noise: Only these kinds of noise: pair, symmetry, mixed, or own where the data has its own.
        rate: Only these rates: 0.2,0.4.
        methods: Only these methods.
        seeds: Trials of each cell. Default: three for the paper's tables, two for the small one.
        epochs: Of the small table's runs; the paper's tables say their own. Default: 12.
        show: Only read records and run nothing.
        device: auto, cpu or cuda.
        precision: bf16 or fp32. Default: bf16 on a GPU.
        threads: CPU threads of each run.
        at_once: How many runs share a GPU. Default: as many as pay and fit.
        on: As for compare.
        out: Folder for new runs. Finished ones that are there are not run again.
        results: Folder of records that count too, wherever they were made.
        format: text, markdown, latex or csv.
        save: A file for the table. Default: the terminal.
    """
    from labelsieve.experiments.reproduce import reproduce

    reproduce(
        name,
        keep={"dataset": dataset, "noise": noise, "rate": rate, "methods": methods},
        seeds=seeds,
        epochs=epochs,
        show=show,
        device=device,
        precision=precision,
        threads=threads,
        at_once=at_once,
        on=on,
        out=out,
        results=results,
        form=format,
        save=save,
    )


def figure(
    number: Positional[Annotated[int, arg(metavar="NUMBER")]],
    *,
    dataset: Text = None,
    seeds: int = 3,
    show: bool = False,
    out: Path = Path("runs/paper"),
    results: Path = Path("results"),
    save: File = None,
    device: str = "auto",
    precision: Text = None,
    threads: int = 1,
    at_once: Whole = None,
    on: str = "here",
) -> None:
    """Draw a figure of the paper from finished runs, as PNG and SVG; the runs that are missing are trained first.

    Args:
        number: 3, 7, 8, 9, 10 or 11, as in the paper.
        dataset: Only this one: cifar10, cifar100 or tiny-imagenet; or fashion, the embedded data, to try it out.
            Default: the paper's.
        seeds: How many runs make a point. Figure 3 is always of one.
        show: Train nothing: draw what there is.
        out: Folder for the runs.
        results: Folder with the records of earlier runs, which are not run again.
        save: Folder for the pictures. Default: that of the runs.
        device: auto, cpu or cuda.
        precision: bf16 or fp32. Default: bf16 on a GPU.
        threads: CPU threads of each run.
        at_once: How many runs share a GPU. Default: as many as pay and fit.
        on: As for compare.
    """
    from labelsieve.experiments.figure import figure_options

    figure_options(
        number,
        dataset,
        seeds,
        device,
        precision,
        threads,
        show=show,
        out=out,
        results=results,
        save=save,
        at_once=at_once,
        on=on,
    )


def results(
    *,
    results: Path = Path("results"),
    out: Path = Path("docs/results.md"),
    check: bool = False,
) -> None:
    """Write the page about all records, our numbers beside the paper's, with its figures; nothing is trained.

    Args:
        results: Folder of the records.
        out: The page; its figures go into the folder figures beside it.
        check: Write nothing: fail if the page or a figure is not what the records give.
    """
    from labelsieve.experiments.results import results as write

    write(results, out, check)


def bench(
    data: Data = "fashion",
    *,
    model: Text = None,
    batch: int = 128,
    device: str = "auto",
    precision: Text = None,
    side: str = "2,4,6",
    methods: str = "all",
    epochs: int = 3,
    out: Path = Path("benchmarks/results/bench.json"),
) -> None:
    """Measure how fast training is on this machine, beside a plain loop and the floor of the hardware.

    Args:
        data: As for train, with a test set.
        model: As for train.
        batch: Samples per step.
        device: auto, cpu or cuda.
        precision: bf16 or fp32. Default: bf16 on a GPU.
        side: How many runs to train side by side on a GPU, with commas between the numbers.
        methods: Whose steps are timed, with commas between them; all of them for all, or nothing.
        epochs: Timed epochs of each row.
        out: Where the figures go, as JSON.
    """
    from labelsieve.experiments.bench import bench_options

    bench_options(data, model, batch, device, precision, side, methods, epochs, out)


def predict(
    run: Positional[Annotated[Path, arg(metavar="RUN")]],
    data: Data,
    *,
    model: Text = None,
    label_column: Text = None,
    image_column: Text = None,
    out: File = None,
    device: str = "cpu",
) -> None:
    """Classify images with the model that a run delivered.

    Args:
        run: The run's folder.
        data: As for train, or a .npy file of images; of fashion, the embedded test set.
        model: For a network of one's own, package.module:factory again: nothing is imported because a file says so.
        label_column: As for train.
        image_column: As for train.
        out: Where the table (index, predicted_label, confidence) goes. Default: the terminal.
        device: cpu or cuda.
    """
    from labelsieve.experiments.single import classify

    classify(run, data, out, device, model, label=label_column, image=image_column)


def audit(
    run: Positional[Annotated[str, arg(metavar="RUN")]] = "",
    *,
    out: File = None,
    data: Text = None,
    labels: Text = None,
    pred_probs: File = None,
    classes: File = None,
    text: Text = None,
    export: UseAppendAction[tuple[str, ...]] = (),
    model: Text = None,
) -> None:
    """List the labels that are probably wrong, from a finished run or from probabilities of any classifier.

    Args:
        run: The run's folder.
        out: Where the tables and thumbnails go. Default: the folder audit in the run's.
        data: Where the run's data is now, if it was moved; with --pred-probs, what the samples are, to show them.
        labels: With --pred-probs, a .npy file of the labels; with a run, where its --labels file is now.
        pred_probs: A .npy file of probabilities, a row per sample, a column per class, not learnt from these labels.
        classes: With --pred-probs, a text file with the name of each column, one a line.
        text: With --pred-probs, what the samples are, as file.csv:column.
        export: Write also for another tool: cleanlab, label-studio, fiftyone, or corrected, a file for train --labels;
            may be repeated.
        model: For a network of one's own, where an older run must predict again: package.module:factory.
    """
    from labelsieve.experiments.audit import audit_options

    audit_options(run, labels, pred_probs, classes, text, data, out, export, model)


def methods(name: Positional[Annotated[str, arg(metavar="NAME")]] = "") -> None:
    """List the methods, their options and the criteria; with a name, show the page of that method.

    Args:
        name: A method, such as selfie.
    """
    from labelsieve.experiments.catalogue import listing, page

    print(page(name) if name else listing())


def check(
    data: Data,
    *,
    size: Whole = None,
    label_column: Text = None,
    image_column: Text = None,
) -> None:
    """Look at every file and row of a dataset: what is there, and all that cannot be used.

    Args:
        data: As for train.
        size: As for train.
        label_column: As for train.
        image_column: As for train.
    """
    from labelsieve.experiments.check import check as look

    look(data, size, label_column, image_column)


def noise(
    data: Data = "fashion",
    *,
    out: Path,
    label_column: Text = None,
    image_column: Text = None,
    skip_bad: bool = False,
    kind: str = "pair",
    rate: float = 0.4,
    noise_map: str = "",
    exact: bool = False,
    seed: int = 0,
) -> None:
    """Write noisy labels for a dataset, to be laid over it with `labelsieve train --labels`.

    Args:
        data: As for train.
        out: The label file (.csv) to write.
        label_column: As for train.
        image_column: As for train.
        skip_bad: As for train.
        kind: pair, symmetry, mixed, asymmetric, or a .npy or .csv file with a transition matrix.
        rate: Share of the labels to make wrong.
        noise_map: For asymmetric noise, which class becomes which: 9:1,2:0.
        exact: Give each class its exact share of noise instead of drawing it sample by sample.
        seed: Of the draw.
    """
    from labelsieve.experiments.single import write_noise

    columns = {"label": label_column, "image": image_column}
    write_noise(data, kind, rate, noise_map, exact, seed, out, skip_bad=skip_bad, **columns)


def review(
    run: Positional[Annotated[Path, arg(metavar="RUN")]],
    *,
    export: File = None,
    port: Whole = None,
    browser: bool = True,
) -> None:
    """Go through the suspect labels of a run, on a page of this machine, with the keyboard.

    Args:
        run: The run's folder; what `labelsieve audit` finds in it is made first, if it is not there.
        export: Instead of the page, write all labels with the decisions applied to this .csv file, for train --labels.
        port: Where the page is served, on this machine only. Default: a free port.
        browser: Open the page in the browser.
    """
    if export:
        from labelsieve.review.export import export as write

        print(write(run, export))
    else:
        from labelsieve.review.session import review as serve

        if (run / "done").exists() and not (run / "audit" / "gallery.jsonl").exists():
            audit(str(run))
        serve(run, port, browser)


def report(
    runs: Positional[Annotated[tuple[Path, ...], own_default(metavar="RUN...")]],
    *,
    out: File = None,
    gallery: int = 200,
) -> None:
    """Write one HTML file about a run, or several side by side: what was found, the samples, how the training went.

    Args:
        runs: The runs' folders.
        out: The file to write. Default: report.html in the run's folder, or here when there are several runs.
        gallery: How many of the most suspicious samples are shown.
    """
    from labelsieve.experiments.reporting import report as write

    if not runs:
        raise InputError("say which run the report is about: labelsieve report RUN")
    print(f"report: {write(runs, out, gallery, lambda run: audit(str(run)))}")


COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo,
    "train": train,
    "compare": compare,
    "predict": predict,
    "audit": audit,
    "methods": methods,
    "check": check,
    "noise": noise,
    "review": review,
    "table": table,
    "figure": figure,
    "results": results,
    "report": report,
    "bench": bench,
}


def method_options(lam: float | None, assignments: Sequence[str]) -> tuple[tuple[str, Any], ...]:
    """--lam and every --set name=value as pairs; numbers become numbers."""
    options: dict[str, Any] = {} if lam is None else {"lam": lam}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not (name and equals):
            raise InputError(f"--set takes name=value, got {assignment!r}")
        if name in options:
            raise InputError(f"the option {name} is given twice")
        try:
            options[name] = json.loads(value.lower())  # numbers, true and false
        except ValueError:
            options[name] = value
    return tuple(sorted(options.items()))


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command; what is wrong with the input becomes one line and exit code 2."""
    argv = sys.argv[1:] if argv is None else argv
    if list(argv) == ["--version"]:
        print(f"labelsieve {labelsieve.__version__}")
        sys.exit(0)
    try:
        code = execute(argv)
        sys.stdout.flush()
    except BrokenPipeError:  # such as `labelsieve methods | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


def execute(argv: Sequence[str]) -> int:
    try:
        parsed(argv)()
    except LabelsieveError as error:
        return fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return fail("stopped by SIGINT; the same command goes on", 130)
    except BrokenPipeError:
        raise
    except MemoryError:
        return fail("out of memory: use a smaller --batch or less data", 4)
    except Exception as error:
        with tempfile.NamedTemporaryFile("w", prefix="labelsieve-", suffix=".log", delete=False) as log:
            traceback.print_exc(file=log)
        return fail(f"a bug in labelsieve ({type(error).__name__}); please report it with {log.name}", 1)
    return 0


def fail(message: str, code: int) -> int:
    line = message.encode("unicode_escape").decode() if any(ord(c) < 32 for c in message) else message
    print(f"error: {line}", file=sys.stderr)
    return code


def parsed(argv: Sequence[str]) -> Callable[[], None]:
    """The command, ready to run; tyro's own error page is shortened to a line."""
    page = io.StringIO()
    commands = {name: deferred(command) for name, command in COMMANDS.items()}
    try:
        with contextlib.redirect_stderr(page):
            command: Callable[[], None] = tyro.extras.subcommand_cli_from_dict(
                commands, prog="labelsieve", description=labelsieve.__doc__, args=list(argv)
            )
            return command
    except SystemExit as ending:
        if not ending.code:
            raise
        raise InputError(complaint(argv, page.getvalue())) from None


def deferred(command: Callable[P, None]) -> Callable[P, Callable[[], None]]:
    """Let the parser build the call, but not make it."""

    @functools.wraps(command)
    def build(*args: P.args, **kwargs: P.kwargs) -> Callable[[], None]:
        return functools.partial(command, *args, **kwargs)

    return build


def complaint(argv: Sequence[str], page: str) -> str:
    """The first sentence of tyro's boxed error page, with the name that was probably meant."""
    lines = [line.strip("│| ") for line in page.splitlines()[1:]]
    words = " ".join(line for line in lines if line.strip("╰╯─+-"))
    said = re.split("Perhaps you meant|Argument helptext|Available subcommands|For full helptext", words)[0]
    said = " ".join(said.split()).rstrip(".")
    if value_error := re.match(r"Error parsing (--[\w-]+)", said):
        return f"{value_error[1]} cannot take the value it was given; see labelsieve {argv[0]} --help"
    if not argv or argv[0] not in COMMANDS:
        hint = nearest(argv[0] if argv else "", COMMANDS)
        return f"{said}; {hint}" if argv else f"{said}; see labelsieve --help"
    options = [f"--{name.replace('_', '-')}" for name in inspect.signature(COMMANDS[argv[0]]).parameters]
    unknown = next((w for w in argv if w.startswith("--") and w.partition("=")[0] not in options), None)
    hint = f"{nearest(unknown, options)} See" if unknown else "see"
    return f"{said}; {hint} labelsieve {argv[0]} --help"


if __name__ == "__main__":
    main()
