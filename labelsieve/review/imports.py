"""Import of decisions from other tools: exports of Label Studio and FiftyOne, cleanlab's columns, and label files.

A reader for each format turns a file into answers, which name a sample and its label. `import_decisions` checks all of
them against the run before it appends the first decision.
"""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from labelsieve.errors import InputError
from labelsieve.review.decisions import MAX_NAME_LENGTH, Decision, DecisionLog, decisions_path
from labelsieve.review.export import check_same_data
from labelsieve.review.suspects import Judged, read_class_names, read_judged
from labelsieve.text import listed, printable, unescape_cell

SHOWN_CLASSES = 10  # in messages
CONTROLS = ("label", "choice")  # names of Label Studio's <Choices>, in this order
CORRECTED_COLUMNS = ("corrected_label", "clean_label", "final_label", "new_label", "label")  # the first one counts
INDEX_COLUMNS = ("index", "", "cleanlab_row_ID")  # pandas writes its index without a name
NAME_COLUMNS = ("name", "id", "filepath", "file_path", "filename", "file_name", "path", "image")
KEPT_TAGS = {"reviewed", "keep", "kept", "correct", "verified", "validated"}  # of FiftyOne: a person agrees
UNSURE_TAG = "unsure"
PHRASES = {"accept": "suggestions accepted", "other": "other labels", "keep": "kept", "unsure": "unsure"}


@dataclass(frozen=True)
class Answer:
    """A decision about one sample in an imported file."""

    place: str  # in the file, for messages
    index: int | None  # position of the sample in the training set
    names: tuple[str, ...]  # names or paths of the sample; the first one that is known counts
    label: str | None  # None: the person is unsure
    confirmed: bool = True  # by a person; else it is a decision only if it differs from the given label
    reviewer: str = ""
    time: str = ""


@dataclass(frozen=True)
class _Row:
    """A row of a table, or an object of a list."""

    place: str
    fields: Mapping[str, Any]


class _Unusable(Exception):
    """A reason why a file cannot be imported."""


Reader = Callable[[Any, int], Iterator[Answer]]  # of the content of a file, for a number of samples


def import_decisions(run: Path, path: Path, reviewer: str = "") -> str:
    """Append the decisions in a file of another tool to those of a run, and return a line that describes them.

    `reviewer` is the name of the person who made the decisions for which the file has none.
    Nothing is appended if the file is damaged, or names a sample or a class that the run does not have. A decision
    that was imported from the same tool before is not repeated, even if it was changed or undone since.
    """
    judged, classes = read_judged(run), read_class_names(run)
    source, answers = read_answers(path, len(judged))
    find = _Finder(judged, path)
    answers = [replace(answer, reviewer=answer.reviewer or reviewer) for answer in answers]
    named = [(_with_known_label(answer, classes, path), find.sample(answer)) for answer in answers]
    decided = [(answer, sample) for answer, sample in named if answer.confirmed or answer.label != sample.given]
    if not decided:
        raise InputError(f"{path} has no decisions: no label in it was confirmed or changed by a person")
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    tab, action = f"import {source}", printable(f"import {path.name}")[:MAX_NAME_LENGTH]
    wanted = [_decision(answer, sample, now, tab, action) for answer, sample in _last_answers(decided, path)]
    log, new = DecisionLog(decisions_path(run)), list[Decision]()

    def not_imported(past: Sequence[Decision]) -> Sequence[Decision]:
        check_same_data({each.index: each for each in past}, {each.index: each.id for each in judged}, log.path)
        before = {(each.index, each.reviewer): _outcome(each) for each in past if each.tab == tab}
        new[:] = [each for each in wanted if before.get((each.index, each.reviewer)) != _outcome(each)]
        return new

    log.append(not_imported)
    counts = Counter(decision.decision for decision in new)
    kinds = ", ".join(f"{counts[kind]:,} {phrase}" for kind, phrase in PHRASES.items() if counts[kind])
    repeated = f"; {len(wanted) - len(new):,} were imported before" if len(new) < len(wanted) else ""
    return f"{printable(str(path))}: {len(new):,} decisions imported{f' ({kinds})' if kinds else ''}{repeated}"


def _outcome(decision: Decision) -> tuple[str, str | None]:
    return decision.decision, decision.label


