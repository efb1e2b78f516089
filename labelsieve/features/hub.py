"""Backbones from timm and from Hugging Face's transformers: models in the local cache or in a folder.

Nothing is downloaded, and no code of a model is executed: only architectures of the installed packages are used.
"""

import importlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from labelsieve.errors import InputError, first_line
from labelsieve.features.backbones import (
    TEXT_BATCH,
    Backbone,
    Loader,
    Pixels,
    TokenGraph,
    digest_of,
    image_backbone,
    masked_mean,
    plain_text,
    refuse_options,
)
from labelsieve.models.load import load_weights

LONGEST_TEXT = 512  # tokens; the rest of a longer text is ignored
SHORTEST_TEXT = 8
ROWS = 8  # texts of similar length that are encoded at once


def load_hf(name: str, size: int | None, weights: Path | None, device: torch.device) -> Backbone:
    """Load an encoder of images or texts with transformers; a model of both, such as CLIP, encodes images."""
    if weights is not None:
        raise InputError(f"{name} has weights of its own; omit --weights")
    return load_folder(_local_folder(name.removeprefix("hf:"), name), name, size, device)


def load_folder(folder: Path, name: str, size: int | None, device: torch.device) -> Backbone:
    """Load an encoder from a folder in the format of transformers."""
    transformers = _import_optional("transformers", "labelsieve[huggingface]")
    processor = _image_processor(folder)
    model = _load_model(transformers, folder, name)
    facts = f"transformers {type(model).__name__} {_config_facts(model.config)}"
    if processor is not None:
        side = size or _image_side(processor, model.config)
        return image_backbone(name, _ImageEncoder(model), side, _pixel_values(processor), device, facts=facts)
    refuse_options(name, size, None)
    tokenizer = _load_tokenizer(transformers, folder, name)
    encoder = _TextEncoder(_Pooled(model, _pools_first_token(folder)), tokenizer, device)
    identity = digest_of(f"{facts} {encoder.settings()}", model.state_dict())
    try:
        with torch.no_grad():
            dim = encoder(["a text"]).shape[1]
    except Exception as error:  # code of other packages may raise anything
        raise InputError(f"{name} cannot encode a text: {first_line(error)}; use an encoder such as BERT") from error
    backend = getattr(tokenizer, "backend_tokenizer", None)
    tokens = TokenGraph(encoder.network, encoder.tokenize, backend.to_str() if backend else "", True, encoder.longest)
    return Backbone(name, "texts", dim, 0, identity, device, encoder, TEXT_BATCH, tokens=tokens)


def load_timm(name: str, size: int | None, weights: Path | None, device: torch.device) -> Backbone:
    """Load a network of timm with weights from a file or from the local cache of the hub."""
    timm = _import_optional("timm", "timm")
    try:
        model = timm.create_model(name.removeprefix("timm:"), pretrained=False)
    except Exception as error:  # code of other packages may raise anything
        raise InputError(f"{name} is not a network of timm: {first_line(error)}") from error
    settings = dict(model.pretrained_cfg)
    if weights is None and not settings.get("hf_hub_id"):
        raise InputError(f"{name} has no weights on the hub; pass --weights FILE")
    load_weights(model, weights or _local_folder(str(settings["hf_hub_id"]), name) / "model.safetensors")
    model.reset_classifier(0)
    side = size or int(settings["input_size"][-1])
    mean, deviation = ([255 * float(value) for value in settings[key]] for key in ("mean", "std"))
    backbone = image_backbone(name, model, side, (mean, deviation), device, facts=name)
    return backbone if weights is None else replace(backbone, file=str(weights.absolute()))


HUBS: dict[str, Loader] = {"timm": load_timm, "hf": load_hf}


def _import_optional(module: str, requirement: str) -> Any:
    try:
        return importlib.import_module(module)
    except (ImportError, RuntimeError) as error:  # RuntimeError: torchvision does not match torch
        raise InputError(f"{module} cannot be imported: {first_line(error)}; pip install '{requirement}'") from error


