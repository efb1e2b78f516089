"""Map of the samples: some of them as points of the plane, near each other if their features are alike."""

from typing import Any

import numpy as np

from labelsieve.audit.findings import Findings
from labelsieve.audit.guesses import Array

MAX_POINTS = 2400
MAX_SUSPECTS = 1200  # of the points, the most suspicious ones
SIDE = 1000  # largest coordinate
TINY = 1e-12


def sample_map(findings: Findings, features: Array) -> dict[str, Any]:
    """Return the contents of map.json: a column for each property of the points.

    The points are spread evenly over the data, and all suspects are among them up to a limit. `features` is (n, F).
    """
    shown = map_samples(findings)
    places = plane(features[shown])
    return {
        "samples": len(findings),
        "index": shown.tolist(),
        "id": [findings.ids[index] for index in shown.tolist()],
        "given": findings.labels[shown].tolist(),  # positions in the classes of the summary
        "suggested": findings.suggested[shown].tolist(),
        "is_label_issue": findings.issues[shown].tolist(),
        "x": places[:, 0].tolist(),
        "y": places[:, 1].tolist(),
    }


def map_samples(findings: Findings) -> Array:
    """Return the positions of the samples of the map, sorted."""
    suspects = findings.order[findings.issues[findings.order]][:MAX_SUSPECTS]
    others = np.flatnonzero(~findings.issues)
    count = min(len(others), MAX_POINTS - len(suspects))
    spread = others[np.arange(count) * len(others) // max(count, 1)]
    return np.sort(np.concatenate([suspects, spread]))


def plane(features: Array) -> Array:
    """Return whole coordinates (n, 2) from 0 to 1,000 for features (n, F): their first two principal components."""
    rows = features.astype(np.float32)
    rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), TINY)  # their direction tells the content
    return _scaled(principal_components(rows))


def principal_components(rows: Array) -> Array:
    """Return the coordinates (n, 2) of rows (n, F) on the two axes along which they vary most.

    The sign of an axis is arbitrary: the coordinate farthest from 0 is made positive.
    """
    centred = rows - rows.mean(0)
    wide = rows.shape[1] > len(rows)
    values, vectors = np.linalg.eigh(centred @ centred.T if wide else centred.T @ centred)  # in ascending order
    axes = vectors[:, :-3:-1]  # two, if there are two
    found = axes * np.sqrt(np.maximum(values[:-3:-1], 0)) if wide else centred @ axes
    places = np.zeros((len(rows), 2))
    places[:, : found.shape[1]] = found
    farthest = places[np.abs(places).argmax(0), np.arange(2)]
    return places * np.where(farthest < 0, -1, 1)


def _scaled(places: Array) -> Array:
    """Scale coordinates (n, 2) to whole numbers from 0 to 1,000, both by the same factor."""
    low, high = places.min(0), places.max(0)
    scale = SIDE / max(float((high - low).max()), TINY)
    return np.rint((places - (low + high) / 2) * scale + SIDE / 2).astype(int)
