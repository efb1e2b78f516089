"""The most suspicious samples, as the page shows them."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from labelsieve.cells import rounded
from labelsieve.report.audited import Suspect

MOST_TEXT, MOST_COLUMNS, MOST_VALUE = 400, 12, 80  # of a sample


@dataclass(frozen=True)
class Card:
    """A sample of the gallery; long texts are cut."""

    sample: Suspect
    quality: str
    text: str
    columns: list[tuple[str, str]]
    more: int  # columns that are not shown


def cards(suspects: Iterable[Suspect]) -> list[Card]:
    return [
        Card(
            suspect,
            readable(suspect.quality),
            cut(suspect.text, MOST_TEXT),
            [(name, cut(str(rounded(value)), MOST_VALUE)) for name, value in list(suspect.row.items())[:MOST_COLUMNS]],
            max(len(suspect.row) - MOST_COLUMNS, 0),
        )
        for suspect in suspects
    ]


def readable(quality: float) -> str:
    """Two digits that matter, and no powers of ten."""
    if quality < 0.0001:
        return "0" if quality <= 0 else "under 0.0001"
    return f"{quality:.{max(2, 1 - math.floor(math.log10(quality)))}f}"


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most] + "…"


def counted(names: Iterable[str]) -> list[tuple[str, int]]:
    """Each name with its count, most first."""
    return sorted(Counter(names).items(), key=lambda item: (-item[1], item[0]))
