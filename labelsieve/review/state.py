"""State of a review: the suspects of a run and the decisions about them, as the page requests and changes them."""

import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from labelsieve.errors import InputError
from labelsieve.review.decisions import (
    DECISIONS,
    Decision,
    DecisionLog,
    changed_labels,
    decisions_path,
    effective_decisions,
    effective_lines,
)
from labelsieve.review.export import check_same_data, export_labels
from labelsieve.review.suspects import Suspect, read_class_names, read_gallery

MAX_TAB_LENGTH = 64  # characters


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


class ReviewState:
    """The samples of a run's gallery and the decisions about them."""

    def __init__(self, run: Path) -> None:
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

    @property
    def suspects(self) -> set[int]:
        """Return the indices of the samples whose label is probably wrong."""
        return {index for index, sample in self.samples.items() if sample.is_issue and "label" in sample.listed}

    def initial(self) -> dict[str, Any]:
        """Return everything that the page loads at the start."""
        return {
            "run": self.run.resolve().name,
            "classes": self.classes,
            "samples": [sample.for_page() for sample in self.samples.values()],
            **self.changes(0),
        }

    def changes(self, since: int) -> dict[str, Any]:
        """Return what changed after the first `since` lines of the log, from any tab or process."""
        return _changes_since(self.log.decisions(), since)

    def decide(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Save a decision, unless the sample changed: `over` is the line in effect that the page knows of."""
        sample = self._sample(request.get("index"))
        label = _new_label(request, sample, self.classes)
        tab, since = request.get("tab"), request.get("since")
        if not isinstance(tab, str) or len(tab) > MAX_TAB_LENGTH or type(since) is not int or since < 0:
            raise RequestError(400, "tab must be a short string, since a number of lines")

        def decision(so_far: Sequence[Decision]) -> Decision:
            line = effective_lines(so_far).get(sample.index)
            if line != request.get("over"):
                raise RequestError(409, "this sample was changed in another tab", **_changes_since(so_far, since))
            if request["decision"] == "undo" and line is None:
                raise RequestError(409, "there is no decision to undo", **_changes_since(so_far, since))
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            return Decision(sample.index, sample.id, request["decision"], label, now, tab)

        return _changes_since(self.log.append(decision), since)

    def export(self) -> dict[str, Any]:
        """Write reviewed.csv next to the decisions."""
        with self._exporting:
            if not effective_decisions(self.log.decisions()):
                raise RequestError(409, "nothing was exported: there are no decisions yet")
            return {"message": export_labels(self.run, self.log.path.with_name("reviewed.csv"))}

    def counts(self) -> _ReviewCounts:
        """Count the decisions so far and the suspects that are left."""
        decisions = effective_decisions(self.log.decisions())
        changed = changed_labels(self._decisions(), {i: sample.given for i, sample in self.samples.items()})
        unsure = sum(decision.decision == "unsure" for decision in decisions.values())
        return _ReviewCounts(len(decisions) - unsure, unsure, len(changed), len(self.suspects - decisions.keys()))

    def image_path(self, index: int) -> Path:
        """Return the path of the image of a sample, or of the twin of one."""
        path = self.twins[index].image if index in self.twins else self._sample(index).image
        if path is None:
            raise RequestError(404, f"sample {index} has no image")
        return path

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
    """Return the decision in effect, or None, for each sample that a line after the first `since` lines is about."""
    changed: dict[int, dict[str, Any] | None] = {decision.index: None for decision in decisions[since:]}
    for index, line in effective_lines(decisions).items():
        if index in changed:
            decision = decisions[line - 1]
            changed[index] = {"line": line, "decision": decision.decision, "label": decision.label, "tab": decision.tab}
    return {"version": len(decisions), "changed": changed}
