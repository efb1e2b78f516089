"""Export the delivered model of a run for use without labelsieve: ONNX, torch.export, or a Hugging Face folder.

The exported graph takes uint8 images, table rows or token numbers and returns class probabilities. It contains the
normalisation, the backbone, and the rounding of features, so that it computes what `labelsieve predict` does. Decoding
and resizing of images, and the splitting of texts into tokens, come before it; the exported file describes them.
"""

import io
import json
import logging
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from labelsieve.data.classes import Array
from labelsieve.data.sets import CHANNELS, normalise_inputs
from labelsieve.errors import InputError, LabelsieveError, first_line
from labelsieve.features.backbones import TokenGraph, weights_with_head
from labelsieve.files import disk_error, make_folder, refuse_no_folder, write_atomically, writing
from labelsieve.models.linear import LinearHead
from labelsieve.models.lite import STAGES, VARIANTS
from labelsieve.models.networks import fold_norms
from labelsieve.predict import Predictor

TOLERANCE = 1e-4  # largest difference of a probability from that of `labelsieve predict`
CHECKED = 16  # generated samples on which they are compared
TOKENS = ("input_ids", "attention_mask")  # inputs of a model of texts
ABOUT = "labelsieve.json"  # the description in a file of torch.export
PREPROCESSING = {
    "images": "decode; turn upright by EXIF; convert to {mode}, transparent pixels on white; resize to {width} x "
    "{height} pixels with Pillow's BILINEAR; stack to uint8 (batch, {height}, {width}, {channels})",
    "rows": "float32 (batch, {columns}), columns in the order of `columns`; nothing is missing",
    "texts": "split into tokens with `tokenizer`, {special} special tokens{most}; pad input_ids on the right with 0, "
    "attention_mask is 1 for tokens and 0 for padding, int64 (batch, tokens)",
}
TIMM_NAMES = {
    **{name: f"tf_efficientnet_{name}" for name in VARIANTS},
    **{f"resnet-{depth}": f"resnet{depth}" for depth in (18, 34, 50)},
}
HF_FILES = ("config.json", "model.safetensors", "preprocessor_config.json", "README.md")


class Exportable(NamedTuple):
    """A model with everything that an export needs."""

    graph: nn.Module  # inputs -> probabilities (B, K)
    inputs: dict[str, Tensor]  # generated samples, by the name of the input
    expected: Array  # probabilities of `Predictor` for them (B, K)
    about: dict[str, Any]  # classes, inputs and preprocessing
    tokenizer: str = ""  # of a model of texts, as the package tokenizers reads it
    longest: int | None = None  # tokens of a text


class Written(NamedTuple):
    """The result of an export."""

    path: Path
    size: int  # bytes
    difference: float | None  # largest, of a probability; None if it was not checked
    checker: str  # the package that checked it, or the one that would


# ---- graphs --------------------------------------------------------------------------------------------------------


class _ImageGraph(nn.Module):
    """Probabilities (B, K) of uint8 images (B, H, W, C)."""

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        backbone = predictor.backbone
        self.normalise, self.network = predictor.normalise, predictor.network
        self.encoder: nn.Module | None = None
        if backbone is not None:
            assert backbone.network is not None
            self.encoder = fold_norms(backbone.network) if backbone.own else backbone.network

    def forward(self, images: Tensor) -> Tensor:
        channels_first = images.permute(0, 3, 1, 2)
        if self.encoder is None:
            return self.network(normalise_inputs(channels_first, self.normalise)).softmax(-1)
        return self.network(_rounded(self.encoder(channels_first))).softmax(-1)


