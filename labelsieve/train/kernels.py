"""Triton kernels for the small work of a training step on a GPU, with the results of the plain operations.

Selection, loss, update and statistics of a batch are tiny, but take more than a hundred launches as single operations.
The functions at the end of this file need one or two each:

* ``take``: the index, the observed and the true labels of the next batch.
* ``decide``: predictions, selection, losses and the gradient of the logits, for the methods that ``decides`` names.
* ``observe``: the sums of predictions from which penalty labels are computed, for the same methods.
* ``update``: the check of the gradients and the SGD step of networks whose parameters are one tensor.
* ``restore``: the buffers of a network whose step was undone.
* ``count``: the statistics of ``Meters`` and ``Tally``.

Sums over samples are made within a program or with integers, or have one summand, so results are reproducible.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from labelsieve.core.criteria import FIXED_POINT, CriteriaALL, CriteriaOL, CriteriaPL
from labelsieve.core.losses import CrossEntropy
from labelsieve.core.method import Decision, Method, Step
from labelsieve.core.select import Select

MOST_SAMPLES = 128  # of a batch, for `decide`, which compares all pairs
MOST_LOGITS = 2**14  # of a batch, for `decide`, which holds them in one program
TILE = 2**11  # probabilities of a program of `count` and `observe`
BLOCK = 1024  # parameters of a program


# ---- kernels -------------------------------------------------------------------------------------------------------


@triton.jit
def _take(order, position, labels, clean, index, taken, true, count, CLEAN: tl.constexpr, BLOCK: tl.constexpr):
    """Read the samples of the next batch."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = i < count
    at = tl.load(order + tl.load(position) + i, mask=live, other=0)
    tl.store(index + i, at, mask=live)
    tl.store(taken + i, tl.load(labels + at, mask=live, other=0), mask=live)
    if CLEAN:
        tl.store(true + i, tl.load(clean + at, mask=live, other=0), mask=live)


@triton.jit
def _decide(
    logits, labels, penalty, share, probs, weight, losses, gradient, count, classes, lam,
    SELECT: tl.constexpr, OBSERVED: tl.constexpr, PENALTY: tl.constexpr, BP: tl.constexpr, KP: tl.constexpr,
):  # fmt: skip
    """Select samples by p[y] - lam * Σ m[y] p and compute the cross-entropy and its gradient; a program per network."""
    n = tl.program_id(0)
    i = tl.arange(0, BP)
    k = tl.arange(0, KP)
    live = i < count
    real = (k < classes)[None, :]
    inside = live[:, None] & real
    place = (n * count + i)[:, None] * classes + k[None, :]
    x = tl.where(real, tl.load(logits + place, mask=inside, other=0.0).to(tl.float32), float("-inf"))
    y = tl.load(labels + i, mask=live, other=0).to(tl.int32)
    mine = k[None, :] == y[:, None]
    top = tl.max(x, 1)
    powers = tl.exp(x - top[:, None])
    total = tl.sum(powers, 1)
    p = powers / total[:, None]
    tl.store(probs + place, p, mask=inside)
    kept = live
    if SELECT:
        score = tl.zeros((BP,), tl.float32)
        if OBSERVED:
            score += tl.sum(tl.where(mine, p, 0.0), 1)
        if PENALTY:
            m = tl.load(penalty + (n * classes + y)[:, None] * classes + k[None, :], mask=inside, other=0.0)
            score -= lam * tl.sum(m * p, 1)
        score = tl.where(tl.abs(score) < float("inf"), score, -3.4028234663852886e38)  # these come last
        # rank: the number of samples with a higher score, or an equal one and a lower position
        other, own = tl.expand_dims(score, 0), tl.expand_dims(score, 1)
        before = (other > own) | ((other == own) & (i[None, :] < i[:, None]))
        rank = tl.sum((before & live[None, :]).to(tl.int32), 1).to(tl.int64)
        most = tl.maximum(tl.load(share) * count, 1)
        kept = live & (rank * tl.load(share + 1) < most)
    w = tl.where(kept, 1.0, 0.0)
    tl.store(weight + n * count + i, w, mask=live)
    number = tl.maximum(tl.sum(w, 0), 1.1754943508222875e-38)
    entropy = tl.log(total) - (tl.sum(tl.where(mine, x, 0.0), 1) - top)
    tl.store(losses + n, tl.sum(tl.where(kept, entropy, 0.0), 0) / number)
    d = tl.where(kept[:, None], (p - tl.where(mine, 1.0, 0.0)) / number, 0.0)
    tl.store(gradient + place, d.to(gradient.dtype.element_ty), mask=inside)


