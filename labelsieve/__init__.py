"""Train classifiers on data with noisy labels, and find the labels that are wrong."""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.2.0"

if TYPE_CHECKING:
    from labelsieve.core import CriteriaALL, CriteriaOL, CriteriaPL
    from labelsieve.loss import SieveLoss
    from labelsieve.methods import METHODS
    from labelsieve.predict import Predictor, load
    from labelsieve.quality import estimate_noise, find_label_issues, label_quality

_MODULE_OF = {
    "CriteriaALL": "core",
    "CriteriaOL": "core",
    "CriteriaPL": "core",
    "METHODS": "methods",
    "Predictor": "predict",
    "SieveLoss": "loss",
    "estimate_noise": "quality",
    "find_label_issues": "quality",
    "label_quality": "quality",
    "load": "predict",
}

__all__ = [
    "METHODS",
    "CriteriaALL",
    "CriteriaOL",
    "CriteriaPL",
    "Predictor",
    "SieveLoss",
    "estimate_noise",
    "find_label_issues",
    "label_quality",
    "load",
]


def __getattr__(name: str) -> object:
    """Import a public name when it is used first, so that `import labelsieve` does not import torch."""
    if name in _MODULE_OF:
        return getattr(import_module(f"labelsieve.{_MODULE_OF[name]}"), name)
    raise AttributeError(
        f"module 'labelsieve' has no attribute {name!r}; a loss by the name of its method: "
        "labelsieve.SieveLoss('selfie', num_classes=10, noise_rate=0.2)"
    )


def __dir__() -> list[str]:
    return sorted(__all__)
