"""matching: which finished run is an experiment's, wherever it ran and whatever its folder is called."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labelsieve.experiments.spec import BESIDE_THE_POINT, with_defaults
from labelsieve.methods import METHODS, options_of
from labelsieve.report.records import finished_runs, read_spec

WHERE_IT_RAN = ("device", "precision", "threads", *BESIDE_THE_POINT)
Identity = tuple[tuple[str, Any], ...]


def identity(spec: Mapping[str, Any]) -> Identity:
    """All of a specification that changes the result, so that equal means the same experiment.

    Pretrained weights are known by their file's name; of a run to start from, it only counts that there was one.
    """
    whole = {name: value for name, value in with_defaults(dict(spec)).items() if name not in WHERE_IT_RAN}
    whole["options"] = said(whole["method"], dict(whole["options"]))
    whole["weights"] = whole["weights"] and Path(whole["weights"]).name
    whole["init"] = whole["init"] is not None
    return tuple(sorted((name, tuple(v) if isinstance(v, list) else v) for name, v in whole.items()))


def said(method: str, options: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """The options that are not the method's defaults."""
    usual = options_of(method) if method in METHODS else {}
    return tuple(sorted((name, v) for name, v in options.items() if name not in usual or usual[name] != v))


def known_runs(*roots: Path, holding: str = "done") -> dict[Identity, Path]:
    """Every finished run below these folders that holds a file of this name; of several that are the same, the first.

    The first: by root, then by the folder's name.
    """
    found: dict[Identity, Path] = {}
    for path in finished_runs(*roots):
        if (path / holding).exists():
            found.setdefault(identity(read_spec(path)), path)
    return found
