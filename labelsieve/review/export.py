"""The command that trains once more, as the run itself was begun, with the labels of a review."""

import csv
import io
import itertools
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from labelsieve.errors import InputError
from labelsieve.files import refuse_others, write_atomically
from labelsieve.review.decisions import Decision, DecisionLog, changed_labels, state, unsure_of
from labelsieve.review.suspects import read_given
from labelsieve.runs.read import read_samples
from labelsieve.text import guarded, printable

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


def decisions_path(run: Path) -> Path:
    return run / "review" / "decisions.jsonl"


def export(run: Path, out: Path) -> str:
    """Write the labels and say what was written. Undecided and unsure samples keep the given label.

    The column `decided` says what a person decided, now or before the run, so that no later audit doubts it.
    """
    if out.suffix != ".csv":
        raise InputError(f"--export writes a .csv file, not {out.name}; name it so")
    refuse_others(out, "index,label,decided", "index,name,label,decided")
    given = read_given(run)
    log = DecisionLog(decisions_path(run))
    log.mend()
    decided = state(log.decisions())
    if not decided:
        raise InputError(f"there are no decisions in {log.path} yet; make some with labelsieve review {run}")
    refuse_other_data(decided, {index: name for index, (name, _) in given.items()}, log.path)
    changed = changed_labels(decided, {index: label for index, (_, label) in given.items()})
    labels = {i: (name, changed.get(i, label)) for i, (name, label) in given.items()}
    unsure, before = unsure_of(decided), decided_before(run) - decided.keys()
    sure = (decided.keys() - unsure) | before
    write_atomically(out, label_file(labels, sure))
    earlier = f" ({len(before):,} of them before this run)" if before else ""
    left = f", {len(unsure):,} unsure" if unsure else ""
    counts = (
        f"{len(given):,} labels, {len(changed):,} of them changed; {len(sure):,} samples are decided{earlier}{left}"
    )
    return f"{printable(str(out))}: {counts}"


def decided_before(run: Path) -> set[int]:
    """The samples whose label a person had decided on before the run."""
    samples = read_samples(run) or {}
    return set(samples["decided"].nonzero()[0].tolist()) if "decided" in samples else set()


def label_file(labels: Mapping[int, tuple[str, str]], decided: Collection[int]) -> bytes:
    """index, name, label, decided; without names where they are only the index, or do not tell the samples apart."""
    names = [name for name, _ in labels.values()]
    named = len(set(names)) == len(names) and any(name != str(index) for index, name in zip(labels, names, strict=True))
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["index", *(["name"] if named else []), "label", "decided"])
    for index, (name, label) in labels.items():
        writer.writerow([index, *([guarded(name)] if named else []), guarded(label), str(index in decided).lower()])
    return text.getvalue().encode(errors="surrogateescape")


def refuse_other_data(decided: Mapping[int, Decision], names: Mapping[int, str], path: Path) -> None:
    """Decisions about samples that are not these would change the wrong labels."""
    for index, decision in decided.items():
        if names.get(index) != decision.id:
            raise InputError(
                f"{path} was made for other data: sample {index} was {decision.id!r} and is now "
                f"{names.get(index, 'not there')!r}; move that file away to begin anew"
            )