class _RowGraph(nn.Module):
    """Probabilities (B, K) of table rows or features (B, F)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, rows: Tensor) -> Tensor:
        return self.network(rows).softmax(-1)


class _TextGraph(nn.Module):
    """Probabilities (B, K) of texts as token numbers and their mask (B, T)."""

    def __init__(self, encoder: nn.Module, network: nn.Module) -> None:
        super().__init__()
        self.encoder, self.network = encoder, network

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.network(_rounded(self.encoder(input_ids, attention_mask))).softmax(-1)


def _rounded(features: Tensor) -> Tensor:
    """Round features as those on disk are rounded, which the head was fitted to."""
    return features.half().float()


def exportable(predictor: Predictor) -> Exportable:
    """Return the graph of a model, with samples to check it; refuse encoders of texts whose tokenizer is no file."""
    backbone = predictor.backbone
    if backbone is not None and backbone.kind == "texts":
        if backbone.tokens is None or not backbone.tokens.tokenizer:
            raise InputError(f"the tokenizer of {backbone.name} cannot be exported; use labelsieve predict")
        return _exportable_texts(predictor, backbone.tokens, backbone.name)
    about: dict[str, Any] = {"classes": list(predictor.classes), "output": "probabilities"}
    if backbone is None and len(predictor.shape) == 1:
        rows = _sample_rows(predictor)
        columns = list(predictor.columns or ())
        about |= {"inputs": ["rows"], "columns": columns or None, "backbone": None}
        about["preprocessing"] = PREPROCESSING["rows"].format(columns=predictor.shape[0])
        return Exportable(_RowGraph(predictor.network), {"rows": rows}, predictor.predict_proba(rows.numpy()), about)
    channels, height, width = (3, backbone.size, backbone.size) if backbone else predictor.shape
    images = _sample_images(height, width, channels)
    size = {"height": height, "width": width, "channels": channels}
    about |= {"inputs": ["images"], **size, "normalisation": _normalisation(predictor)}
    about["preprocessing"] = PREPROCESSING["images"].format(**size, mode="L" if channels == 1 else "RGB")
    about["backbone"] = backbone.name if backbone else None
    return Exportable(_ImageGraph(predictor), {"images": images}, predictor.predict_proba(images.numpy()), about)


def _exportable_texts(predictor: Predictor, encoder: TokenGraph, name: str) -> Exportable:
    texts = ["", "A text.", *(f"Sample number {k} of {CHECKED}, with words." * (k % 4 + 1) for k in range(CHECKED - 2))]
    tokens = encoder.tokenize(texts)
    longest = max(map(len, tokens))
    ids = torch.tensor([each + [0] * (longest - len(each)) for each in tokens])
    mask = torch.tensor([[1] * len(each) + [0] * (longest - len(each)) for each in tokens])
    most = f", at most {encoder.longest} tokens" if encoder.longest else ""
    preprocessing = PREPROCESSING["texts"].format(special="with" if encoder.special_tokens else "without", most=most)
    about = {"classes": list(predictor.classes), "output": "probabilities", "inputs": list(TOKENS)}
    about |= {"preprocessing": preprocessing, "backbone": name}
    graph = _TextGraph(encoder.network, predictor.network)
    inputs = dict(zip(TOKENS, (ids, mask), strict=True))
    return Exportable(graph, inputs, predictor.predict_proba(texts), about, encoder.tokenizer, encoder.longest)


def _normalisation(predictor: Predictor) -> str:
    """Describe what the graph does with pixels."""
    if predictor.backbone is not None:
        pixels = predictor.backbone.network
        mean, deviation = (getattr(pixels, name).flatten().tolist() for name in ("mean", "deviation"))
        return f"in the graph: (pixels - {mean}) / {deviation}"
    if predictor.normalise in CHANNELS:
        mean, deviation = map(list, CHANNELS[predictor.normalise])
        return f"in the graph: (pixels / 255 - {mean}) / {deviation}; their averages for grayscale"
    return "in the graph: each image is scaled to mean 0 and standard deviation 1 over all pixels and channels"


def _sample_images(height: int, width: int, channels: int) -> Tensor:
    """Return images from noise to smooth ones, (n, height, width, channels) uint8."""
    random = torch.Generator().manual_seed(0)
    noise = torch.rand(CHECKED, channels, height, width, generator=random)
    coarse = torch.rand(CHECKED, channels, 4, 4, generator=random)
    smooth = nn.functional.interpolate(coarse, (height, width), mode="bilinear")
    share = torch.linspace(0, 1, CHECKED).view(-1, 1, 1, 1)
    return (255 * (share * noise + (1 - share) * smooth)).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def _sample_rows(predictor: Predictor) -> Tensor:
    """Return rows with the mean and deviation of the training set where the network knows them."""
    rows = torch.randn(CHECKED, *predictor.shape, generator=torch.Generator().manual_seed(0))
    for module in predictor.network.modules():
        if isinstance(module, nn.BatchNorm1d) and module.num_features == rows.shape[1]:
            assert module.running_mean is not None and module.running_var is not None
            return module.running_mean + rows * module.running_var.sqrt()
    return rows


# ---- formats -------------------------------------------------------------------------------------------------------


def export_model(predictor: Predictor, form: str, path: Path, force: bool = False) -> Written:
    """Write a model in one of `FORMATS`, and compare it with `predictor`; nothing is written if they differ.

    Args:
        predictor: from `labelsieve.load(run)`, on the CPU.
        form: "onnx", "torch-export" or "huggingface".
        path: a file; a folder for huggingface.
        force: replace an earlier export.
    """
    refuse_output(form, path, force)
    return FORMATS[form](predictor, path)


def refuse_output(form: str, path: Path, force: bool) -> None:
    """Refuse an unknown format, one whose packages are missing, and an output that cannot be written."""
    if form not in FORMATS:
        raise InputError(f"--format must be one of {', '.join(FORMATS)}, got {form!r}")
    for package in ("onnx", "onnxscript") if form == "onnx" else ():
        if find_spec(package) is None:
            raise InputError(f"--format onnx: {package} is not installed; run pip install 'labelsieve[onnx]'")
    refuse_no_folder(path.parent)
    if not path.exists():
        return
    if path.is_dir() != (form == "huggingface"):
        raise InputError(f"{path} is a {'folder' if path.is_dir() else 'file'}; name another --out")
    if not force:
        raise InputError(f"{path} exists; pass --force to replace it, or name another --out")
    if path.is_dir() and (others := sorted({file.name for file in path.iterdir()} - set(HF_FILES))):
        raise InputError(f"{path} contains other files ({others[0]}); name another --out")


def _export_onnx(predictor: Predictor, path: Path) -> Written:
    model = exportable(predictor)
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            _exported(model),
            dynamo=True,
            verbose=False,
            input_names=list(model.inputs),
            output_names=[model.about["output"]],
        )
        assert program is not None
        proto = program.model_proto
    texts = {"tokenizer": model.tokenizer} if model.tokenizer else {}
    described = {"classes": json.dumps(model.about["classes"]), "labelsieve": _description(model.about), **texts}
    import_module("onnx").helper.set_model_props(proto, described)
    content: bytes = proto.SerializeToString()
    difference = None
    if find_spec("onnxruntime"):
        session = import_module("onnxruntime").InferenceSession(content, providers=["CPUExecutionProvider"])
        found = session.run(None, {name: value.numpy() for name, value in model.inputs.items()})[0]
        difference = _compared(found, model.expected, "onnxruntime")
    return _write_file(path, content, difference, "onnxruntime")


def _export_torch(predictor: Predictor, path: Path) -> Written:
    model = exportable(predictor)
    extra = {ABOUT: _description(model.about)} | ({"tokenizer.json": model.tokenizer} if model.tokenizer else {})
    content = io.BytesIO()
    with _quiet(), torch.no_grad():
        torch.export.save(_exported(model), content, extra_files=extra)
        content.seek(0)
        again: Callable[..., Tensor] = torch.export.load(content).module()
        difference = _compared(again(**model.inputs).numpy(), model.expected, "torch.export")
    return _write_file(path, content.getvalue(), difference, "torch.export")


def _exported(model: Exportable) -> torch.export.ExportedProgram:
    """Trace the graph for any number of samples, and of tokens."""
    free = {0: torch.export.Dim("batch")}
    if model.tokenizer:
        free[1] = torch.export.Dim("tokens", max=model.longest)
    shapes = {name: dict(free) for name in model.inputs}
    try:
        return torch.export.export(model.graph.eval(), (), dict(model.inputs), dynamic_shapes=shapes)
    except Exception as error:  # networks from other packages may do what cannot be traced
        raise InputError(f"torch.export cannot trace this network: {first_line(error, 300)}") from error


def _description(about: Mapping[str, Any]) -> str:
    return json.dumps({**about, "version": version("labelsieve")}, ensure_ascii=False)


def _compared(found: Array, expected: Array, name: str) -> float:
    """Return the largest difference; raise if it is too large."""
    difference = float(np.abs(found - expected).max())
    if not difference <= TOLERANCE:
        raise LabelsieveError(
            f"{name} computes other probabilities than labelsieve predict (largest difference {difference:.1e}); "
            "nothing was written: please report it"
        )
    return difference


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the warnings and log messages of torch's exporters."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _write_file(path: Path, content: bytes, difference: float | None, checker: str) -> Written:
    make_folder(path.parent)
    with writing(path) as file:
        file.write(content)
    return Written(path, len(content), difference, checker)


# ---- Hugging Face --------------------------------------------------------------------------------------------------


def _export_huggingface(predictor: Predictor, path: Path) -> Written:
    """Write a folder that transformers loads as a network of timm, without code of ours."""
    name, weights, (mean, deviation), size = _whole_network(predictor)
    config = {
        "architecture": TIMM_NAMES[name],
        "architectures": ["TimmWrapperForImageClassification"],
        "model_type": "timm_wrapper",
        "num_classes": len(predictor.classes),
        "label_names": list(predictor.classes),
        "problem_type": "single_label_classification",
        "pretrained_cfg": {
            "input_size": [3, size, size],
            "num_classes": len(predictor.classes),
            "mean": list(mean),
            "std": list(deviation),
            "interpolation": "bilinear",
            "crop_pct": 1.0,
            "crop_mode": "squash",
        },
    }
    files = {
        "config.json": json.dumps(config, indent=1, ensure_ascii=False).encode(),
        "preprocessor_config.json": json.dumps(
            {"image_processor_type": "TimmWrapperImageProcessor", "pretrained_cfg": config["pretrained_cfg"]}, indent=1
        ).encode(),
        "model.safetensors": save(_as_timm(name, weights), {"format": "pt"}),
        "README.md": _model_card(TIMM_NAMES[name], predictor.classes, size).encode(),
    }
    new, old = (path.with_name(f".{path.name}.{word}") for word in ("new", "old"))
    try:
        for place in (new, old):
            shutil.rmtree(place, ignore_errors=True)
        new.mkdir(parents=True)
        for file, content in files.items():
            write_atomically(new / file, content)
        difference = _compare_huggingface(new, predictor, size) if _can_load_timm() else None
        if path.exists():
            path.rename(old)
        new.rename(path)
    except OSError as error:
        if old.exists() and not path.exists():
            old.rename(path)
        raise disk_error(path, error) from error
    finally:
        for place in (new, old):
            shutil.rmtree(place, ignore_errors=True)
    return Written(path, sum(map(len, files.values())), difference, "transformers")


def _whole_network(predictor: Predictor) -> tuple[str, dict[str, Tensor], Any, int]:
    """Return name, weights, mean and deviation of pixels, and side of a network that timm has, too; else refuse."""
    backbone, network = predictor.backbone, predictor.network
    if backbone and backbone.name in TIMM_NAMES and isinstance(network, LinearHead):
        assert backbone.network is not None
        pixels = [
            [value / 255 for value in getattr(backbone.network, x).flatten().tolist()] for x in ("mean", "deviation")
        ]
        return backbone.name, weights_with_head(backbone, network), pixels, backbone.size
    square = len(predictor.shape) == 3 and predictor.shape[0] == 3 and predictor.shape[1] == predictor.shape[2]
    if backbone is None and predictor.model in TIMM_NAMES and predictor.normalise in CHANNELS and square:
        return predictor.model, network.state_dict(), CHANNELS[predictor.normalise], predictor.shape[1]
    if backbone and "+" in backbone.name:
        raise InputError(
            f"transformers has no network like {backbone.name}, which is two: export it to onnx or torch-export, or "
            f"train with --backbone {backbone.name.rpartition('+')[2]} for --format huggingface"
        )
    raise InputError(
        f"--format huggingface exports {', '.join(TIMM_NAMES)} for square images in colour, as a backbone or trained "
        "with --normalise imagenet or lite; transformers has no network like this one: use onnx or torch-export"
    )


def _as_timm(name: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights under the names of timm; those of the ResNets are the same."""
    renamed = dict(_lite_names(name)) if name in VARIANTS else {}
    tensors = {}
    for key, tensor in weights.items():
        layer, _, parameter = key.rpartition(".")
        tensors[f"{renamed.get(layer, layer)}.{parameter}"] = tensor.detach().clone().contiguous()
    return tensors