def _local_folder(repository: str, name: str) -> Path:
    """Return the folder of a model: the given one, or that of the local cache of the hub."""
    if Path(repository).is_dir():
        return Path(repository)
    hub = _import_optional("huggingface_hub", "labelsieve[huggingface]")
    try:
        return Path(hub.snapshot_download(repository, local_files_only=True))
    except Exception as error:  # names that cannot be on the hub raise other errors than missing ones
        raise InputError(
            f"{name} is not on this machine, and labelsieve downloads nothing; run hf download {repository}"
        ) from error


# ---- images --------------------------------------------------------------------------------------------------------


class _ImageEncoder(nn.Module):
    """The features of a vision model of transformers: (B, 3, H, W) -> (B, F).

    The projected features of models of images and texts (CLIP), the first token if the model has a token for the whole
    image (ViT, DINOv2), else the mean over all tokens or places. A pooling layer is not used: it is often untrained.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model: Any = model
        names = [name.rpartition(".")[2] for name, _ in model.named_parameters()]
        self.first_token = "cls_token" in names or "class_embedding" in names

    def forward(self, pixels: Tensor) -> Tensor:
        if hasattr(self.model, "get_image_features"):
            found = self.model.get_image_features(pixel_values=pixels)
            return found if isinstance(found, Tensor) else found.pooler_output
        hidden: Tensor = self.model(pixel_values=pixels).last_hidden_state
        if hidden.ndim == 4:  # (B, F, H, W)
            return hidden.mean((2, 3))
        return hidden[:, 0] if self.first_token else hidden.mean(1)


def _image_processor(folder: Path) -> dict[str, Any] | None:
    """Return the saved settings of the image processor; None if the model has none."""
    for file, key in (("preprocessor_config.json", None), ("processor_config.json", "image_processor")):
        settings = _read_json(folder / file)
        settings = settings.get(key, {}) if key else settings
        if "image_mean" in settings or "image_processor_type" in settings:
            return settings
    return None


def _image_side(processor: Mapping[str, Any], config: Any) -> int:
    """Return the side of the images that a model was made for."""
    crop = processor.get("crop_size") if processor.get("do_center_crop") else None
    size = crop or processor.get("size") or getattr(config, "image_size", None) or 224
    if isinstance(size, Mapping):
        size = size.get("height") or size.get("shortest_edge") or 224
    return int(size[0] if isinstance(size, Sequence) else size)


def _pixel_values(processor: Mapping[str, Any]) -> Pixels:
    """Return mean and deviation per channel of pixels from 0 to 255."""
    scale = float(processor.get("rescale_factor") or 1 / 255) if processor.get("do_rescale", True) else 1.0
    if not processor.get("do_normalize", True):
        return (0.0,) * 3, (1 / scale,) * 3
    mean, deviation = (processor.get(key) or [0.5] * 3 for key in ("image_mean", "image_std"))
    return [float(value) / scale for value in mean], [float(value) / scale for value in deviation]


# ---- texts ---------------------------------------------------------------------------------------------------------


class _Pooled(nn.Module):
    """The features of a text model of transformers: the first token, or the mean over the tokens, (B, F)."""

    def __init__(self, model: Any, first_token: bool) -> None:
        super().__init__()
        self.model, self.first_token = model, first_token

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden: Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state.float()
        return hidden[:, 0] if self.first_token else masked_mean(hidden, attention_mask)  # hidden: (B, T, F)


class _TextEncoder:
    """Encodes texts with a text model of transformers.

    Texts are encoded `ROWS` at a time and padded to a power of two of tokens, so that the features of a text do not
    depend on the others.
    """

    def __init__(self, network: _Pooled, tokenizer: Any, device: torch.device) -> None:
        self.network, self.tokenizer = network.to(device), tokenizer
        self.device, self.lock = device, threading.Lock()  # a tokenizer cannot be used by two threads
        config = network.model.config
        positions = getattr(config, "max_position_embeddings", None) or LONGEST_TEXT
        offset = 2 if config.model_type in ("roberta", "xlm-roberta", "camembert", "mpnet") else 0  # unused positions
        self.longest = min(LONGEST_TEXT, tokenizer.model_max_length, positions - offset)

    def settings(self) -> str:
        """Return what affects the features besides the model; to be called before the first text is encoded."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        rules = backend.to_str() if backend else sorted(self.tokenizer.get_vocab().items())
        return f"{self.longest} {self.network.first_token} {type(self.tokenizer).__name__} {rules}"

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token numbers of each text."""
        plain = [plain_text(text) for text in texts]
        with self.lock:
            found: list[list[int]] = self.tokenizer(plain, truncation=True, max_length=self.longest)["input_ids"]
        return found

    def __call__(self, texts: Sequence[str]) -> Tensor:
        tokens = self.tokenize(texts)
        lengths = [_padded_length(len(each), self.longest) for each in tokens]
        found: dict[int, Tensor] = {}
        for length in sorted(set(lengths)):
            group = [place for place, each in enumerate(lengths) if each == length]
            for first in range(0, len(group), ROWS):
                places = group[first : first + ROWS]
                rows = self._encode_rows([tokens[place] for place in places], length)
                found.update(zip(places, rows, strict=False))
        return torch.stack([found[place] for place in range(len(texts))])

    def _encode_rows(self, tokens: Sequence[Sequence[int]], length: int) -> Tensor:
        """Encode up to `ROWS` texts, padded to this number of tokens."""
        ids = torch.full((ROWS, length), self.tokenizer.pad_token_id or 0)
        mask = torch.zeros(ROWS, length, dtype=torch.int64)
        for row in range(ROWS):
            text = tokens[min(row, len(tokens) - 1)]
            ids[row, : len(text)] = torch.tensor(text, dtype=torch.int64)
            mask[row, : len(text)] = 1
        ids, mask = ids.to(self.device), mask.to(self.device)
        features: Tensor = self.network(ids, mask)
        return features


def _padded_length(length: int, longest: int) -> int:
    """Return the next power of two, from 8 tokens to the longest text."""
    return min(longest, max(SHORTEST_TEXT, 1 << (length - 1).bit_length()))


def _pools_first_token(folder: Path) -> bool:
    """Return whether a model of sentence-transformers uses the first token instead of the mean."""
    return bool(_read_json(folder / "1_Pooling" / "config.json").get("pooling_mode_cls_token"))


# ---- files ---------------------------------------------------------------------------------------------------------


def _load_model(transformers: Any, folder: Path, name: str) -> Any:
    """Load a model in single precision; raise if weights are missing, except those of pooling layers."""
    try:
        with _no_progress_bar(transformers.utils.logging):
            model, info = transformers.AutoModel.from_pretrained(
                folder, local_files_only=True, output_loading_info=True, dtype=torch.float32
            )
    except Exception as error:  # code of other packages may raise anything
        raise InputError(f"cannot load {name} from {folder}: {first_line(error)}") from error
    missing = sorted(key for key in info["missing_keys"] if "pooler" not in key)
    if missing:
        raise InputError(f"{folder} lacks weights of {name}, such as {missing[0]}; download or save the model again")
    return model.eval()


@contextmanager
def _no_progress_bar(settings: Any) -> Iterator[None]:
    """Switch the progress bars of transformers off, by its module of settings for logging."""
    shown = settings.is_progress_bar_enabled()
    settings.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            settings.enable_progress_bar()


def _config_facts(config: Any) -> str:
    """Return the settings of a model without the versions of packages and the place that it was loaded from."""
    settings = {key: value for key, value in config.to_dict().items() if not key.startswith(("_", "transformers"))}
    return json.dumps(settings, sort_keys=True, default=str)


def _load_tokenizer(transformers: Any, folder: Path, name: str) -> Any:
    try:
        return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # code of other packages may raise anything
        raise InputError(f"cannot load the tokenizer of {name} from {folder}: {first_line(error)}") from error


def _read_json(path: Path) -> dict[str, Any]:
    """Return the contents of a JSON file; empty if it is missing or no object."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
