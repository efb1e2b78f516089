"""Who may talk to the page: the browser of the person who started it, and nothing else."""

import hmac
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.message import Message
from pathlib import Path
from typing import Any, NamedTuple

from labelsieve.review.decisions import KINDS, Decision, DecisionLog, changed_labels, standing, state, unsure_of
from labelsieve.review.export import decisions_path, export, refuse_other_data
from labelsieve.review.suspects import Suspect, read_classes, read_gallery


class Refused(Exception):
    """A request that is not answered as asked: an HTTP status, a sentence, and what else the page should know."""

    def __init__(self, status: int, message: str, **facts: object) -> None:
        super().__init__(message)
        self.status, self.facts = status, facts


def refuse_strangers(headers: Message, query: Mapping[str, Sequence[str]], port: int, token: str) -> None:
    """A foreign name for this machine (DNS rebinding), or a token that is not the printed one."""
    if headers.get_all("Host") not in ([f"127.0.0.1:{port}"], [f"localhost:{port}"]):
        raise Refused(403, "open the address that labelsieve review has printed: this is another host name")
    told = query.get("token", [])
    if len(told) != 1 or not hmac.compare_digest(told[0].encode(errors="replace"), token.encode()):
        raise Refused(403, "open the address that labelsieve review has printed: its token is missing or another")


def refuse_foreign_writes(headers: Message) -> None:
    """Only the page itself may write, and only JSON."""
    if headers.get_all("Origin") != [f"http://{headers['Host']}"]:
        raise Refused(403, "only the page itself may write")
    if headers.get_content_type() != "application/json":
        raise Refused(415, "a decision is sent as application/json")


LONGEST_TAB = 64  # characters


class Tally(NamedTuple):
    """How many samples there are of each kind."""

    decided: int
    unsure: int
    changed: int  # of the shown ones, those that get another label
    left: int  # suspects about which nothing was said


class Desk:
    """The suspects of a run, what comes after them, and the decisions about them."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.suspects = {suspect.index: suspect for suspect in read_gallery(run)}
        self.classes = read_classes(run)
        self.log = DecisionLog(decisions_path(run))
        self.log.mend()
        shown = {i: decision for i, decision in state(self.log.decisions()).items() if i in self.suspects}
        refuse_other_data(shown, {i: suspect.id for i, suspect in self.suspects.items()}, self.log.path)
        self._exporting = threading.Lock()

    def opening(self) -> dict[str, Any]:
        """All that the page needs at first."""
        return {
            "run": self.run.resolve().name,
            "classes": self.classes,
            "suspects": [suspect.shown() for suspect in self.suspects.values()],
            **self.changes(0),
        }

    def changes(self, since: int) -> dict[str, Any]:
        """What was decided after that many lines, by whomever."""
        return changes(self.log.decisions(), since)

    def decide(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Save a decision, unless the sample was decided meanwhile: `over` is the line that the page knew of."""
        suspect = self._suspect(asked.get("index"))
        label = new_label(asked, suspect, self.classes)
        tab, since = asked.get("tab"), asked.get("since")
        if not isinstance(tab, str) or len(tab) > LONGEST_TAB or type(since) is not int or since < 0:
            raise Refused(400, "a decision names its tab, and how many lines it knows of")

        def decision(so_far: Sequence[Decision]) -> Decision:
            line = standing(so_far).get(suspect.index)
            if line != asked.get("over"):
                raise Refused(409, "this sample was decided meanwhile in another tab", **changes(so_far, since))
            if asked["decision"] == "undo" and line is None:
                raise Refused(409, "there is nothing to take back", **changes(so_far, since))
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            return Decision(suspect.index, suspect.id, asked["decision"], label, now, tab)

        return changes(self.log.append(decision), since)

    def export(self) -> dict[str, Any]:
        """Write reviewed.csv beside the decisions."""
        with self._exporting:
            if not state(self.log.decisions()):
                raise Refused(409, "there are no decisions yet, so nothing was written")
            return {"message": export(self.run, self.log.path.with_name("reviewed.csv"))}

    def tally(self) -> "Tally":
        """How far the review is."""
        decided = state(self.log.decisions())
        shown = {index: decision for index, decision in decided.items() if index in self.suspects}
        changed = changed_labels(shown, {i: s.given for i, s in self.suspects.items()})
        unsure = len(unsure_of(decided))
        return Tally(len(decided) - unsure, unsure, len(changed), len(self.marked - decided.keys()))

    @property
    def marked(self) -> set[int]:
        """The samples whose label is probably wrong; the others on the page only come after them."""
        return {index for index, suspect in self.suspects.items() if suspect.is_issue}

    def picture(self, index: int) -> Path:
        """The image of a suspect."""
        image = self._suspect(index).image
        if image is None:
            raise Refused(404, f"sample {index} has no image")
        return image

    def _suspect(self, index: object) -> Suspect:
        if type(index) is not int or index not in self.suspects:
            raise Refused(404, "there is no such sample on this page")
        return self.suspects[index]


def new_label(asked: Mapping[str, Any], suspect: Suspect, classes: Sequence[str]) -> str | None:
    """The label that a decision gives, if it gives one."""
    if asked.get("decision") not in KINDS:
        raise Refused(400, f"a decision is one of {', '.join(KINDS)}")
    if asked["decision"] == "accept":
        return suspect.suggested
    if asked["decision"] == "other":
        if asked.get("label") not in classes:
            raise Refused(400, "there is no such class")
        return str(asked["label"])
    return None


def changes(decisions: Sequence[Decision], since: int) -> dict[str, Any]:
    """The samples that later lines are about, each with what stands now."""
    lines = standing(decisions)
    touched = {decision.index for decision in decisions[since:]}
    return {
        "version": len(decisions),
        "changed": {index: described(decisions, lines.get(index)) for index in touched},
    }


def described(decisions: Sequence[Decision], line: int | None) -> dict[str, Any] | None:
    if line is None:
        return None
    decision = decisions[line - 1]
    return {"line": line, "decision": decision.decision, "label": decision.label, "tab": decision.tab}