def _lite_names(name: str) -> Iterator[tuple[str, str]]:
    """Yield the layers of an EfficientNet-Lite and their names in timm, where blocks are counted by stage."""
    yield from (("_conv_stem", "conv_stem"), ("_bn0", "bn1"), ("_conv_head", "conv_head"), ("_bn1", "bn2"))
    yield "_fc", "classifier"
    number = 0
    for stage, (repeats, _, _, expansion, _) in enumerate(STAGES):
        scaled = 0 < stage < len(STAGES) - 1
        layers = ["expand", "depthwise", "project"] if expansion > 1 else ["depthwise", "project"]
        others = ["conv_pw", "conv_dw", "conv_pwl"] if expansion > 1 else ["conv_dw", "conv_pw"]
        for position in range(ceil(VARIANTS[name].depth * repeats) if scaled else repeats):
            for place, (layer, other) in enumerate(zip(layers, others, strict=True)):
                norm = place if expansion > 1 else place + 1  # ours counts from the expansion, which may be missing
                yield f"_blocks.{number}._{layer}_conv", f"blocks.{stage}.{position}.{other}"
                yield f"_blocks.{number}._bn{norm}", f"blocks.{stage}.{position}.bn{place + 1}"
            number += 1


def _can_load_timm() -> bool:
    """Return whether the packages that load the folder are installed, and fit the installed torch."""
    try:
        return all(import_module(package) for package in ("transformers", "timm", "torchvision"))
    except (ImportError, RuntimeError):  # RuntimeError: torchvision does not match torch
        return False


