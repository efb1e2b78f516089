"""The command line. Each command is a thin function; what it needs is imported when it runs."""

import contextlib
import functools
import inspect
import io
import itertools
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, ParamSpec, get_args

import tyro
from tyro.conf import OmitArgPrefixes, Positional, UseAppendAction, arg

import labelsieve
from labelsieve.commands import options
from labelsieve.commands.options import Data, File, Number, SomeData, Text, Whole, own_default
from labelsieve.errors import InputError, LabelsieveError, nearest, unexpected

P = ParamSpec("P")
GOING_ON = ("train", "table", "compare", "figure", "demo")  # commands that go on where they were cut
MOST_WORDS = 12  # of a path with blanks


def demo(
    *,
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
        rate: Share of the labels that it makes wrong, from 0 to below 1: the methods are told it.
        seeds: How many times each method is trained, each time with other noise.
        first_seed: The first of these seeds.
        methods: Which methods, with commas between them; co-teaching:all is co-teaching with criterion all; all of them
            for all.
        out: Folder for the runs and the picture. Runs that are there already are not run again.
    """
    from labelsieve.sweep.compare import compare, expanded

    every = range(first_seed, first_seed + seeds)
    compare("fashion", expanded(methods), noise=noise, rate=rate, noise_rate=rate, seeds=every, out=out)


def train(
    data: SomeData = "fashion",
    *,
    method: Text = None,
    criterion: Text = None,
    lam: Number = None,
    set: UseAppendAction[tuple[str, ...]] = (),
    noise_rate: Text = None,
    scores: str = "",
    final: bool = True,
    seed: int = 0,
    out: File = None,
    dry_run: bool = False,
    reading: OmitArgPrefixes[options.Streaming],
    noise: OmitArgPrefixes[options.Noise],
    training: OmitArgPrefixes[options.Training],
    machine: OmitArgPrefixes[options.OneMachine],
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
        noise_rate: The share of labels that is believed wrong, from 0 to below 1, or auto: found out by a probe first.
            Default: the rate of the added noise, or auto.
        scores: Epochs after which every sample's scores are kept in the run's folder, with commas between them: 25,40.
        final: Where the noise rate is found out and no method is named: train once more, from all samples with the
            suspects under the labels that the audit suggests, and deliver that model.
        seed: Of everything random.
        out: The run's folder. Default: runs/ and a name made from all of this.
        dry_run: Only say what would be done and what it would cost.
    """
    from labelsieve.auto import train as single
    from labelsieve.auto import train as train_auto
    from labelsieve.auto.plan import FREE
    from labelsieve.commands import options as asked

    typed = retyped("train", data, locals())
    experiment, unknown = asked.from_options(
        data,
        method=method,
        criterion=criterion,
        options=method_options(lam, set),
        noise_rate=noise_rate,
        scores=asked.epoch_numbers(scores),
        seed=seed,
        **vars(reading),
        **vars(noise),
        **vars(training),
        **vars(machine),
    )
    path = out or Path("runs") / (experiment.name() + ("-auto" if unknown else ""))
    free = [name for name in FREE if getattr(training, name) is None]
    plans = train_auto.settled(experiment, free, unknown)
    if dry_run:
        print(train_auto.forecast_of(plans, path, final and unknown and method is None))
    elif unknown:
        train_auto.train_auto(plans, path, method, typed, final)
        report((path,))
        print(f"go through the suspects: labelsieve review {shlex.quote(str(path))}")
    else:
        (experiment, _), _ = train_auto.chosen_network(plans, path, typed)
        single.train(experiment, path, command=typed)
        print(f"suspects and page: labelsieve report {shlex.quote(str(path))}")


def compare(
    data: SomeData = "fashion",
    *,
    methods: str = "default,mentornet,mentornet-prop",
    noise: Text = None,
    rate: Number = None,
    noise_rate: Number = None,
    seeds: int = 3,
    first_seed: int = 0,
    against: Text = None,
    format: str = "text",
    save: File = None,
    out: Path = Path("runs/compare"),
    reading: OmitArgPrefixes[options.Reading],
    training: OmitArgPrefixes[options.Learning],
    machines: OmitArgPrefixes[options.Machines],
) -> None:
    """Train several methods over several seeds, side by side on a GPU, and compare their errors on the test set.

    Args:
        data: As for train, with a test set.
        methods: Which methods, with commas between them; co-teaching:all is co-teaching with criterion all,
            mentornet-prop:lam=0.5 mentornet-prop with that option; all of them for all.
        noise: Corrupt the labels first: pair, symmetry or mixed. Default: the labels as they are.
        rate: Share of the labels that the added noise makes wrong, from 0 to 1.
        noise_rate: The share of labels that is believed wrong, from 0 to below 1. Default: the rate of the added noise.
        seeds: How many times each method is trained, each time with other noise.
        first_seed: The first of these seeds.
        against: Set every other method against this one, seed by seed. Default: the paper's pairs, such as sl-prop and
            sl, against each other, and of up to six methods the rest against the first; in a csv all against the first.
        format: text, markdown, latex or csv, which has a line for every run.
        save: A file for the table. Default: the terminal; table.md is written anyway.
        out: Folder for the runs, table.md and the picture. Runs that are there already are not run again.
    """
    from labelsieve.commands.options import compare_options
    from labelsieve.sweep.compare import expanded

    compare_options(
        data,
        expanded(methods),
        noise=noise,
        rate=rate,
        noise_rate=noise_rate,
        seeds=range(first_seed, first_seed + seeds),
        against=against,
        form=format,
        save=save,
        out=out,
        **vars(reading),
        **vars(training),
        **vars(machines),
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
    format: str = "text",
    save: File = None,
    running: OmitArgPrefixes[options.Reproducing],
) -> None:
    """Reproduce a table of the paper: run what is missing of it, and print our numbers beside the printed ones.

    Args:
        name: The table: 1, 2, 3, 5, 6, 7 or 8 of the paper, or small, a table on the embedded data.
        dataset: Only these datasets, with commas between them: cifar10, cifar100, tiny-imagenet, ...
        noise: Only these kinds of noise: pair, symmetry, mixed, or own where the data has its own.
        rate: Only these rates: 0.2,0.4.
        methods: Only these of its methods, with commas between them. The table small, of default, mentornet,
            mentornet-prop and sl-prop, takes any other as well.
        seeds: Trials of each cell. Default: three for the paper's tables, two for the small one.
        epochs: Of the small table's runs; the paper's tables say their own. Default: 12.
        format: text, markdown, latex or csv.
        save: A file for the table. Default: the terminal.
    """
    from labelsieve.paper.reproduce import reproduce

    keep = {"dataset": dataset, "noise": noise, "rate": rate, "methods": methods}
    reproduce(name, keep=keep, seeds=seeds, epochs=epochs, form=format, save=save, **vars(running))


def figure(
    number: Positional[Annotated[int, arg(metavar="NUMBER")]],
    *,
    dataset: Text = None,
    seeds: int = 3,
    save: File = None,
    running: OmitArgPrefixes[options.Reproducing],
) -> None:
    """Draw a figure of the paper from finished runs, as PNG and SVG; the runs that are missing are trained first.

    Args:
        number: 3, 7, 8, 9, 10 or 11, as in the paper.
        dataset: Only this one: cifar10, cifar100 or tiny-imagenet; or fashion, the embedded data, to try it out.
            Default: the paper's.
        seeds: How many runs make a point. Figure 3 is always of one.
        save: Folder for the pictures. Default: that of the runs.
    """
    from labelsieve.paper.figures import figure_options

    figure_options(number, dataset, seeds, save=save, **vars(running))


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
    from labelsieve.paper.results import results as write

    write(results, out, check)


def bench(
    data: SomeData = "fashion",
    *,
    model: Text = None,
    batch: int = 128,
    side: str = "2,4,6",
    methods: str = "all",
    epochs: int = 3,
    out: Path = Path("benchmarks/results/bench.json"),
    machine: OmitArgPrefixes[options.Machine],
) -> None:
    """Measure how fast training is on this machine, beside a plain loop and the floor of the hardware.

    Args:
        data: As for train, with a test set.
        model: As for train.
        batch: Samples per step.
        side: How many runs to train side by side on a GPU, with commas between the numbers.
        methods: Whose steps are timed, with commas between them; all of them for all, or nothing.
        epochs: Timed epochs of each row.
        out: Where the figures go, as JSON.
    """
    from benchmarks.bench import bench_options

    bench_options(data, model, batch, side=side, methods=methods, epochs=epochs, out=out, **vars(machine))


def predict(
    run: Positional[Annotated[Path, arg(metavar="RUN")]],
    data: Data,
    *,
    model: Text = None,
    out: File = None,
    device: str = "cpu",
    columns: OmitArgPrefixes[options.Columns],
) -> None:
    """Classify images with the model that a run delivered.

    Args:
        run: The run's folder.
        data: As for train, or a .npy file of images, or a single picture; of fashion, the embedded test set.
        model: For a network of one's own, package.module:factory again: nothing is imported because a file says so.
        out: Where the table (id, predicted_label, confidence) goes. Default: the terminal.
        device: cpu or cuda.
    """
    from labelsieve.commands.predict import classify

    classify(run, data, out, device, model, label=columns.label_column, image=columns.image_column)


def audit(
    run: Positional[Annotated[str, arg(metavar="[RUN]")]] = "",
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
        labels: With --pred-probs, a .npy, .npz or .csv file of the labels; with a run, where its --labels file is now.
        pred_probs: A .npy, .npz or .csv file of probabilities, a row per sample, a column per class, not learnt from
            these labels.
        classes: With --pred-probs, a text file with the name of each column, one a line. Default: a .csv's header.
        text: With --pred-probs, what the samples are, as file.csv:column.
        export: Write also for another tool: cleanlab, label-studio, fiftyone, or corrected, a file for train --labels;
            may be repeated.
        model: For a network of one's own, where an older run must predict again: package.module:factory.
    """
    from labelsieve.auto.audit import audit_options

    audit_options(run, labels, pred_probs, classes, text, data, out, export, model)


def methods(name: Positional[Annotated[str, arg(metavar="[NAME]")]] = "") -> None:
    """List the methods, their options and the criteria; with a name, show the page of that method.

    Args:
        name: A method, such as selfie.
    """
    from labelsieve.commands.methods import listing, page

    print(page(name) if name else listing())


def check(data: Data, *, reading: OmitArgPrefixes[options.Scaling]) -> None:
    """Look at every file and row of a dataset: what is there, and all that cannot be used.

    Args:
        data: As for train.
    """
    from labelsieve.commands.check import check as look

    look(data, reading.size, reading.label_column, reading.image_column)


def noise(
    data: SomeData = "fashion",
    *,
    out: Path,
    kind: str = "pair",
    rate: float = 0.4,
    noise_map: str = "",
    exact: bool = False,
    seed: int = 0,
    skip_bad: bool = False,
    columns: OmitArgPrefixes[options.Columns],
) -> None:
    """Write noisy labels for a dataset, to be laid over it with `labelsieve train --labels`.

    Args:
        data: As for train.
        out: The label file (.csv) to write.
        kind: pair, symmetry, mixed, asymmetric, or a .npy or .csv file with a transition matrix.
        rate: Share of the labels to make wrong, from 0 to 1.
        noise_map: For asymmetric noise, which class becomes which: 9:1,2:0.
        exact: Give each class its exact share of noise instead of drawing it sample by sample.
        seed: Of the draw.
        skip_bad: Leave out the files and rows that cannot be used.
    """
    from labelsieve.commands.noise import write_noise

    named = {"label": columns.label_column, "image": columns.image_column}
    write_noise(data, kind, rate, noise_map, exact, seed, out, skip_bad=skip_bad, **named)


def review(
    run: Positional[Annotated[Path, arg(metavar="RUN")]],
    *,
    export: File = None,
    port: Whole = None,
    browser: bool = True,
) -> None:
    """Go through the suspect labels of a run, on a page of this machine, with the keyboard.

    Args:
        run: The run's folder; what `labelsieve audit` finds in it is made first, if it is not there. Or the folder that
            `labelsieve audit --pred-probs` wrote.
        export: Instead of the page, write all labels with the decisions applied to this .csv file, for train --labels.
        port: Where the page is served, on this machine only. Default: a free port.
        browser: Open the page in the browser.
    """
    from labelsieve.runs.find import refuse_unfinished

    refuse_unfinished(run)
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
        runs: The runs' folders; or one that `labelsieve audit --pred-probs` wrote.
        out: The file to write. Default: report.html in the run's folder, or here when there are several runs.
        gallery: How many of the most suspicious samples are shown.
    """
    from labelsieve.report.page import report as write

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


def retyped(command: str, first: str, values: Mapping[str, Any]) -> str:
    """A command line with these values, as a person would type it again; what is as usual is left out."""
    words = ["labelsieve", command, first]
    every = {**values, **{k: v for group in filter(is_dataclass, values.values()) for k, v in vars(group).items()}}
    for name, usual in usual_options(COMMANDS[command]).items():
        value, option = every[name], f"--{name.replace('_', '-')}"
        if value == usual or name == "dry_run":
            continue
        if isinstance(value, bool):
            words += [option if value else option.replace("--", "--no-")]
        else:
            words += [word for one in (value if isinstance(value, tuple) else (value,)) for word in (option, str(one))]
    return shlex.join(words)


def usual_options(command: Callable[..., None]) -> dict[str, Any]:
    """The options of a command by name, those of groups among them, with their defaults."""
    found: dict[str, Any] = {}
    for parameter in inspect.signature(command).parameters.values():
        if parameter.kind is not parameter.KEYWORD_ONLY:
            continue
        group = get_args(parameter.annotation)[:1]
        if group and is_dataclass(group[0]):
            found |= {field.name: field.default for field in fields(group[0])}
        else:
            found[parameter.name] = parameter.default
    return found


def method_options(lam: float | None, assignments: Sequence[str]) -> tuple[tuple[str, Any], ...]:
    """--lam and every --set name=value as pairs."""
    from labelsieve.runs.spec import assigned

    return assigned([*([] if lam is None else [f"lam={lam}"]), *assignments])


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
        resumes = "".join(argv[:1]) in GOING_ON
        return fail(f"stopped by Ctrl-C{'; the same command goes on' if resumes else ''}", 130)
    except BrokenPipeError:
        raise
    except MemoryError:
        return fail("out of memory: use a smaller --batch or less data", 4)
    except Exception as error:
        return fail(unexpected(error), 1)
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


def wanted(argv: Sequence[str], option: str, words: str) -> str:
    """What an option takes instead of what it was given, from the words of tyro's error page."""
    typed = [word.partition("=")[2] for word in argv if word.startswith(f"{option}=")]
    typed += [value for word, value in itertools.pairwise(argv) if word == option]
    typed += re.findall(r"literal for int\(\) with base 10: '([^']*)'", words)  # of what has no name before it
    kinds = {r"\bint\b": "a whole number", r"\bfloat\b": "a number"}
    kind = next((kind for pattern, kind in kinds.items() if re.search(pattern, words)), "another value")
    return f"wants {kind}, not {typed[0]!r}" if typed else f"wants {kind}"


def complaint(argv: Sequence[str], page: str) -> str:
    """The first sentence of tyro's boxed error page, with the name that was probably meant."""
    lines = [line.strip("│| ") for line in page.splitlines()[1:]]
    words = " ".join(line for line in lines if line.strip("╰╯─+-"))
    said = re.split("Perhaps you meant|Argument helptext|Available subcommands|For full helptext", words)[0]
    said = " ".join(said.split()).rstrip(".")
    if value_error := re.match(r"Error parsing (--[\w-]+|[A-Z]+)", said):
        return f"{value_error[1]} {wanted(argv, value_error[1], words)}; see labelsieve {argv[0]} --help"
    if not argv or argv[0] not in COMMANDS:
        hint = nearest(argv[0] if argv else "", COMMANDS)
        return f"{said}; {hint}" if argv else f"{said}; see labelsieve --help"
    if said.startswith("Unrecognized") and (path := torn_path(argv[1:])):
        return f"put quotes around a path with blanks: {shlex.quote(path)}"
    known = [f"--{name.replace('_', '-')}" for name in usual_options(COMMANDS[argv[0]])]
    options = (word.partition("=")[0] for word in argv if word.startswith("--"))
    unknown = next((option for option in options if option not in known and option in said), None)
    if unknown:
        return f"labelsieve {argv[0]} has no {unknown}; {nearest(unknown, known)} See labelsieve {argv[0]} --help"
    return f"{said}; see labelsieve {argv[0]} --help"


def torn_path(words: Sequence[str]) -> str:
    """A path with blanks that the shell has cut into words, the longest; empty if these are parts of none."""
    spans = [words[first : first + count] for first in range(len(words)) for count in range(2, MOST_WORDS + 1)]
    there = [path for path in map(" ".join, spans) if os.path.exists(path)]  # noqa: PTH110  # Path fails on long ones
    return max(there, key=len, default="")


if __name__ == "__main__":
    main()