def _with_known_label(answer: Answer, classes: Sequence[str], path: Path) -> Answer:
    """Return an answer whose label is a class; a label in a table may be escaped."""
    label = answer.label
    if label is None or label in classes:
        return answer
    if unescape_cell(label) in classes:
        return replace(answer, label=unescape_cell(label))
    known = listed(classes, SHOWN_CLASSES)
    raise InputError(
        printable(f"{path}: {answer.place} has the label {label!r}; the classes are: {known}; nothing was imported")
    )


def _decision(answer: Answer, sample: Judged, now: str, tab: str, action: str) -> Decision:
    """Return an answer as a decision."""
    kind, label = "other", answer.label
    if label is None:
        kind = "unsure"
    elif label == sample.given:
        kind, label = "keep", None
    elif label == sample.suggested:
        kind = "accept"
    reviewer = printable(answer.reviewer).strip()[:MAX_NAME_LENGTH]
    return Decision(sample.index, sample.id, kind, label, answer.time or now, tab, reviewer, action)


def _last_answers(answers: Sequence[tuple[Answer, Judged]], path: Path) -> list[tuple[Answer, Judged]]:
    """Return the last answer of each reviewer about each sample; raise InputError if two contradict each other."""
    found: dict[tuple[int, str], tuple[Answer, Judged]] = {}
    for answer, sample in sorted(answers, key=lambda pair: pair[0].time):
        before, _ = found.get((sample.index, answer.reviewer), (answer, sample))
        if before.label != answer.label and before.time == answer.time:
            both = f"{before.place} and {answer.place} give different labels to {sample.id}"
            raise InputError(printable(f"{path}: {both}; remove one of them; nothing was imported"))
        found[sample.index, answer.reviewer] = (answer, sample)
    return list(found.values())


class _Finder:
    """Finds the sample that an answer is about, by its position, name or path."""

    def __init__(self, judged: Sequence[Judged], path: Path) -> None:
        self.path = path
        self.samples = {each.index: each for each in judged}
        self.by_ending: dict[str, list[Judged]] = {}  # by the last part of the name, with and without suffix
        for each in judged:
            for ending in {PurePosixPath(each.id).name, PurePosixPath(each.id).stem}:
                self.by_ending.setdefault(ending, []).append(each)

    def sample(self, answer: Answer) -> Judged:
        """Return the sample; raise InputError if there is none, or if position and names contradict each other."""
        matching = next(filter(None, map(self._named, answer.names)), [])
        if answer.index is None:
            if len(matching) == 1:
                return matching[0]
            shown = repr(answer.names[0]) if answer.names else "a sample without name and index"
            many = f"which is the name of {len(matching):,} samples; add a column index"
            raise self._error(answer, f"is about {shown}, {many if matching else 'which is not a sample of this run'}")
        found = self.samples.get(answer.index)
        if found is None:
            raise self._error(answer, f"is about sample {answer.index:,}, but this run has no such sample")
        if answer.names and found not in matching:
            raise self._error(answer, f"is about {answer.names[0]!r}, but sample {found.index} is {found.id!r} here")
        return found

    def _named(self, name: str) -> list[Judged]:
        """Return the samples with this name, or else those whose name is the end of this one or the other way round."""
        path = PurePosixPath(name.replace("\\", "/"))
        candidates = self.by_ending.get(path.name, [])
        equal = [each for each in candidates if each.id == name]
        return equal or [each for each in candidates if _same_ending(PurePosixPath(each.id), path)]

    def _error(self, answer: Answer, what: str) -> InputError:
        return InputError(printable(f"{self.path}: {answer.place} {what}; nothing was imported"))


def _same_ending(sample: PurePosixPath, other: PurePosixPath) -> bool:
    """Return whether the shorter path is the end of the longer one; the other one may lack the suffix of its file."""
    for parts in (sample.parts, sample.with_suffix("").parts):
        count = min(len(parts), len(other.parts))
        if parts[-count:] == other.parts[-count:]:
            return True
    return False


