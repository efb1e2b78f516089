"""Train classifiers on data with noisy labels, and find the labels that are wrong."""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from labelsieve.core import CriteriaALL, CriteriaOL, CriteriaPL, Method
    from labelsieve.methods import METHODS, Problem, make
    from labelsieve.methods.mentornet import default, mentornet, mentornet_prop
    from labelsieve.predict import Predictor, load
    from labelsieve.quality import estimate_noise, find_label_issues, label_quality

_MODULE_OF = {
    "CriteriaALL": "core",
    "CriteriaOL": "core",
    "CriteriaPL": "core",
    "Method": "core",
    "METHODS": "methods",
    "Problem": "methods",
    "default": "methods.mentornet",
    "make": "methods",
    "mentornet": "methods.mentornet",
    "mentornet_prop": "methods.mentornet",
    "Predictor": "predict",
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
    "Method",
    "Predictor",
    "Problem",
    "default",
    "estimate_noise",
    "find_label_issues",
    "label_quality",
    "load",
    "make",
    "mentornet",
    "mentornet_prop",
]


def __getattr__(name: str) -> object:
    """Import a public name when it is used first, so that `import labelsieve` does not import torch."""
    if name in _MODULE_OF:
        return getattr(import_module(f"labelsieve.{_MODULE_OF[name]}"), name)
    raise AttributeError(
        f"module 'labelsieve' has no attribute {name!r}; make a method by its name: labelsieve.make('selfie', problem)"
    )


def __dir__() -> list[str]:
    return sorted(__all__)
