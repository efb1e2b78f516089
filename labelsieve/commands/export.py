"""labelsieve export: write the model of a run for use without labelsieve, and check it."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

CHECKER_HINT = {
    "onnxruntime": "pip install 'labelsieve[onnx]'",
    "transformers": "pip install transformers timm torchvision",
}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder")
    parser.add_argument(
        "--format",
        default="onnx",
        metavar="KIND",
        help="onnx (default): a file for onnxruntime and others; torch-export: a .pt2 file for torch.export.load; "
        "huggingface: a folder for transformers, of pretrained networks only (docs/export.md)",
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="PATH", help="file to write; a folder for huggingface"
    )
    parser.add_argument("--force", action="store_true", help="replace an earlier export")
    parser.add_argument("--model", metavar="NAME", help="package.module:factory again, if the network is your own")


def run(options: Namespace) -> None:
    from labelsieve.runs.find import refuse_unfinished

    refuse_unfinished(options.run)
    from labelsieve.export import export_model, refuse_output
    from labelsieve.predict import load

    refuse_output(options.format, options.out, options.force)
    written = export_model(load(options.run, model=options.model), options.format, options.out, options.force)
    print(f"{written.path}: {written.size / 1e6:.1f} MB, {options.format}")
    if written.difference is None:
        print(f"not checked: {written.checker} cannot be used here; {CHECKER_HINT[written.checker]}")
    else:
        print(
            f"checked with {written.checker} on generated samples: probabilities differ from labelsieve predict by at "
            f"most {written.difference:.1e}"
        )
