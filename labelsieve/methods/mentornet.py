"""MentorNet, MentorNet-Prop (the paper's method) and default (plain training)."""

from labelsieve.core.criteria import CriteriaALL, CriteriaOL
from labelsieve.core.losses import CrossEntropy
from labelsieve.core.method import Method
from labelsieve.methods.problem import MakeCriterion, Problem, register, select_clean


@register("default")
def default(p: Problem, criterion: MakeCriterion | None = None) -> Method:
    """Train on all samples with plain cross-entropy."""
    return Method(CrossEntropy(), select_clean(p, criterion))


@register("mentornet")
def mentornet(p: Problem, criterion: MakeCriterion = CriteriaOL, *, floor: float = 0.0, align: bool = False) -> Method:
    """Train on the samples of each batch with the highest confidence in the observed label."""
    return Method(CrossEntropy(), select_clean(p, criterion, floor, align))


@register("mentornet-prop")
def mentornet_prop(
    p: Problem, criterion: MakeCriterion = CriteriaALL, *, floor: float = 0.0, align: bool = False
) -> Method:
    """MentorNet with Criteria_ALL: select samples with the help of penalty labels (the paper's method).

    The criterion is CriteriaALL of labelsieve/core/criteria.py.
    """
    return mentornet(p, criterion, floor=floor, align=align)
