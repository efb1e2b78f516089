"""labelsieve audit: list the labels that are probably wrong, from a finished run, probabilities or features."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from labelsieve.catalogue import refuse_unknown_name
from labelsieve.errors import InputError


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", default="", metavar="RUN", help="folder of a finished run")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="folder for tables and thumbnails. Default: audit/ in the run folder"
    )
    parser.add_argument(
        "--data", metavar="DATA", help="the run's data, if it was moved; without a run, the samples, to show them"
    )
    parser.add_argument(
        "--labels",
        metavar="FILE",
        help="without a run, the labels (.npy, .npz or .csv); with a run, its label file, if it was moved",
    )
    parser.add_argument(
        "--pred-probs",
        type=Path,
        metavar="FILE",
        help="out-of-sample probabilities (.npy, .npz or .csv), one row per sample, one column per class",
    )
    parser.add_argument(
        "--features",
        type=Path,
        metavar="FILE",
        help="instead of --pred-probs: features (.npy, .npz, .parquet or a saved dataset), one row per sample, such as "
        "embeddings",
    )
    parser.add_argument(
        "--classes",
        type=Path,
        metavar="FILE",
        help="without a run, class names, one per line. Default: a .csv's header",
    )
    parser.add_argument("--text", metavar="FILE:COLUMN", help="without a run, the texts of the samples")
    parser.add_argument(
        "--export",
        action="append",
        default=[],
        metavar="KIND",
        help="also write for cleanlab, label-studio or fiftyone, or corrected labels for train --labels; repeatable",
    )
    parser.add_argument("--cache", metavar="FOLDER", help="the cache of the training, if it was given one with --cache")


def run(options: Namespace) -> None:
    from labelsieve.audit.files import EXPORTS

    for name in options.export:
        refuse_unknown_name("export", name, EXPORTS)
    without_run = options.pred_probs is not None or options.features is not None
    if options.run and not without_run:
        from labelsieve.auto.audit import audit_run

        audit_run(
            Path(options.run),
            options.out,
            options.data,
            options.labels,
            export=options.export,
            cache=options.cache,
        )
    elif without_run and options.labels is not None and options.out is not None and not options.run:
        from labelsieve.auto.files import audit_files

        audit_files(
            Path(options.labels),
            options.out,
            pred_probs=options.pred_probs,
            features=options.features,
            classes=options.classes,
            text=options.text,
            data=options.data,
            export=options.export,
        )
    else:
        raise InputError(
            "name the run to audit: labelsieve audit RUN; or give --labels and --out, and --pred-probs or --features"
        )
