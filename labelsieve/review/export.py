"""All labels with the decisions applied, as a file that `labelsieve train --labels` reads."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from labelsieve.cells import guarded, printable
from labelsieve.errors import InputError
from labelsieve.files import write_atomically
from labelsieve.review.decisions import Decision, changed_labels, state
from labelsieve.review.log import DecisionLog
from labelsieve.review.suspects import read_given


def decisions_path(run: Path) -> Path:
    return run / "review" / "decisions.jsonl"


def export(run: Path, out: Path) -> str:
    """Write the labels and say what was written. Undecided and unsure samples keep the given label."""
    if out.suffix != ".csv":
        raise InputError(f"--export writes a .csv file, not {out.name}; name it so")
    given = read_given(run)
    log = DecisionLog(decisions_path(run))
    log.mend()
    decided = state(log.decisions())
    if not decided:
        raise InputError(f"there are no decisions in {log.path} yet; make some with labelsieve review {run}")
    refuse_other_data(decided, {index: name for index, (name, _) in given.items()}, log.path)
    changed = changed_labels(decided, {index: label for index, (_, label) in given.items()})
    write_atomically(out, label_file({i: (name, changed.get(i, label)) for i, (name, label) in given.items()}))
    counts = f"{len(given):,} labels, {len(changed):,} of them changed; {len(decided):,} samples are decided"
    return f"{printable(str(out))}: {counts}"


def label_file(labels: Mapping[int, tuple[str, str]]) -> bytes:
    """index, name, label; without names where they are only the index, or do not tell the samples apart."""
    names = [name for name, _ in labels.values()]
    named = len(set(names)) == len(names) and any(name != str(index) for index, name in zip(labels, names, strict=True))
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["index", "name", "label"] if named else ["index", "label"])
    for index, (name, label) in labels.items():
        writer.writerow([index, *([guarded(name)] if named else []), guarded(label)])
    return text.getvalue().encode(errors="surrogateescape")


def refuse_other_data(decided: Mapping[int, Decision], names: Mapping[int, str], path: Path) -> None:
    """Decisions about samples that are not these would change the wrong labels."""
    for index, decision in decided.items():
        if names.get(index) != decision.id:
            raise InputError(
                f"{path} was made for other data: sample {index} was {decision.id!r} and is now "
                f"{names.get(index, 'not there')!r}; move that file away to begin anew"
            )
