"""The parts that methods are made of, and the paper's mathematics. Depends on torch alone.

- criteria: Criteria_OL, Criteria_PL, Criteria_ALL, the margin, and penalty labels
- select: selection of the samples with the highest scores, and Align
- losses: base classes of losses, and cross-entropy
- part: base classes of all parts
- method: Method, which combines parts into a loss
- processes: Processes, and the union of the batches of several processes
- checks: errors and warnings about mistakes in a training loop
"""

from labelsieve.core.criteria import CRITERIA, CriteriaALL, CriteriaOL, CriteriaPL, Criterion, penalty_labels
from labelsieve.core.losses import CrossEntropy, Loss
from labelsieve.core.method import Decision, Method, Step
from labelsieve.core.part import Part, Predict, Regularizer, Relabel, Weigh
from labelsieve.core.processes import Processes
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
    "Processes",
    "Regularizer",
    "Relabel",
    "Select",
    "Step",
    "Weigh",
    "kept_share",
    "penalty_labels",
]