@triton.jit
def _observe(
    probs, labels, applied, sums, count, classes, SCALE: tl.constexpr, BB: tl.constexpr, KP: tl.constexpr
):  # fmt: skip
    """Add predictions as integers to the rows of their labels, unless they are not finite or the step was undone."""
    n = tl.program_id(1)
    i = tl.program_id(0) * BB + tl.arange(0, BB)
    k = tl.arange(0, KP)
    live = i < count
    inside = live[:, None] & (k < classes)[None, :]
    y = tl.load(labels + i, mask=live, other=0).to(tl.int32)
    p = tl.load(probs + (n * count + i)[:, None] * classes + k[None, :], mask=inside, other=0.0)
    valid = (tl.min((tl.abs(p) < float("inf")).to(tl.int32), 1) > 0) & (tl.load(applied + n) != 0)
    scaled = tl.where(valid[:, None], p, 0.0) * SCALE
    whole = tl.where(scaled < 8388608.0, (scaled + 8388608.0) - 8388608.0, scaled)  # rounded half to even
    place = (n * classes + y)[:, None] * classes + k[None, :]
    tl.atomic_add(sums + place, whole.to(tl.int64), mask=inside & (whole > 0), sem="relaxed")


@triton.jit
def _check(gradient, bad, size, BLOCK: tl.constexpr):
    """Store per program whether one of its gradients is not finite."""
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    g = tl.load(gradient + e, mask=e < size, other=0.0)
    tl.store(bad + tl.program_id(0), tl.max((~(tl.abs(g) < float("inf"))).to(tl.int32), 0))


@triton.jit
def _judge(bad, programs, losses, weight, count, n, finite, learns, BP: tl.constexpr, PP: tl.constexpr):
    """Decide whether the step of network n is finite and whether it has a sample to learn from."""
    wrong = tl.zeros((PP,), tl.int32)
    for first in range(0, programs, PP):
        at = first + tl.arange(0, PP)
        wrong |= tl.load(bad + at, mask=at < programs, other=0)
    some = tl.zeros((BP,), tl.int32)
    for first in range(0, count, BP):
        i = first + tl.arange(0, BP)
        some |= (tl.load(weight + n * count + i, mask=i < count, other=0.0) > 0).to(tl.int32)
    good = (tl.max(wrong, 0) == 0) & (tl.abs(tl.load(losses + n)) < float("inf"))
    tl.store(finite + n, good)
    tl.store(learns + n, good & (tl.max(some, 0) > 0))