def read_answers(path: Path, samples: int) -> tuple[str, list[Answer]]:
    """Return the tool that wrote a file and the answers in it; the format is found by the content.

    `samples` is the number of samples that a table without index and names must have.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"cannot import {path}: it is not UTF-8 text; nothing was imported") from error
    try:
        is_json = text.lstrip()[:1] in ("[", "{")
        source, content, read = _json_format(json.loads(text)) if is_json else _table_format(text)
        return source, list(read(content, samples))
    except _Unusable as error:
        raise InputError(printable(f"cannot import {path}: {error}; nothing was imported")) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, csv.Error) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise InputError(printable(f"cannot import {path}: it is damaged ({reason}); nothing was imported")) from error


def _json_format(content: Any) -> tuple[str, Any, Reader]:
    """Return the tool, the objects and the reader of a JSON file."""
    if isinstance(content, dict) and isinstance(content.get("samples"), list):
        return "fiftyone", _objects(content["samples"], "sample"), _fiftyone_samples
    if isinstance(content, dict) and isinstance(content.get("labels"), dict):
        return "fiftyone", content, _fiftyone_labels
    if isinstance(content, list):
        rows = _objects(content, "task")
        if any("data" in row.fields for row in rows):
            return "label-studio", rows, _label_studio_tasks
        if any("annotation_id" in row.fields for row in rows):
            return "label-studio", rows, _label_studio_rows
    raise _Unusable("it is no export of Label Studio (JSON, JSON-MIN, CSV) or FiftyOne (samples.json, labels.json)")


def _table_format(text: str) -> tuple[str, Any, Reader]:
    """Return the tool, the rows and the reader of a table."""
    header = text.partition("\n")[0]
    separator = "\t" if "\t" in header and "," not in header else ","
    table = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    names, rows = next(table, []), []
    if len(set(names)) < len(names):
        raise _Unusable("two of its columns have the same name")
    for cells in filter(None, table):
        if len(cells) != len(names):
            raise _Unusable(f"line {table.line_num} has {len(cells)} cells, but there are {len(names)} columns")
        rows.append(_Row(f"line {table.line_num}", dict(zip(names, cells, strict=True))))
    if "annotation_id" in names:
        return "label-studio", rows, _label_studio_rows
    if any(name in names for name in CORRECTED_COLUMNS):
        return ("labels" if "decided" in names else "cleanlab"), rows, _label_rows
    findings = "it has findings of a model, but no decisions" if "is_label_issue" in names else "it is not known"
    raise _Unusable(f"{findings}: there is no column corrected_label or label (columns: {', '.join(names)[:200]})")


def _objects(content: Iterable[Any], noun: str) -> list[_Row]:
    """Return the objects of a list, with their places."""
    rows = [_Row(f"{noun} {number}", each) for number, each in enumerate(content, 1)]
    for row in rows:
        if not isinstance(row.fields, dict):
            raise _Unusable(f"{row.place} is not an object")
    return rows


def _label_studio_tasks(rows: Sequence[_Row], samples: int) -> Iterator[Answer]:
    """Read Label Studio's JSON: tasks with annotations, of which a cancelled one means that the task was skipped."""
    for row in rows:
        for annotation in row.fields.get("annotations") or []:
            values = [result.get("value") or {} for result in annotation.get("result") or []]
            choices = [choice for value in values for choice in value.get("choices", [])]
            skipped = bool(annotation.get("was_cancelled"))
            if choices or skipped:
                label = None if skipped else _only_choice(choices, row.place)
                yield _annotated(row.place, row.fields["data"], label, annotation.get("completed_by"), annotation)


def _label_studio_rows(rows: Sequence[_Row], samples: int) -> Iterator[Answer]:
    """Read Label Studio's JSON-MIN and CSV: a row for each annotation, with the data of its task."""
    names = list(dict.fromkeys(name for row in rows for name in row.fields))
    control = next((name for name in CONTROLS if name in names), None)
    if control is None:
        raise _Unusable(f"it has no column label or choice with the labels (columns: {', '.join(names)})")
    for row in rows:
        value = row.fields.get(control)
        if isinstance(value, str) and value.startswith("{"):
            value = json.loads(value)  # several choices, in a table
        choices = value.get("choices", []) if isinstance(value, dict) else [value]
        if value:  # else the task has no annotation
            label = _only_choice(choices, row.place)
            yield _annotated(row.place, row.fields, label, row.fields.get("annotator"), row.fields)


def _only_choice(choices: Sequence[Any], place: str) -> str:
    """Return the chosen label; raise _Unusable if there are several."""
    if len(choices) != 1 or not isinstance(choices[0], str):
        raise _Unusable(f"{place} has the labels {choices!r}; a sample has one label here")
    return choices[0]


def _annotated(place: str, data: Mapping[str, Any], label: str | None, person: Any, times: Mapping[str, Any]) -> Answer:
    """Return the answer of an annotation in Label Studio, about the sample with this data.

    An `id` of digits may be that of the task: JSON-MIN replaces the name of the sample by it.
    """
    index = _position(data.get("index"), place)
    names = [data.get("id")] if index is not None else [data.get("id"), data.get("image")]
    texts = [_local_file(name) for name in names if isinstance(name, str) and name and not name.isdigit()]
    time = str(times.get("updated_at") or times.get("created_at") or "")
    return Answer(place, index, tuple(texts), label, reviewer=_annotator(person), time=time)


