"""Evidence for or against a label: sure examples, nearest neighbours, telling words, unusual columns.

Pure functions on numpy arrays; `labelsieve.review.contents` applies them to the data of a run.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from labelsieve.review.suspects import Judged

Array = np.ndarray[Any, Any]
Span = tuple[int, int]  # start and end in a text
MAD_TO_DEVIATION = 1.4826  # of a normal distribution
QUARTILES_TO_DEVIATION = 0.7413
UNUSUAL = 3.0  # robust standard deviations from the median
LARGEST_SCORE = 99.0  # of a column that is constant in a class
WORD = re.compile(r"\w+(?:['’]\w+)*")
LEAST_SHARE = 0.15  # of the largest contribution, below which a word is not marked
MOST_GROUPS = 32  # of words, that a long text is divided into


class Word(NamedTuple):
    """A part of a text, and its contribution to the logit of one class minus that of another."""

    start: int
    end: int
    score: float


class Column(NamedTuple):
    """A value of a row, the medians of two classes, and its robust z-score among samples with the given label."""

    name: str
    value: float
    given: float  # median
    suggested: float
    score: float

    @property
    def unusual(self) -> bool:
        """Return whether the value is rare among samples with the given label."""
        return abs(self.score) >= UNUSUAL


def sure_examples(judged: Iterable[Judged], count: int) -> dict[str, list[int]]:
    """Return the indices of the samples of each class with the least doubt: no issue of any kind, highest quality.

    Among equal qualities, the most typical samples come first. Of near-duplicates, one is taken.
    """
    sure = [each for each in judged if not each.doubtful and each.given == each.suggested]
    found: dict[str, list[int]] = {}
    seen: set[int] = set()
    for each in sorted(sure, key=lambda each: (-each.quality, -each.outlier_score, each.index)):
        of_class = found.setdefault(each.given, [])
        if len(of_class) < count and each.index not in seen:
            of_class.append(each.index)
            seen.update(each.near_duplicates)
    return found


def nearest(unit: Array, place: int, count: int) -> list[tuple[int, float]]:
    """Return the places of the nearest rows among features (n, F) of length 1, and their distances; not the row."""
    similarity = unit @ unit[place]
    similarity[place] = -np.inf
    count = min(count, len(unit) - 1)
    places = np.argpartition(-similarity, count - 1)[:count] if count > 0 else np.empty(0, np.int64)
    ordered = places[np.argsort(-similarity[places], kind="stable")]
    return [(int(each), float(np.sqrt(max(0.0, 2 - 2 * float(similarity[each]))))) for each in ordered]


def unit_rows(features: Array) -> Array:
    """Return features (n, F) scaled to length 1 as float32; rows of zeros stay."""
    length = np.linalg.norm(features, axis=1, keepdims=True)
    return np.asarray(features / np.where(length > 0, length, 1), np.float32)


def robust_scale(values: Array) -> tuple[Array, Array]:
    """Return the medians (F) and the robust standard deviations (F) of the columns of values (n, F).

    The deviation comes from the median of the absolute deviations. If more than half of the values are equal, it comes
    from the quartiles, then from all values; 0 is left for constant columns.
    """
    middle = np.median(values, axis=0)
    spread = MAD_TO_DEVIATION * np.median(np.abs(values - middle), axis=0)
    low, high = np.quantile(values, (0.25, 0.75), axis=0)
    for instead in (QUARTILES_TO_DEVIATION * (high - low), values.std(axis=0)):
        spread = np.where(spread > 0, spread, instead)
    return middle, spread


def compared_columns(names: Sequence[str], row: Array, given: Array, suggested: Array) -> list[Column]:
    """Compare a row (F) with the samples (n, F) of the given and of the suggested class; the most unusual come first.

    The order of the columns that are not unusual is kept.
    """
    middle, spread = robust_scale(given)
    other = np.median(suggested, axis=0)
    apart = row - middle
    with np.errstate(divide="ignore", invalid="ignore"):
        score = np.where(apart == 0, 0.0, np.clip(apart / spread, -LARGEST_SCORE, LARGEST_SCORE))
    values = zip(names, row.tolist(), middle.tolist(), other.tolist(), score.tolist(), strict=False)
    columns = [Column(*each) for each in values]
    unusual = sorted((each for each in columns if each.unusual), key=lambda each: -abs(each.score))
    return [*unusual, *(each for each in columns if not each.unusual)]


def words_of(text: str) -> list[Span]:
    """Return the spans of the words of a text."""
    return [match.span() for match in WORD.finditer(text)]


def telling_words(words: Sequence[Span], contributions: Callable[[Sequence[Span]], Array]) -> list[Word]:
    """Return the words that contribute most.

    Each contribution costs a prediction of the text. A long text is therefore divided into groups of consecutive words;
    only the words of the two groups are compared that contribute most to either class.
    """
    while len(words) > 2 * MOST_GROUPS:
        size = -(-len(words) // MOST_GROUPS)
        groups = [words[k : k + size] for k in range(0, len(words), size)]
        scores = contributions([(group[0][0], group[-1][1]) for group in groups])
        words = [word for k in sorted({int(scores.argmin()), int(scores.argmax())}) for word in groups[k]]
    return strongest_words(words, contributions(words)) if words else []


def strongest_words(words: Sequence[Span], scores: Array) -> list[Word]:
    """Return the words that contribute most; those with a small share of the largest contribution are left out."""
    least = LEAST_SHARE * float(np.abs(scores).max(initial=0.0))
    return [Word(*word, score) for word, score in zip(words, scores.tolist(), strict=True) if abs(score) > least]
