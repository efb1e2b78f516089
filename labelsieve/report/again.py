"""The command that trains once more, as the run itself was begun, with the labels of a review."""

import itertools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

REPLACED = ("--labels", "--out", "--noise", "--rate", "--noise-map")  # the labels of a review hold added noise already
WITHOUT_VALUE = ("--exact-noise",)


def train_again(name: str, command: str, spec: Mapping[str, Any], labels: str) -> list[str]:
    """The words of the command, for the run of this name.

    `command`: what was typed to begin it, where that is known; else `spec` says what it was trained on.
    """
    typed = shlex.split(command) or [
        "labelsieve",
        "train",
        str(spec["data"]),
        *(["--skip-bad"] if spec.get("skip_bad") else []),
    ]
    return [*kept(typed), "--labels", labels, "--out", free_name(name)]


def kept(typed: Sequence[str]) -> Iterator[str]:
    """The words without the options that are said anew."""
    words = iter(typed)
    for word in words:
        if word in REPLACED:
            next(words, None)
        elif word not in WITHOUT_VALUE:
            yield word


def free_name(name: str) -> str:
    """A folder for the next run, beside that of this one: one-reviewed, then one-reviewed-2 and so on."""
    first = re.sub(r"-reviewed(-\d+)?$", "", name.rstrip("/")) + "-reviewed"
    names = itertools.chain([first], (f"{first}-{number}" for number in itertools.count(2)))
    return next(each for each in names if each != name.rstrip("/") and not Path(each).exists())
