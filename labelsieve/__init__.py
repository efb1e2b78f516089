"""Train classifiers on data whose labels are partly wrong."""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from labelsieve.audit import estimate_noise, label_quality
    from labelsieve.core import CriteriaALL, CriteriaOL, CriteriaPL, Method
    from labelsieve.methods import METHODS, Problem, make
    from labelsieve.methods.mentornet import default, mentornet, mentornet_prop
    from labelsieve.predict import Predictor, load

_WHERE = {
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
    "estimate_noise": "audit",
    "label_quality": "audit",
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
    "label_quality",
    "load",
    "make",
    "mentornet",
    "mentornet_prop",
]


def __getattr__(name: str) -> object:
    """Import torch only when something needs it: the command line's --help does not."""
    if name in _WHERE:
        return getattr(import_module(f"labelsieve.{_WHERE[name]}"), name)
    raise AttributeError(
        f"module 'labelsieve' has no attribute {name!r}; methods are made by name: labelsieve.make('selfie', problem)"
    )


def __dir__() -> list[str]:
    return sorted(__all__)
