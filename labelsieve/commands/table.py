"""labelsieve table: reproduce a table of the paper; missing cells are trained."""

from argparse import ArgumentParser, Namespace

from labelsieve.commands import options as shared


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="N", help="1, 2, 3, 5, 6, 7 or 8 as in the paper, or small: on the embedded data"
    )
    parser.add_argument("--dataset", metavar="LIST", help="only these datasets: cifar10,cifar100,tiny-imagenet,...")
    parser.add_argument("--noise", metavar="LIST", help="only these kinds of noise: pair,symmetry,mixed, or own")
    parser.add_argument("--rate", metavar="LIST", help="only these noise rates: 0.2,0.4")
    parser.add_argument("--methods", metavar="LIST", help="only these methods; the table small accepts any method")
    parser.add_argument("--seeds", type=shared.integer, metavar="N", help="trials per cell. Default: 3; table small: 2")
    parser.add_argument(
        "--epochs", type=shared.integer, metavar="N", help="epochs of the runs of table small. Default: 12"
    )
    shared.add_output(parser)
    shared.add_reproduction(parser)


def run(options: Namespace) -> None:
    from labelsieve.paper.reproduce import reproduce

    reproduce(
        options.name,
        keep=shared.selected(options, "dataset", "noise", "rate", "methods"),
        form=options.format,
        **shared.selected(options, "seeds", "epochs", "save", "show", "out", "results", "at_once", "on"),
        **shared.selected(options, "device", "precision", "threads"),
    )
