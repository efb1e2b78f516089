"""The paper's mathematics, in torch alone."""

from labelsieve.core.criteria import CRITERIA, CriteriaALL, CriteriaOL, CriteriaPL, Criterion, penalty_labels
from labelsieve.core.losses import CrossEntropy, Loss
from labelsieve.core.method import Decision, Method, Step
from labelsieve.core.part import Part, Predict, Weigh
from labelsieve.core.select import Align, Select, kept_share

__all__ = [
    "CRITERIA",
    "Align",
    "CriteriaALL",
    "CriteriaOL",
    "CriteriaPL",
    "Criterion",
    "CrossEntropy",
    "Decision",
    "Loss",
    "Method",
    "Part",
    "Predict",
    "Select",
    "Step",
    "Weigh",
    "kept_share",
    "penalty_labels",
]
