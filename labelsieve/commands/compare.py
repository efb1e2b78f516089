"""labelsieve compare: train several methods over several seeds, and compare their errors on the test set."""

from argparse import ArgumentParser, Namespace

from labelsieve.commands import options as shared
from labelsieve.errors import InputError
from labelsieve.runs.spec import experiment_for, parse_methods

USED_SETTINGS = (
    *("size", "label_column", "image_column", "labels", "test", "skip_bad"),
    *("model", "epochs", "warmup", "batch", "lr", "sampler", "forward", "device", "precision", "threads"),
)


def add_arguments(parser: ArgumentParser) -> None:
    shared.add_data(parser, default="fashion")
    parser.add_argument(
        "--methods", default="default,mentornet,mentornet-prop", metavar="LIST", help=shared.METHODS_HELP
    )
    parser.add_argument(
        "--noise", metavar="KIND", help="add noise to the labels: pair, symmetry or mixed. Default: none"
    )
    parser.add_argument("--rate", type=shared.number, metavar="RATE", help="rate of the added noise, from 0 to 1")
    parser.add_argument(
        "--noise-rate",
        type=shared.number,
        metavar="RATE",
        help="noise rate given to the methods. Default: that of the added noise",
    )
    shared.add_seeds(parser)
    parser.add_argument(
        "--against",
        metavar="METHOD",
        help="compare every method with this one, seed by seed. Default: the paper's pairs, such as sl-prop and sl, "
        "and up to six other methods with the first; in a csv all with the first",
    )
    shared.add_output(parser)
    text = "folder for runs, table.md and picture; finished runs are not repeated"
    shared.add_path(parser, "--out", "runs/compare", "FOLDER", text)
    shared.add_reading(parser)
    shared.add_training(parser, full=False)
    shared.add_config(parser)
    machine = shared.add_machines(parser)
    machine.add_argument("--threads", type=shared.integer, metavar="N", help="CPU threads of each run. Default: 1")


def run(options: Namespace) -> None:
    shared.check_noise(options.noise, options.rate)
    if options.noise is not None and (shared.is_matrix(options.noise) or options.noise.startswith("asymmetric")):
        raise InputError(
            f"compare adds pair, symmetry or mixed noise, not {options.noise}; write labels with `labelsieve noise`, "
            "and pass them with --labels"
        )
    if options.noise_rate is None and options.rate is None:
        raise InputError(
            "give --noise pair --rate 0.4 to add noise, or --noise-rate, the share of labels that are wrong"
        )
    methods, seeds = parse_methods(options.methods), shared.seeds_of(options)
    settings = {name: value for name, value in shared.experiment_settings(options).items() if name in USED_SETTINGS}
    experiment_for(options.data, noise_rate=options.noise_rate, **settings)  # raises for wrong values
    shared.check_on(options)
    shared.warn_about_threads(options.threads, options.on)
    shared.save_config(options)
    from labelsieve.sweep.compare import compare  # imports torch, after all that can be checked without it

    compare(
        options.data,
        methods,
        noise=options.noise,
        rate=options.rate or 0.0,
        noise_rate=(options.rate or 0.0) if options.noise_rate is None else options.noise_rate,
        seeds=seeds,
        form=options.format,
        **shared.selected(options, "against", "save", "out", "at_once", "on"),
        **settings | shared.machine_settings(options),
    )