def _compare_huggingface(folder: Path, predictor: Predictor, size: int) -> float:
    """Load the folder with transformers, and return the largest difference of a probability.

    Features are not rounded there, which moves probabilities by more than 1e-4; ten times that is accepted.
    """
    from PIL import Image

    with _quiet(), torch.no_grad():
        transformers = import_module("transformers")
        network = transformers.AutoModelForImageClassification.from_pretrained(folder, local_files_only=True).eval()
        processor = transformers.AutoImageProcessor.from_pretrained(folder, local_files_only=True)
        images = _sample_images(size, size, 3).numpy()
        inputs = processor([Image.fromarray(image) for image in images], return_tensors="pt")
        found = network(**inputs).logits.softmax(-1).numpy()
    return _compared(found / 10, predictor.predict_proba(images) / 10, "transformers") * 10


def _model_card(architecture: str, classes: Sequence[str], size: int) -> str:
    names = "\n".join(f"- {name}" for name in classes)
    return f"""---
library_name: transformers
pipeline_tag: image-classification
tags: [image-classification, timm, labelsieve]
---

# Image classifier

{architecture}, trained by labelsieve on data whose labels may be partly wrong. Images are resized to {size} x {size}
pixels; the aspect ratio is not kept.

```python
from transformers import pipeline  # needs timm and torchvision

classify = pipeline("image-classification", model="path/of/this/folder")
print(classify("photo.jpg"))
```

## Classes

{names}
"""


FORMATS: dict[str, Callable[[Predictor, Path], Written]] = {
    "onnx": _export_onnx,
    "torch-export": _export_torch,
    "huggingface": _export_huggingface,
}
