"""State of a review: the suspects of a run and the decisions about them, as the page requests and changes them."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from labelsieve.errors import InputError, LabelsieveError
from labelsieve.files import verified
from labelsieve.review.decisions import (
    DECISIONS,
    MAX_NAME_LENGTH,
    Decision,
    DecisionLog,
    agreements,
    changed_labels,
    decisions_by_reviewer,
    decisions_path,
    disagreements,
    effective_decisions,
    effective_lines,
)
from labelsieve.review.export import check_same_data, export_labels, retrain_line
from labelsieve.review.suspects import IMAGE_TYPES, Judged, Suspect, read_class_names, read_gallery, read_judged
from labelsieve.runs.read import is_separate_audit, read_audit_origin
from labelsieve.text import printable

if TYPE_CHECKING:
    from labelsieve.review.contents import Contents

MAX_ITEMS = 5000  # samples of one action
MAX_PREVIEW = 200  # characters of a text to compare with
SHOWN_EXAMPLES, SHOWN_NEIGHBOURS = 4, 8  # examples of each class


class RequestError(Exception):
    """A refused request: an HTTP status, a message, and further fields of the answer."""

    def __init__(self, status: int, message: str, **fields: object) -> None:
        super().__init__(message)
        self.status, self.fields = status, fields


class _ReviewCounts(NamedTuple):
    """Number of samples by decision."""

    decided: int
    unsure: int
    changed: int  # samples of the gallery with a new label
    left: int  # suspects without a decision


class _Material(NamedTuple):
    """The data of a run: its samples, what the audit says about each, and sure examples of each class."""

    contents: "Contents | None"  # None if the data is gone
    judged: Mapping[int, Judged]
    examples: Mapping[str, Sequence[int]]
    problem: str = ""  # why there are no contents


class ReviewState:
    """The samples of a run's gallery and the decisions about them.

    Args:
        run: folder of a run, or of an audit without a run.
        data: where its data is now, if it was moved.
    """

    def __init__(self, run: Path, data: str | None = None) -> None:
        self.run = run
        self.samples = {sample.index: sample for sample in read_gallery(run)}
        self.twins = {sample.twin.index: sample.twin for sample in self.samples.values() if sample.twin}
        if not self.samples:
            raise InputError(f"the gallery of {run} is empty; there is nothing to review")
        self.classes = read_class_names(run)
        self.log = DecisionLog(decisions_path(run))
        self.log.repair()
        check_same_data(self._decisions(), {i: sample.id for i, sample in self.samples.items()}, self.log.path)
        self._exporting = threading.Lock()
        self._data = data
        self._loading = threading.Lock()
        self._material: _Material | None = None
        self._starting = threading.Lock()
        self._started = False
        self.ready = False  # whether pictures and details need not wait for the data

    @property
    def name(self) -> str:
        """Return the name of the run."""
        return self.run.resolve().name

    @property
    def suspects(self) -> set[int]:
        """Return the indices of the samples whose label is probably wrong."""
        return {index for index, sample in self.samples.items() if sample.is_issue and "label" in sample.listed}

    def initial(self) -> dict[str, Any]:
        """Return everything that the page loads at the start."""
        self.start()
        return {
            "ready": self.ready,
            "run": self.name,
            "classes": self.classes,
            "samples": [sample.for_page() for sample in self.samples.values()],
            **self.changes(0),
        }

    def changes(self, since: int) -> dict[str, Any]:
        """Return what changed after the first `since` lines of the log, from any tab or process."""
        return self._changes(self.log.decisions(), since)

    def decide(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Save a decision, unless the sample changed: `over` is the line in effect that the page knows of."""
        item = (self._sample(request.get("index")), request.get("over"))
        decisions, refused = self._save([item], request)
        changes = self._changes(decisions, request["since"])
        if refused:
            unchanged = effective_lines(decisions).get(item[0].index) == item[1]
            reason = "you have no decision to undo" if unchanged else "this sample was changed in another tab"
            raise RequestError(409, reason, **changes)
        return changes

    def decide_many(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Save one decision about several samples, `items` of [index, over]; those that changed are `refused`."""
        items = request.get("items")
        if not isinstance(items, list) or len(items) > MAX_ITEMS:
            raise RequestError(400, f"items must be a list of at most {MAX_ITEMS:,} samples")
        if not all(isinstance(item, list) and len(item) == 2 for item in items):
            raise RequestError(400, "an item must be [index, over]")
        known = {sample.index: (sample, over) for sample, over in ((self._sample(one), over) for one, over in items)}
        decisions, refused = self._save(known.values(), request)
        return {"refused": refused, **self._changes(decisions, request["since"])}

    def _save(
        self, items: Iterable[tuple[Suspect, object]], request: Mapping[str, Any]
    ) -> tuple[Sequence[Decision], list[int]]:
        """Save a decision about samples; return all decisions, and the samples that others changed meanwhile."""
        wanted = [(sample, over, _new_label(request, sample, self.classes)) for sample, over in items]
        names = tuple(request.get(field, "") for field in ("tab", "reviewer", "action"))
        if not all(isinstance(name, str) and len(name) <= MAX_NAME_LENGTH for name in names):
            raise RequestError(400, "tab, reviewer and action must be short strings")
        if type(request.get("since")) is not int or request["since"] < 0:
            raise RequestError(400, "since must be a number of lines")
        tab, reviewer, action = (printable(name).strip() for name in names)
        refused: list[int] = []

        def decisions(so_far: Sequence[Decision]) -> list[Decision]:
            lines = effective_lines(so_far)
            undo = request["decision"] == "undo"
            made = decisions_by_reviewer(so_far) if undo else {}
            for sample, over, _ in wanted:
                if lines.get(sample.index) != over or (undo and reviewer not in made.get(sample.index, {})):
                    refused.append(sample.index)
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            return [
                Decision(sample.index, sample.id, request["decision"], label, now, tab, reviewer, action)
                for sample, _, label in wanted
                if sample.index not in refused
            ]

        return self.log.append(decisions), refused

    def export(self) -> dict[str, Any]:
        """Write reviewed.csv next to the decisions."""
        with self._exporting:
            if not effective_decisions(self.log.decisions()):
                raise RequestError(409, "nothing was exported: there are no decisions yet")
            reviewed = self.log.path.with_name("reviewed.csv")
            return {"message": export_labels(self.run, reviewed), "command": retrain_line(self.run, reviewed)}

    def counts(self) -> _ReviewCounts:
        """Count the decisions so far and the suspects that are left."""
        decisions = effective_decisions(self.log.decisions())
        changed = changed_labels(self._decisions(), {i: sample.given for i, sample in self.samples.items()})
        unsure = sum(decision.decision == "unsure" for decision in decisions.values())
        return _ReviewCounts(len(decisions) - unsure, unsure, len(changed), len(self.suspects - decisions.keys()))

    def material(self) -> _Material:
        """Return the data of the run; the first call opens it, which takes seconds."""
        with self._loading:
            if self._material is None:
                self._material = _open_material(self.run, self._data)
            return self._material

    def start(self) -> None:
        """Open the data of the run in the background, once; `ready` is set at the end."""
        with self._starting:
            if not self._started:
                self._started = True
                threading.Thread(target=self.prepare, daemon=True).start()

    def prepare(self) -> None:
        """Open the data of the run, so that requests need not wait for it."""
        try:
            contents = self.material().contents
            if contents is not None:
                contents.prepare()
        finally:
            self.ready = True

    def details(self, index: int) -> dict[str, Any]:
        """Return the content of a sample from the data, and what to compare it with."""
        sample, material = self._sample(index), self.material()
        return {
            "index": index,
            **self._content(sample, material),
            "examples": {
                name: [self._related(one, material) for one in material.examples.get(name, ()) if one != index][
                    :SHOWN_EXAMPLES
                ]
                for name in dict.fromkeys((sample.given, sample.suggested))
            },
            "neighbours": self._neighbours(index, material),
        }

    def _content(self, sample: Suspect, material: _Material) -> dict[str, Any]:
        """Return size, text or columns of a sample, and the problem if the data does not have it any more."""
        empty: dict[str, Any] = {"problem": material.problem, "size": None, "text": None, "words": [], "columns": None}
        contents = material.contents
        if contents is None:
            return empty
        if contents.has_pictures:
            try:
                picture = contents.picture(sample.index, "full", self.thumbnail(sample.index))
            except ValueError as error:  # BadImage
                return {**empty, "problem": f"The image cannot be shown: {error}."}
            return {**empty, "size": [picture.width, picture.height]}
        text = contents.text(sample.index)
        if sample.text is not None and (text is None or not text.startswith(sample.text)):
            return {**empty, "problem": "The text is no longer in the data, or has changed since the audit."}
        columns = contents.columns(sample.index, sample.given, sample.suggested)
        if sample.row is not None and not _is_row(columns, sample.row):
            return {**empty, "problem": "The row is no longer in the data, or has changed since the audit."}
        words = contents.words(text, sample.given, sample.suggested) if text else []
        shown = None if columns is None else [{**each._asdict(), "unusual": each.unusual} for each in columns]
        return {**empty, "text": text, "words": words, "columns": shown}

    def _neighbours(self, index: int, material: _Material) -> list[dict[str, Any]]:
        found = material.contents.neighbours(index, SHOWN_NEIGHBOURS) if material.contents else []
        return [{**self._related(one, material), "distance": round(distance, 3)} for one, distance in found]

    def _related(self, index: int, material: _Material) -> dict[str, Any]:
        """Return what the page shows of a sample to compare with."""
        judged, contents = material.judged[index], material.contents
        image = self.thumbnail(index) is not None or (contents is not None and contents.has_pictures)
        text = contents.preview(index) if contents else self.samples[index].text if index in self.samples else None
        shown = text if text is None or len(text) <= MAX_PREVIEW else f"{text[:MAX_PREVIEW]}…"
        return {"index": index, "id": judged.id, "given": judged.given, "image": image, "text": shown}

    def picture(self, index: int, size: str) -> tuple[bytes, str]:
        """Return the image of a sample and its type: from the data or, if it is not there any more, the thumbnail."""
        from labelsieve.review.contents import SIDES, is_sharp

        if size not in SIDES:
            raise RequestError(400, f"size must be one of {', '.join(SIDES)}")
        thumbnail, contents = self.thumbnail(index), self.material().contents
        if size == "small" and thumbnail is not None and is_sharp(thumbnail):
            return self.thumbnail_image(index)
        try:
            if contents is None or not contents.has_pictures:
                raise RequestError(404, f"sample {index} has no image in the data")
            found = contents.picture(index, size, thumbnail)
        except (RequestError, ValueError) as error:
            if thumbnail is not None:
                return self.thumbnail_image(index)
            raise RequestError(404, str(error)) from error
        return found.content, found.content_type

    def thumbnail_image(self, index: int) -> tuple[bytes, str]:
        """Return the thumbnail of a sample of the gallery, or of the twin of one, and its type."""
        path = self.thumbnail(index)
        if path is None:
            self._sample(index)
            raise RequestError(404, f"sample {index} has no image")
        try:
            return verified(path).read_bytes(), IMAGE_TYPES[path.suffix]
        except (OSError, InputError):
            raise RequestError(404, "the image file is missing or damaged") from None

    def thumbnail(self, index: int) -> Path | None:
        """Return the path of a thumbnail that the audit made; None if it made none."""
        known = self.twins.get(index) or self.samples.get(index)
        return known.image if known else None

    def _changes(self, decisions: Sequence[Decision], since: int) -> dict[str, Any]:
        given = {index: sample.given for index, sample in self.samples.items()}
        return {
            **_changes_since(decisions, since),
            "split": sorted(disagreements(decisions, given)),
            "agreement": [each._asdict() for each in agreements(decisions, given)],
        }

    def _sample(self, index: object) -> Suspect:
        if type(index) is not int or index not in self.samples:
            raise RequestError(404, "no such sample in the gallery")
        return self.samples[index]

    def _decisions(self) -> dict[int, Decision]:
        """Return the decisions in effect about samples of the gallery."""
        decisions = effective_decisions(self.log.decisions())
        return {index: decision for index, decision in decisions.items() if index in self.samples}


def _new_label(request: Mapping[str, Any], sample: Suspect, classes: Sequence[str]) -> str | None:
    """Return the label that a decision assigns, or None if it assigns none."""
    if request.get("decision") not in DECISIONS:
        raise RequestError(400, f"decision must be one of {', '.join(DECISIONS)}")
    if request["decision"] == "accept":
        return sample.suggested
    if request["decision"] == "other":
        if request.get("label") not in classes:
            raise RequestError(400, "no such class")
        return str(request["label"])
    return None


def _changes_since(decisions: Sequence[Decision], since: int) -> dict[str, Any]:
    """Return the decision in effect, or None, for each sample that a line after the first `since` lines is about.

    `by` has the decisions of all reviewers of the sample.
    """
    changed: dict[int, dict[str, Any] | None] = {decision.index: None for decision in decisions[since:]}
    reviewers = decisions_by_reviewer(decisions)
    names = ("decision", "label", "tab", "reviewer", "action")
    for index, line in effective_lines(decisions).items():
        if index in changed:
            by = [[each.reviewer, each.decision, each.label] for each in reviewers[index].values()]
            changed[index] = {"line": line, **{name: getattr(decisions[line - 1], name) for name in names}, "by": by}
    return {"version": len(decisions), "changed": changed}


def _open_material(run: Path, data: str | None) -> _Material:
    """Open the data of a run; if it is gone, the audit's own files are left."""
    judged: Mapping[int, Judged] = {}
    examples: dict[str, list[int]] = {}
    try:
        judged = {each.index: each for each in read_judged(run)}
        if data is None and is_separate_audit(run) and not read_audit_origin(run).get("data"):
            return _Material(None, judged, {})  # the audit was made without data
        from labelsieve.review.contents import open_contents  # imports torch, which takes seconds
        from labelsieve.review.evidence import sure_examples

        contents = open_contents(run, list(judged.values()), data)
        present = [each for each in judged.values() if each.index in contents]
        examples = sure_examples(present, SHOWN_EXAMPLES + 1)  # one may be the sample itself
    except (LabelsieveError, OSError, ValueError, KeyError, TypeError) as error:
        reason = f"The data cannot be opened ({printable(str(error))})."
        return _Material(None, judged, {}, f"{reason} If it was moved, start labelsieve review with --data.")
    return _Material(contents, judged, examples)


def _is_row(columns: Sequence[Any] | None, row: Mapping[str, Any]) -> bool:
    """Return whether compared columns have the values of a row of the gallery."""
    if columns is None:
        return False
    values = {each.name: each.value for each in columns}
    return all(name in values and (values[name] == value or value != value) for name, value in row.items())
