"""The paper's mathematics, in torch alone."""

from labelsieve.core.align import Align
from labelsieve.core.criteria import CRITERIA, CriteriaALL, CriteriaOL, CriteriaPL, Criterion, penalty_labels
from labelsieve.core.losses import CrossEntropy, Loss
from labelsieve.core.method import Decision, Method, Step
from labelsieve.core.part import Part, Predict
from labelsieve.core.select import Select, kept_share
from labelsieve.core.weigh import Weigh

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
