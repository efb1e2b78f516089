"""labelsieve embed: compute the features of images or texts with a pretrained network, and write them to a file."""

import shlex
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from labelsieve.commands import options as shared
from labelsieve.errors import InputError

if TYPE_CHECKING:
    from labelsieve.data import ReadOptions


def add_arguments(parser: ArgumentParser) -> None:
    shared.add_data(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="file of features (.npz) to write")
    parser.add_argument(
        "--backbone",
        metavar="NAME",
        help="lite0, lite1, lite2, lite0+lite2 (both), resnet-18, resnet-34, resnet-50, minilm, wordllama, timm:NAME "
        "or hf:NAME; see docs/features.md. Default: lite0+lite2 for images; minilm, or wordllama, for texts",
    )
    parser.add_argument("--weights", metavar="FILE", help="weights of the backbone: .pth, .safetensors or .npz")
    parser.add_argument(
        "--size", type=shared.integer, metavar="N", help="side of the images. Default: that of the backbone"
    )
    parser.add_argument(
        "--cache",
        type=Path,
        metavar="FOLDER",
        help="folder that keeps features. Default: $LABELSIEVE_CACHE, or ~/.cache/labelsieve",
    )
    data = shared.add_columns(parser)
    data.add_argument("--skip-bad", action="store_true", help="skip files and rows that cannot be read")
    machine = parser.add_argument_group("machine")
    machine.add_argument("--device", default="auto", metavar="NAME", help="auto (default), cpu or cuda")
    machine.add_argument(
        "--workers",
        type=shared.integer,
        metavar="N",
        help="threads that encode, or that decode for a GPU. Default: one per core",
    )
    shared.add_on(machine)


def run(options: Namespace) -> None:
    shared.check_on(options)
    from labelsieve.data.images import describe_unusable
    from labelsieve.features.backbones import BackboneSpec
    from labelsieve.features.embed import load_embedded, refuse_file, save_features
    from labelsieve.progress import Counting
    from labelsieve.runtime import best_device

    refuse_file(options.out)
    shared.refuse_ambiguous(options.data)
    if options.workers is not None and options.workers < 1:
        raise InputError(f"--workers must be at least 1, got {options.workers}")
    reading = shared.reading(options, skip_bad=options.skip_bad)
    name = options.backbone or choose_backbone(options.data, reading)
    device = best_device() if options.device == "auto" else options.device
    spec = BackboneSpec(name, options.size, options.weights, device)
    backbone = spec.load()
    with Counting(f"embedding with {name}", backbone.kind) as counting:
        if options.on != "here":
            from labelsieve.sweep.embed import embed_on_ray

            embed_on_ray(
                options.data, reading, spec, on=options.on, cache=options.cache, watch=counting.step, say=print
            )
        sets = load_embedded(
            options.data,
            reading,
            backbone,
            cache=options.cache,
            workers=options.workers,
            watch=counting.step,
            on_unusable=lambda unusable: print(f"skipped {describe_unusable(unusable)}") if unusable else None,
        )
    save_features(options.out, sets, backbone)
    counts = " and ".join(f"{len(split):,} for {part}" for part, split in sets._asdict().items() if split is not None)
    size = f" at {backbone.size} pixels" if backbone.size else ""
    print(f"{options.out}: {backbone.kind} with {backbone.dim:,} features of {name}{size}, {counts}")
    print(f"train on them: labelsieve train {shlex.quote(str(options.out))}")


def choose_backbone(source: str, reading: "ReadOptions") -> str:
    """Return the installed backbone for the samples of a source, or raise InputError."""
    from labelsieve.catalogue import REQUIREMENTS, default_backbone
    from labelsieve.data.load import find
    from labelsieve.data.sets import Texts

    kind = "texts" if isinstance(find(source, reading).train, Texts) else "images"
    if (name := default_backbone(kind)) is None:
        raise InputError(
            f"no backbone for {kind} is installed; run pip install '{REQUIREMENTS[kind]}', or name a --backbone"
        )
    return name
