"""What was seen while training sharpens what the delivered network thinks."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
WEIGHT = 0.25  # of the margin's log-odds (docs/decisions/023)
SURE = 1e-6


def sharpened(quality: Array, margin: Array, seen: Array) -> Array:
    """The quality (n) with the mean margin of training, -1 to 1, added to its log-odds where a sample was seen."""
    odds = log_odds(quality) + np.where(seen > 0, WEIGHT * log_odds((1 + margin) / 2), 0.0)
    chance: Array = 1 / (1 + np.exp(-odds))
    return chance


def log_odds(share: Array) -> Array:
    share = np.clip(share.astype(np.float64), SURE, 1 - SURE)
    odds: Array = np.log(share / (1 - share))
    return odds
