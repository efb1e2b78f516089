"""Every method by name, as a choice of parts. The signature of a recipe is the schema of its options."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from labelsieve.core.criteria import CRITERIA, CriteriaALL, CriteriaOL, Criterion, one_of
from labelsieve.core.losses import CrossEntropy, Determinant, GeneralizedCrossEntropy, SymmetricCrossEntropy
from labelsieve.core.method import Method
from labelsieve.core.part import Weigh
from labelsieve.core.regularizers import VirtualAdversarial
from labelsieve.core.select import Align, Select, constant_share, exact_fraction, kept_share, ramped_share
from labelsieve.errors import InputError, nearest
from labelsieve.methods.active_bias import ActiveBias
from labelsieve.methods.cores import ConfidenceRegularized, Sieve
from labelsieve.methods.elr import EarlyLearning
from labelsieve.methods.f_correction import ForwardCorrection
from labelsieve.methods.gce import Prune
from labelsieve.methods.jocor import CriteriaJoint, JointLoss
from labelsieve.methods.lccn import LatentClass
from labelsieve.methods.selfie import Refurbish
from labelsieve.methods.sop import SparseNoise
from labelsieve.runtime import derive

T = TypeVar("T")
MakeCriterion = Callable[
    [int, int], Criterion
]  # (classes, networks), such as CriteriaALL or partial(CriteriaALL, lam=2)

GUARDS = {
    "align": True,
    "floor": 0.5,
}  # options against classes that are given up


@dataclass(frozen=True)
class Problem:
    """What a method must know of the task."""

    num_classes: int
    noise_rate: float  # ε, the share of labels believed wrong
    warmup: int = 25  # epochs of plain training before samples are selected
    num_samples: int = 0  # for methods that remember single samples
    seed: int = 0  # of what a method draws

    def __post_init__(self) -> None:
        for name, least in (("num_classes", 2), ("warmup", 0), ("num_samples", 0)):
            value = getattr(self, name)
            if not isinstance(value, Integral) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
        rate: object = self.noise_rate
        if not isinstance(rate, Real) or not 0 <= float(rate) < 1:
            raise ValueError(
                f"noise_rate must be in [0, 1), got {rate!r}; where it is not known, labelsieve.estimate_noise can tell"
            )


def default(p: Problem, criterion: MakeCriterion | None = None) -> Method:
    """Plain cross-entropy on all samples."""
    return Method(CrossEntropy(), chosen(p, criterion))


def active_bias(p: Problem, criterion: MakeCriterion | None = None, *, smoothness: float = 0.2) -> Method:
    """Samples whose prediction varies from epoch to epoch count more."""
    weight = ActiveBias(samples(p), warmup=p.warmup, smoothness=smoothness)
    return Method(CrossEntropy(), [weight, *chosen(p, criterion)])


def mentornet(p: Problem, criterion: MakeCriterion = CriteriaOL, *, floor: float = 0.0, align: bool = False) -> Method:
    """Learn from the top 1 - ε of each batch by confidence in the observed label."""
    return Method(CrossEntropy(), chosen(p, criterion, floor, align))


def mentornet_prop(
    p: Problem, criterion: MakeCriterion = CriteriaALL, *, floor: float = 0.0, align: bool = False
) -> Method:
    """MentorNet with Criteria_ALL: penalty labels keep dominant noise out (the paper's method)."""
    return mentornet(p, criterion, floor=floor, align=align)


def coteaching(p: Problem, criterion: MakeCriterion = CriteriaOL, *, ramp: int = 15) -> Method:
    """Two networks, each learning from what the other selects; the kept share falls to 1 - ε in `ramp` epochs."""
    select = Select(criterion(p.num_classes, 2), partial(ramped_share, p.noise_rate, ramp), exchange=True)
    return Method(CrossEntropy(), [select], networks=2)


def coteaching_plus(
    p: Problem,
    criterion: MakeCriterion = CriteriaOL,
    *,
    ramp: int = 15,
    init_epoch: int | None = None,
    empty: Literal["skip", "everything"] = "skip",
) -> Method:
    """Co-teaching among the samples on which the networks disagree, from epoch `init_epoch` (the warm-up's end) on."""
    select = Select(
        criterion(p.num_classes, 2),
        partial(ramped_share, p.noise_rate, ramp),
        exchange=True,
        disagree_from=p.warmup if init_epoch is None else init_epoch,
        or_everything=one_of("empty", empty, ("skip", "everything")) == "everything",
    )
    return Method(CrossEntropy(), [select], networks=2)


def sl(p: Problem, criterion: MakeCriterion | None = None, *, alpha: float = 1.0, beta: float = 0.08) -> Method:
    """Symmetric cross-entropy: alpha * CE + beta * reverse CE."""
    return Method(SymmetricCrossEntropy(alpha, beta), chosen(p, criterion))


def sl_prop(
    p: Problem, criterion: MakeCriterion = CriteriaALL, *, alpha: float = 1.0, beta: float = 0.08, align: bool = False
) -> Method:
    """SL on the samples that Criteria_ALL selects (the paper's)."""
    return Method(SymmetricCrossEntropy(alpha, beta), chosen(p, criterion, align=align))


def selfie(
    p: Problem,
    criterion: MakeCriterion = CriteriaOL,
    *,
    threshold: float = 0.05,
    history: int | None = None,
    rounds: int = 3,
    clean_first: bool = False,
    recompute: bool = True,
) -> Method:
    """Learn from clean samples and from those whose last predictions agree, with the class they agree on."""
    length = min(15, p.warmup) if history is None else history
    return refurbishing(p, criterion, threshold, length, rounds, clean_first, recompute)


def selfie_prop(
    p: Problem,
    criterion: MakeCriterion = CriteriaALL,
    *,
    threshold: float = 0.005,
    history: int | None = None,
    rounds: int = 3,
    clean_first: bool = True,
    recompute: bool = False,
) -> Method:
    """SELFIE with Criteria_ALL; a sample selected as clean keeps its observed label (the paper's)."""
    length = min(25, p.warmup) if history is None else history
    return refurbishing(p, criterion, threshold, length, rounds, clean_first, recompute)


def f_correction(
    p: Problem,
    criterion: MakeCriterion | None = None,
    *,
    estimate: Literal["stack", "patrini"] = "stack",
    quantile: float = 0.97,
) -> Method:
    """Predictions go through the noise's transition matrix, from stacked predictions or by Patrini's estimate."""
    loss = ForwardCorrection(p.num_classes, warmup=p.warmup, estimate=estimate, quantile=quantile)
    return Method(loss, chosen(p, criterion), rounds=2 if estimate == "patrini" else 1)


def gce(
    p: Problem,
    criterion: MakeCriterion | None = None,
    *,
    q: float = 0.7,
    k: float | None = None,
    prune_from: int | None = None,
    prune_every: int = 10,
) -> Method:
    """Generalized cross-entropy (1 - p^q) / q; with k, truncated at confidence k and pruned every few epochs."""
    start = p.warmup if prune_from is None else prune_from
    prune = [] if k is None else [Prune(samples(p), k=k, start=start, every=prune_every)]
    return Method(GeneralizedCrossEntropy(q, k), [*prune, *chosen(p, criterion)])


def vat(
    p: Problem, criterion: MakeCriterion | None = None, *, radius: float = 8.0, weight: float = 1.0, iterations: int = 1
) -> Method:
    """Virtual adversarial training: predictions may not change within a small distance of a sample."""
    regularizer = VirtualAdversarial(radius=radius, weight=weight, iterations=iterations)
    return Method(CrossEntropy(), chosen(p, criterion), regularizer=regularizer)


def lccn(p: Problem, criterion: MakeCriterion | None = None, *, prior: float = 1.0, refresh: int = 200) -> Method:
    """The true class of each sample is drawn, by Gibbs sampling with a learnt transition matrix."""
    latent = LatentClass(
        p.num_classes, samples(p), warmup=p.warmup, seed=derive(p.seed, "latent"), prior=prior, refresh=refresh
    )
    return Method(CrossEntropy(), chosen(p, criterion), latent)


def dmi(p: Problem, criterion: MakeCriterion | None = None, *, lr_scale: float = 0.001) -> Method:
    """After the warm-up, the determinant-based mutual information with the labels, at a small learning rate."""
    loss = Determinant(p.num_classes, start=p.warmup)
    scale = partial(scaled_from, p.warmup, lr_scale)
    return Method(loss, chosen(p, criterion), lr_scale=scale, drop_last=True)


def elr(p: Problem, criterion: MakeCriterion | None = None, *, strength: float = 3.0, beta: float = 0.7) -> Method:
    """Early-learning regularization: hold the network to the running mean of its own predictions."""
    return Method(EarlyLearning(p.num_classes, samples(p), lam=strength, beta=beta), chosen(p, criterion))


def sop(p: Problem, criterion: MakeCriterion | None = None, *, lr_u: float = 1.0, lr_v: float = 10.0) -> Method:
    """Sparse over-parameterization: each sample's label noise is learnt beside the network."""
    loss = SparseNoise(p.num_classes, samples(p), lr_u=lr_u, lr_v=lr_v, seed=derive(p.seed, "sparse noise"))
    return Method(loss, chosen(p, criterion))


def jocor(p: Problem, criterion: MakeCriterion | None = None, *, ramp: int = 15, agreement: float = 0.9) -> Method:
    """Two networks taught to agree, learning from the samples with the smallest joint loss."""
    make_criterion = criterion or partial(CriteriaJoint, agreement=agreement)
    select = Select(make_criterion(p.num_classes, 2), partial(ramped_share, p.noise_rate, ramp), joint=True)
    return Method(JointLoss(agreement), [select], networks=2)


def cores(p: Problem, criterion: MakeCriterion | None = None, *, beta: float = 2.0) -> Method:
    """CORES²: confident predictions are rewarded; after the warm-up, samples of more than average loss are left out."""
    loss = ConfidenceRegularized(p.num_classes, beta=beta, start=p.warmup // 3, full=p.warmup)
    weigh = [Sieve(start=p.warmup), *chosen(p, criterion)]
    return Method(loss, weigh, lr_scale=loss.lr_scale)


METHODS: dict[str, Callable[..., Method]] = {
    "default": default,
    "active-bias": active_bias,
    "mentornet": mentornet,
    "mentornet-prop": mentornet_prop,
    "co-teaching": coteaching,
    "co-teaching+": coteaching_plus,
    "sl": sl,
    "sl-prop": sl_prop,
    "selfie": selfie,
    "selfie-prop": selfie_prop,
    "f-correction": f_correction,
    "gce": gce,
    "vat": vat,
    "lccn": lccn,
    "dmi": dmi,
    "elr": elr,
    "sop": sop,
    "jocor": jocor,
    "cores": cores,
}


def chosen(p: Problem, criterion: MakeCriterion | None, floor: float = 0.0, align: bool = False) -> list[Weigh]:
    """Keep 1 - ε of each batch by the criterion, after the warm-up; without a criterion, everything.

    `floor`: the part of that share which is kept of every label. `align`: judge predictions in which every class comes
    up as often as it is observed.
    """
    share = kept_share(p.noise_rate)
    if criterion is None:
        return []
    if not 0 <= floor <= 1:
        raise ValueError(f"floor must be in [0, 1], got {floor}")
    keep = partial(constant_share, share)
    even = Align(p.num_classes) if align else None
    return [Select(criterion(p.num_classes, 1), keep, warmup=p.warmup, floor=exact_fraction(floor), align=even)]


def refurbishing(
    p: Problem,
    criterion: MakeCriterion,
    threshold: float,
    history: int,
    rounds: int,
    clean_first: bool,
    recompute: bool,
) -> Method:
    """SELFIE; `recompute` keeps at least as many samples as were corrected in earlier rounds."""
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}")
    share = kept_share(p.noise_rate)
    refurbish = Refurbish(
        p.num_classes, samples(p), warmup=p.warmup, threshold=threshold, history=history, clean_first=clean_first
    )
    keep = partial(refurbish.share_at_least if recompute else constant_share, share)
    select = Select(criterion(p.num_classes, 1), keep, warmup=p.warmup)
    return Method(CrossEntropy(), [select], refurbish, rounds=rounds)


def scaled_from(start: int, scale: float, epoch: int) -> float:
    """What the learning rate is multiplied by: `scale` from epoch `start` on."""
    return scale if epoch >= start else 1.0


def samples(p: Problem) -> int:
    if p.num_samples < 1:
        raise ValueError("this method remembers single samples: say Problem(num_samples=...)")
    return p.num_samples


def make(name: str, problem: Problem, criterion: str | None = None, **options: Any) -> Method:
    """A method by its name; `options` are those of the recipe and of its criterion, such as lam=0.5."""
    recipe = _known("method", name, METHODS)
    criterion_class = _criterion_class(recipe, criterion)
    known = {**keywords(recipe), **keywords(criterion_class)}
    for key, value in options.items():
        if key not in known:
            with_criterion = f" with criterion {criterion}" if criterion else ""
            raise InputError(f"{name}{with_criterion} has no option {key!r}; it has: {', '.join(known) or 'none'}")
        owner = recipe if key in keywords(recipe) else vars(criterion_class)["__init__"]
        if not fits(value, get_type_hints(owner)[key]):
            instead = "say true or false" if isinstance(known[key], bool) else f"its default is {known[key]}"
            raise InputError(f"{name}: option {key} cannot be {value!r}; {instead}")
    arguments = {key: options[key] for key in keywords(recipe) if key in options}
    of_criterion = {key: options[key] for key in keywords(criterion_class) if key in options}
    if criterion_class is not None:
        arguments["criterion"] = partial(criterion_class, **of_criterion)
    try:
        return recipe(problem, **arguments)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: {error}") from error


def fits(value: object, hint: Any) -> bool:
    """Whether a value is of an option's type; a whole number is a number too, a choice of words is checked later."""
    allowed = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    types = [str if get_origin(one) is Literal else one for one in allowed]
    return type(value) in types or (float in types and type(value) is int)


def summary(name: str) -> str:
    """The line that says what a method does."""
    return (inspect.getdoc(METHODS[name]) or "").splitlines()[0]


def options_of(name: str) -> dict[str, object]:
    """The options that a method takes, those of its own criterion too, with their defaults."""
    recipe = METHODS[name]
    return {**keywords(recipe), **keywords(_criterion_class(recipe, None))}


def keywords(function: Callable[..., object] | None) -> dict[str, object]:
    """The keyword-only arguments of a function with their defaults: its options."""
    if function is None:
        return {}
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def _criterion_class(recipe: Callable[..., Method], criterion: str | None) -> type[Criterion] | None:
    if criterion is not None:
        return _known("criterion", criterion, CRITERIA)
    own: type[Criterion] | None = inspect.signature(recipe).parameters["criterion"].default
    return own


def _known(what: str, name: str, names: dict[str, T]) -> T:
    if name not in names:
        raise InputError(f"unknown {what} {name!r}: {nearest(name, names)}")
    return names[name]