def _local_file(address: str) -> str:
    """Return the path in an address of Label Studio, such as /data/local-files/?d=cat/1.jpg."""
    if not re.match(r"/data/|\w+://", address):
        return address
    parts = urlsplit(address)
    return parse_qs(parts.query).get("d", [unquote(parts.path)])[0]


def _annotator(person: Any) -> str:
    """Return the name of a person in Label Studio; the number of an unnamed one."""
    if isinstance(person, dict):
        person = person.get("email") or person.get("username") or person.get("id")
    name = "" if person is None else str(person)
    return f"Label Studio user {name}" if name.isdigit() else name


def _fiftyone_samples(rows: Sequence[_Row], samples: int) -> Iterator[Answer]:
    """Read samples.json of a FiftyOneDataset.

    It has the labels of all samples. Tags of a sample or of its label say that a person confirmed it, or was unsure.
    """
    for row in rows:
        truth = row.fields.get("ground_truth") or row.fields.get("label")
        if truth is not None:
            known = truth if isinstance(truth, dict) else {"label": truth}
            tags = {str(tag).lower() for holder in (row.fields, known) for tag in holder.get("tags") or []}
            label = None if UNSURE_TAG in tags else str(known["label"])
            index = row.fields.get("index", known.get("index"))
            yield _pictured(row.place, str(row.fields["filepath"]), index, label, bool(tags & KEPT_TAGS))


def _fiftyone_labels(content: Mapping[str, Any], samples: int) -> Iterator[Answer]:
    """Read labels.json of a FiftyOneImageClassificationDataset, which has the labels of all samples."""
    classes = content.get("classes")
    for name, target in content["labels"].items():
        known = target if isinstance(target, dict) else {"label": target}
        value = known["label"]
        if isinstance(value, list):
            raise _Unusable(f"{name!r} has several labels; a sample has one label here")
        if type(value) is int and classes:
            if not 0 <= value < len(classes):
                raise _Unusable(f"{name!r} has the label {value}, but there are {len(classes)} classes")
            value = classes[value]
        if value is not None:
            index = (known.get("attributes") or {}).get("index")
            yield _pictured(f"label of {name!r}", name, index, str(value), False)


def _pictured(place: str, name: str, index: Any, label: str | None, tagged: bool) -> Answer:
    """Return the answer about an image in FiftyOne, which renames files of equal names: its index is more reliable.

    An export has its images in a folder data, without their own folders.
    """
    position = _position(index, place)
    names = (name, name.rpartition("data/")[2]) if position is None else ()
    return Answer(place, position, names, label, tagged or label is None)


def _label_rows(rows: Sequence[_Row], samples: int) -> Iterator[Answer]:
    """Read cleanlab's columns with a column of corrected labels, or a label file of labelsieve.

    Label issues, or decided samples in a label file, are confirmed by their label. Rows without a label, and undecided
    ones in a label file, say nothing. Without index and name, the rows are in the order of the data.
    """
    columns = list(rows[0].fields) if rows else []
    label = next((name for name in CORRECTED_COLUMNS if name in columns), "")
    index = next((name for name in INDEX_COLUMNS if name in columns), None)
    names = [name for name in NAME_COLUMNS if name in columns]
    if index is None and not names and len(rows) != samples:
        raise _Unusable(f"it has neither index nor name, and {len(rows):,} rows for {samples:,} samples")
    confirming = "decided" if "decided" in columns else "is_label_issue"
    for number, row in enumerate(rows):
        confirmed = row.fields.get(confirming, "").strip().lower() in ("true", "1", "yes")
        if row.fields[label] and (confirmed or confirming != "decided"):
            found = [row.fields[name] for name in names if row.fields[name]]
            place = _position(row.fields[index], row.place) if index is not None else None if names else number
            known = tuple(dict.fromkeys([*found, *map(unescape_cell, found)]))
            yield Answer(row.place, place, known, row.fields[label], confirmed)


def _position(value: Any, place: str) -> int | None:
    """Return the position of a sample; None if there is none."""
    if value is None or value == "":
        return None
    if not isinstance(value, int | str) or not re.fullmatch("[0-9]{1,18}", str(value).strip()):
        raise _Unusable(f"{place} has the index {value!r}; it must be the position of a sample, from 0")
    return int(value)