@triton.jit
def _update(
    parameter, gradient, momentum, learns, lr, size,
    MOMENTUM: tl.constexpr, DECAY: tl.constexpr, NESTEROV: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Take a step of SGD if the network learns, in double precision like torch's fused kernel."""
    if tl.load(learns) != 0:
        e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = e < size
        p = tl.load(parameter + e, mask=inside, other=0.0).to(tl.float64)
        g = tl.load(gradient + e, mask=inside, other=0.0).to(tl.float64)
        g = (g + p * DECAY).to(tl.float32).to(tl.float64)
        m = tl.load(momentum + e, mask=inside, other=0.0).to(tl.float64) * MOMENTUM + g
        tl.store(momentum + e, m.to(tl.float32), mask=inside)
        g = ((g + m * MOMENTUM) if NESTEROV else m).to(tl.float32).to(tl.float64)
        tl.store(parameter + e, (p - tl.load(lr).to(tl.float64) * g).to(tl.float32), mask=inside)


@triton.jit
def _restore(now, then, size, learns, BLOCK: tl.constexpr):
    """Copy a tensor back unless the network learns."""
    if tl.load(learns) == 0:
        e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(now + e, tl.load(then + e, mask=e < size), mask=e < size)


@triton.jit
def _count(
    probs, weight, target, labels, clean, index, finite, losses,
    loss, steps, seen, kept, kept_clean, first_bad_step, margin, selected, times, enabled, position,
    count, classes, target_stride, NETWORKS: tl.constexpr, CLEAN: tl.constexpr, BB: tl.constexpr, KP: tl.constexpr,
):  # fmt: skip
    """Add a batch to the statistics of the epoch and of its samples, which are different ones."""
    i = tl.program_id(0) * BB + tl.arange(0, BB)
    k = tl.arange(0, KP)
    live = i < count
    inside = live[:, None] & (k < classes)[None, :]
    y = tl.load(labels + i, mask=live, other=0)
    mine = k[None, :] == y[:, None]
    fine = tl.load(finite).to(tl.int32)
    for n in tl.static_range(1, NETWORKS):
        fine = fine * tl.load(finite + n).to(tl.int32)
    valid = live & (i * 0 + fine * tl.load(enabled).to(tl.int32) > 0)
    margins = tl.zeros((BB,), tl.float32)
    chosen = tl.zeros((BB,), tl.float32)
    for n in tl.static_range(NETWORKS):
        p = tl.load(probs + (n * count + i)[:, None] * classes + k[None, :], mask=inside, other=0.0)
        valid = valid & (tl.min((tl.abs(p) < float("inf")).to(tl.int32), 1) > 0)
        others = tl.max(tl.where(mine | (k >= classes)[None, :], float("-inf"), p), 1)
        margins += tl.sum(tl.where(mine, p, 0.0), 1) - others
        learnt = live & (tl.load(weight + n * count + i, mask=live, other=0.0) > 0)
        chosen += learnt.to(tl.float32)
        one = learnt.to(tl.int64)
        tl.atomic_add(kept + n * classes + y, one, mask=learnt, sem="relaxed")
        if CLEAN:
            same = tl.load(target + n * target_stride + i, mask=live, other=0) == tl.load(clean + i, mask=live, other=0)
            tl.atomic_add(kept_clean + n, tl.sum((learnt & same).to(tl.int64), 0), sem="relaxed")
    at = tl.load(index + i, mask=live, other=0)
    tl.atomic_add(margin + at, margins / NETWORKS, mask=valid, sem="relaxed")
    tl.atomic_add(selected + at, chosen / NETWORKS, mask=valid, sem="relaxed")
    tl.atomic_add(times + at, valid.to(tl.int32), mask=valid, sem="relaxed")
    tl.atomic_add(seen + y, live.to(tl.int64), mask=live, sem="relaxed")
    if tl.program_id(0) == 0:
        for n in tl.static_range(NETWORKS):
            tl.store(loss + n, tl.load(loss + n) + tl.load(losses + n).to(tl.float64))
        step = tl.load(steps)
        first = tl.load(first_bad_step)
        tl.store(first_bad_step, tl.where(fine > 0, first, tl.minimum(first, step)))
        tl.store(steps, step + 1)
        tl.store(position, tl.load(position) + count)


# ---- functions -----------------------------------------------------------------------------------------------------


def take(
    order: Tensor, position: Tensor, count: int, labels: Tensor, clean: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return index, observed and true labels (B) of the `count` samples at a position (a tensor) of an order."""
    index = order.new_empty(count)
    taken, true = torch.empty_like(index, dtype=labels.dtype), torch.empty_like(index)
    _take[(triton.cdiv(count, 256),)](
        order, position, labels, labels if clean is None else clean, index, taken, true, count,
        CLEAN=clean is not None, BLOCK=256,
    )  # fmt: skip
    return index, taken, None if clean is None else true


def decides(method: Method, count: int, classes: int) -> bool:
    """Return whether `decide` and `observe` support a method and a batch: cross-entropy, at most a plain selection."""
    if not (
        type(method.loss) is CrossEntropy
        and method.relabel is None
        and method.regularizer is None
        and count <= MOST_SAMPLES
        and triton.next_power_of_2(count) * triton.next_power_of_2(classes) <= MOST_LOGITS
    ):
        return False
    if not len(method.weigh):
        return True
    part = method.weigh[0]
    return (
        len(method.weigh) == 1
        and type(part) is Select
        and not (part.exchange or part.joint or part.floor or part.align or part.trusted is not None)
        and type(part.criterion) in (CriteriaOL, CriteriaPL, CriteriaALL)
        and part.criterion.num_classes == classes
        and getattr(part.criterion, "compensate", "") != "iteration"
    )


def decide(method: Method, logits: Tensor, labels: Tensor) -> tuple[Step, Tensor]:
    """Return the step of a method that `decides` supports, and the gradient of its loss at the logits (N, B, K)."""
    networks, count, classes = logits.shape
    logits = logits.detach().contiguous()
    probs = torch.empty_like(logits, dtype=torch.float32)
    weight, losses = probs.new_empty(networks, count), probs.new_empty(networks)
    gradient = torch.empty_like(logits)
    select: Any = method.weigh[0] if len(method.weigh) else None
    criterion: Any = select.criterion if select else None
    penalized = isinstance(criterion, CriteriaPL)
    _decide[(networks,)](
        logits, labels, criterion.penalty if penalized else probs, select.share if select else labels,
        probs, weight, losses, gradient, count, classes, float(getattr(criterion, "lam", 1.0)),
        SELECT=select is not None, OBSERVED=not penalized or isinstance(criterion, CriteriaALL), PENALTY=penalized,
        BP=triton.next_power_of_2(count), KP=_columns(classes), num_warps=8 if classes <= 32 else 32,
    )  # fmt: skip
    loss = losses[0] if networks == 1 else losses.sum()
    return Step(loss, losses, probs, Decision(labels.expand(networks, count), weight)), gradient


def observe(method: Method, step: Step, labels: Tensor, applied: Tensor) -> None:
    """Update the state of a method that `decides` supports after a step; `applied` (N) is False if it was undone."""
    for part in method.parts():
        if isinstance(part, CriteriaPL) and part.update == "stack":
            networks, count, classes = step.probs.shape
            rows = _rows(count, classes)
            _observe[(triton.cdiv(count, rows), networks)](
                step.probs, labels, applied, part.sums, count, classes,
                SCALE=FIXED_POINT, BB=rows, KP=_columns(classes), num_warps=4,
            )  # fmt: skip


def update(
    parameters: Sequence[Tensor],
    gradients: Sequence[Sequence[Tensor]],
    momenta: Sequence[Tensor],
    step: Step,
    optimizers: Sequence[torch.optim.SGD],
) -> tuple[Tensor, Tensor]:
    """Update the networks that have finite gradients and a sample to learn from; return both conditions, (N) each.

    The parameters and momenta of a network are one tensor, its gradients one or several in the same order.
    """
    weight, losses = step.decision.weight.contiguous(), step.losses.detach()
    count = weight.shape[1]
    finite, learns = torch.empty(2, len(parameters), dtype=torch.bool, device=weight.device)
    for n, pieces in enumerate(gradients):
        programs = [triton.cdiv(piece.numel(), BLOCK) for piece in pieces]
        bad = torch.empty(sum(programs), dtype=torch.int32, device=weight.device)
        for piece, size, at in zip(pieces, programs, _starts(programs), strict=True):
            _check[(size,)](piece, bad[at:], piece.numel(), BLOCK=BLOCK)
        _judge[(1,)](bad, len(bad), losses, weight, count, n, finite, learns, BP=128, PP=512)
    for n, (flat, pieces, momentum, optimizer) in enumerate(
        zip(parameters, gradients, momenta, optimizers, strict=True)
    ):
        group = optimizer.param_groups[0]
        lr = torch.as_tensor(group["lr"], dtype=torch.float32, device=flat.device)
        for piece, at in zip(pieces, _starts([piece.numel() for piece in pieces]), strict=True):
            _update[(triton.cdiv(piece.numel(), BLOCK),)](
                flat[at:], piece, momentum[at:], learns[n:], lr, piece.numel(),
                MOMENTUM=group["momentum"], DECAY=group["weight_decay"], NESTEROV=group["nesterov"], BLOCK=BLOCK,
            )  # fmt: skip
    return finite, learns


def restore(now: Tensor, then: Tensor, learns: Tensor) -> None:
    """Copy `then` to `now` unless `learns`."""
    _restore[(triton.cdiv(now.numel(), BLOCK),)](now, then, now.numel(), learns, BLOCK=BLOCK)


def count(
    meters: Any, tally: Any, position: Tensor, outcome: Any, labels: Tensor, clean: Tensor | None, index: Tensor
) -> None:
    """Add a step to `Meters` and `Tally` and its number of samples to the position."""
    step = outcome.step
    probs, weight, target = step.probs.contiguous(), step.decision.weight.contiguous(), step.decision.target
    networks, number, classes = probs.shape
    if target.stride(1) != 1:
        target = target.contiguous()
    rows = _rows(number, classes)
    _count[(triton.cdiv(number, rows),)](
        probs, weight, target, labels, labels if clean is None else clean, index, outcome.finite,
        step.losses.detach(), meters.loss, meters.steps, meters.seen, meters.kept, meters.kept_clean,
        meters.first_bad_step, tally.sums["margin"], tally.sums["selected"], tally.seen, tally.enabled, position,
        number, classes, target.stride(0),
        NETWORKS=networks, CLEAN=clean is not None, BB=rows, KP=_columns(classes), num_warps=4,
    )  # fmt: skip


@cache
def _columns(classes: int) -> int:
    return max(2, int(triton.next_power_of_2(classes)))


def _rows(count: int, classes: int) -> int:
    """Return the samples of a program, such that it has at most TILE probabilities, or one sample."""
    return max(1, min(int(triton.next_power_of_2(count)), TILE // _columns(classes), 32))


def _starts(sizes: Sequence[int]) -> list[int]:
    return [sum(sizes[:number]) for number in range(len(sizes))]
