"""Label noise: transition matrices T[true, observed] of pair, symmetry, mixed and asymmetric noise; noisy labels."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from labelsieve.catalogue import parse_noise
from labelsieve.errors import InputError
from labelsieve.runtime import generator


def pair(num_classes: int, rate: float, *, direction: int = 1) -> Tensor:
    """Return a matrix that moves class i to i + direction with probability `rate`."""
    return asymmetric(num_classes, rate, {i: (i + direction) % num_classes for i in range(num_classes)})


def symmetry(num_classes: int, rate: float) -> Tensor:
    """Return a matrix that moves each class to all others with equal probability, `rate` in total."""
    _check(num_classes, rate)
    matrix = torch.full((num_classes, num_classes), rate / (num_classes - 1), dtype=torch.float64)
    matrix.fill_diagonal_(1 - rate)
    return matrix


def mixed(num_classes: int, rate: float, *, dominant: float = 0.75) -> Tensor:
    """Return a matrix that moves `dominant` of the noise to the next class and the rest evenly to the others.

    The paper uses 30% + 10% in its tables (0.75 of 40%) and 24% + 16% in figure 3 (0.6 of 40%).
    """
    _check(num_classes, rate)
    if num_classes < 3:
        raise InputError("mixed noise needs at least 3 classes; use pair")
    if not 0 <= dominant <= 1:
        raise InputError(f"dominant must be in [0, 1], got {dominant}")
    matrix = torch.full((num_classes, num_classes), rate * (1 - dominant) / (num_classes - 2), dtype=torch.float64)
    classes = torch.arange(num_classes)
    matrix[classes, classes] = 1 - rate
    matrix[classes, (classes + 1) % num_classes] = rate * dominant
    return matrix


def asymmetric(num_classes: int, rate: float, mapping: Mapping[int, int]) -> Tensor:
    """Return a matrix that moves class i to mapping[i] with probability `rate` and keeps classes without an entry."""
    _check(num_classes, rate)
    matrix = torch.eye(num_classes, dtype=torch.float64)
    for true, observed in mapping.items():
        if not (0 <= true < num_classes and 0 <= observed < num_classes):
            raise InputError(f"noise map {true}:{observed} is outside the classes 0 to {num_classes - 1}")
        if true != observed:
            matrix[true, true] = 1 - rate
            matrix[true, observed] = rate
    return matrix


KINDS: dict[str, Callable[..., Tensor]] = {kind.__name__: kind for kind in (pair, symmetry, mixed, asymmetric)}


def transition(kind: str, num_classes: int, rate: float, **options: object) -> Tensor:
    """Return the transition matrix of a kind of noise, (K, K) float64; rows sum to 1."""
    name, share = parse_noise(kind)
    if name == "asymmetric" and "mapping" not in options:
        raise InputError("asymmetric noise needs a map of classes (--noise-map), such as 9:1,2:0,4:7,3:5,5:3")
    return KINDS[name](num_classes, rate, **share, **options)


def check_matrix(matrix: Tensor, num_classes: int) -> Tensor:
    """Return a transition matrix as float64, or raise InputError if it is not one."""
    if matrix.shape != (num_classes, num_classes):
        raise InputError(
            f"the noise matrix must be {num_classes} x {num_classes}, got {' x '.join(map(str, matrix.shape))}"
        )
    matrix = matrix.double()
    if not bool((matrix.isfinite() & (matrix >= 0)).all()):
        raise InputError("the noise matrix must contain probabilities: some entries are negative or not finite")
    wrong = (matrix.sum(1) - 1).abs() > 1e-6
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise InputError(f"row {row} of the noise matrix sums to {matrix[row].sum():.6g}, not to 1")
    return matrix


def corrupt(labels: Tensor, matrix: Tensor, seed: int, *, exact: bool = False) -> Tensor:
    """Return noisy labels drawn from matrix[label]; with `exact`, the counts of each class are those of the matrix."""
    matrix = check_matrix(matrix, len(matrix))
    if bool(((labels < 0) | (labels >= len(matrix))).any()):
        raise InputError(f"labels must be from 0 to {len(matrix) - 1} for a noise matrix of {len(matrix)} classes")
    draw = _corrupt_exactly if exact else _corrupt_each
    return draw(labels.cpu().long(), matrix.cpu(), generator(seed, "noise")).to(labels)


def transition_counts(true: Tensor, observed: Tensor, num_classes: int) -> Tensor:
    """Return the number of samples of each true class with each observed label, (K, K) int64."""
    pairs = true.long() * num_classes + observed.long()
    return torch.bincount(pairs, minlength=num_classes**2).view(num_classes, num_classes)


def _corrupt_each(labels: Tensor, matrix: Tensor, rng: torch.Generator) -> Tensor:
    cumulative = matrix.cumsum(1)
    cumulative = cumulative / cumulative[:, -1:]  # the last entry is exactly 1, above every draw
    draws = torch.rand(len(labels), 1, dtype=torch.float64, generator=rng)
    return torch.searchsorted(cumulative[labels], draws, right=True).squeeze(1)


def _corrupt_exactly(labels: Tensor, matrix: Tensor, rng: torch.Generator) -> Tensor:
    observed = labels.clone()
    for true, row in enumerate(matrix.tolist()):
        members = (labels == true).nonzero().squeeze(1)
        counts = torch.tensor(_apportioned(row, len(members)))
        shuffled = members[torch.randperm(len(members), generator=rng)]
        observed[shuffled] = torch.repeat_interleave(torch.arange(len(row)), counts)
    return observed


def _apportioned(shares: list[float], total: int) -> list[int]:
    """Return integers closest to shares * total that sum to total (largest remainder method, ties to lower index)."""
    exact = [round(share * total / math.fsum(shares), 9) for share in shares]  # shares may sum only nearly to 1
    counts = [math.floor(number) for number in exact]
    by_remainder = sorted(range(len(shares)), key=lambda i: (counts[i] - exact[i], i))
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return counts


def _check(num_classes: int, rate: float) -> None:
    if num_classes < 2:
        raise InputError(f"label noise needs at least 2 classes, got {num_classes}")
    if not 0 <= rate <= 1:
        raise InputError(f"noise rate must be in [0, 1], got {rate}")
