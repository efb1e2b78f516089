"""Decisions of a review: which are in effect, and the file that stores them."""

import errno
import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelsieve.errors import InputError, ResourceError
from labelsieve.review import decisions
from labelsieve.review.decisions import (
    DecisionLog,
    agreements,
    cohens_kappa,
    decisions_by_reviewer,
    decisions_path,
    disagreements,
    effective_decisions,
    read_decisions,
    review_progress,
)
from tests.review.conftest import CLASSES, TIMEOUT, make_audited_run, make_decision


def test_last_decision_is_in_effect_and_undo_restores_the_previous_one():
    first, second = make_decision(1, "keep"), make_decision(1, "other", "eel")
    undo = make_decision(1, "undo")
    assert effective_decisions([first, second]) == {1: second}
    assert effective_decisions([first, second, undo]) == {1: first}
    assert effective_decisions([first, second, undo, undo]) == {}
    assert effective_decisions([first, undo, undo, second]) == {1: second}
    assert effective_decisions([first, make_decision(2, "undo")]) == {1: first}


def test_undo_takes_back_the_decision_of_the_same_reviewer():
    ann, bob = make_decision(1, "keep", reviewer="Ann"), make_decision(1, "accept", "dog", reviewer="Bob")
    assert effective_decisions([ann, bob, make_decision(1, "undo", reviewer="Ann")]) == {1: bob}
    assert effective_decisions([ann, bob, make_decision(1, "undo", reviewer="Bob")]) == {1: ann}
    assert effective_decisions([ann, bob, make_decision(1, "undo", reviewer="Cat")]) == {1: ann}  # has made none
    assert decisions_by_reviewer([ann, bob]) == {1: {"Ann": ann, "Bob": bob}}


def test_disagreement_and_agreement_by_hand():
    labels = {index: CLASSES[index % 3] for index in range(6)}  # cat dog eel cat dog eel
    ann = [make_decision(index, "keep", reviewer="Ann") for index in range(4)]
    bob = [
        make_decision(0, "other", "cat", reviewer="Bob"),  # equals keep
        make_decision(1, "keep", reviewer="Bob"),
        make_decision(2, "accept", "cat", reviewer="Bob"),
        make_decision(3, "unsure", reviewer="Bob"),  # no opinion
        make_decision(5, "keep", reviewer="Bob"),  # only Bob
    ]
    assert disagreements([*ann, *bob], labels) == {2: {"Ann": ann[2], "Bob": bob[2]}}
    (found,) = agreements([*ann, *bob], labels)
    # Ann: cat dog eel, Bob: cat dog cat; equal 2 of 3, by chance (1 * 2 + 1 * 1 + 1 * 0) / 9
    assert found == ("Ann", "Bob", 3, 2, pytest.approx((2 / 3 - 1 / 3) / (1 - 1 / 3)))
    resolved = [*ann, *bob, make_decision(2, "keep", reviewer="Bob")]
    assert disagreements(resolved, labels) == {} and agreements(resolved, labels)[0].kappa == 1
    assert agreements(ann, labels) == [] == agreements([], labels)


def test_cohens_kappa_of_a_published_example():
    pairs = [("yes", "yes")] * 20 + [("yes", "no")] * 5 + [("no", "yes")] * 10 + [("no", "no")] * 15
    assert cohens_kappa(pairs) == pytest.approx(0.4)
    assert cohens_kappa([("yes", "yes")] * 3) == 1 and cohens_kappa([("a", "b"), ("b", "a")]) == -1


def test_lines_of_older_versions_are_read(tmp_path):
    path = tmp_path / "d.jsonl"
    old = {"index": 1, "id": "a", "decision": "accept", "label": "dog", "time": "now", "tab": "t"}
    path.write_text(json.dumps(old) + "\n" + json.dumps({**old, "index": 2, "later": "key"}) + "\n")
    log = DecisionLog(path)
    log.append(lambda past: [make_decision(3, reviewer="Ann")])
    assert [(each.index, each.reviewer) for each in log.decisions()] == [(1, ""), (2, ""), (3, "Ann")]
    path.write_text(json.dumps({**old, "reviewer": 5}) + "\n")
    with pytest.raises(InputError, match="must be strings"):
        DecisionLog(path).decisions()


def test_several_decisions_are_flushed_once(tmp_path, monkeypatch):
    log, flushed = DecisionLog(tmp_path / "d.jsonl"), []
    real = os.fsync
    log.append(lambda past: [make_decision(0)])
    monkeypatch.setattr(decisions.os, "fsync", lambda handle: (real(handle), flushed.append(log.path.read_bytes())))
    log.append(lambda past: [make_decision(index) for index in range(1, 501)])
    assert len(flushed) == 1 and flushed[0].count(b"\n") == 501
    assert [decision.index for decision in log.decisions()] == list(range(501))
    assert len(log.append(lambda past: [])) == 501 and len(flushed) == 1


kinds = st.sampled_from(["keep", "accept", "unsure", "undo"])
decision_lists = st.lists(
    st.builds(lambda i, k: make_decision(i, k, "dog" if k == "accept" else None), st.integers(0, 3), kinds), max_size=30
)


@given(decision_lists, st.integers(0, 3))
def test_undo_reverts_a_decision(past, index):
    decisions_and_undo = [make_decision(index, "unsure"), make_decision(index, "undo")]
    assert effective_decisions([*past, *decisions_and_undo]) == effective_decisions(past)


@given(decision_lists)
def test_read_decisions_ignores_an_incomplete_last_line(tmp_path_factory, past):
    run = tmp_path_factory.mktemp("run")
    assert read_decisions(run) == {}
    (run / "review").mkdir()
    lines = b"".join(decision.line() for decision in past)
    (run / "review" / "decisions.jsonl").write_bytes(lines + b'{"index": 0, "deci')
    assert read_decisions(run) == effective_decisions(past)


def test_review_progress_counts_suspects_and_changed_labels(tmp_path):
    run = make_audited_run(tmp_path / "run", suspects=4)  # 39 to 36
    assert review_progress(run) == (0, 0)
    log = DecisionLog(decisions_path(run))
    log.append(lambda past: [make_decision(39, "accept", "dog")])
    log.append(lambda past: [make_decision(38, "other", "eel")])  # its given label
    log.append(lambda past: [make_decision(37, "unsure")])
    log.append(lambda past: [make_decision(35, "keep")])  # not a suspect
    assert review_progress(run) == (3, 1)
    log.path.write_text("{}\n")
    with pytest.raises(InputError, match=r"decisions\.jsonl:1 is not a decision \(fields are missing\)"):
        review_progress(run)


@given(decision_lists)
def test_decisions_about_samples_are_independent(past):
    alone = {i: effective_decisions([d for d in past if d.index == i]).get(i) for i in range(4)}
    assert effective_decisions(past) == {i: effective for i, effective in alone.items() if effective}
    undone = [make_decision(d.index, "undo") for d in past]
    assert effective_decisions([*past, *undone]) == {}


def test_decision_is_one_line_that_other_readers_see(tmp_path):
    one, other = DecisionLog(tmp_path / "review" / "d.jsonl"), DecisionLog(tmp_path / "review" / "d.jsonl")
    assert one.decisions() == ()
    one.append(lambda past: [make_decision(1)])
    assert list(other.decisions()) == [make_decision(1)]
    other.append(lambda past: [make_decision(len(past) + 1, "unsure")])
    assert list(one.decisions()) == [make_decision(1), make_decision(2, "unsure")]
    assert one.path.read_bytes() == make_decision(1).line() + make_decision(2, "unsure").line()


@pytest.mark.parametrize("cut", range(len(make_decision(2).line())))
def test_incomplete_last_line_is_repaired(tmp_path, cut):
    path = tmp_path / "d.jsonl"
    path.write_bytes(make_decision(1).line() + make_decision(2).line()[:cut])
    log = DecisionLog(path)
    log.repair()
    whole = [make_decision(1), make_decision(2)] if cut == len(make_decision(2).line()) - 1 else [make_decision(1)]
    assert list(log.decisions()) == whole
    log.append(lambda past: [make_decision(3)])
    assert path.read_bytes() == b"".join(d.line() for d in [*whole, make_decision(3)])


def test_zeros_after_a_power_failure_are_removed(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_bytes(make_decision(1).line() + bytes(100))
    DecisionLog(path).append(lambda past: [make_decision(2)])
    assert path.read_bytes() == make_decision(1).line() + make_decision(2).line()


def test_error_names_the_line_that_is_not_a_decision(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_bytes(make_decision(1).line() + b'{"index": 3}\n' + make_decision(2).line())
    with pytest.raises(InputError, match=r"d\.jsonl:2 is not a decision"):
        DecisionLog(path).decisions()


WRITER = """
import sys
from pathlib import Path
from labelsieve.review.decisions import Decision
from labelsieve.review.decisions import DecisionLog
log = DecisionLog(Path(sys.argv[1]))
for index in range(150):
    log.append(lambda past: [Decision(index, str(len(past)), "keep", None, "now", sys.argv[2])])
assert "torch" not in sys.modules
"""


def test_two_processes_write_without_loss(tmp_path):
    path = tmp_path / "d.jsonl"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), tab]) for tab in "ab"]
    assert [writer.wait(TIMEOUT) for writer in writers] == [0, 0]
    found = DecisionLog(path).decisions()
    assert [d.index for d in found if d.tab == "a"] == [d.index for d in found if d.tab == "b"] == list(range(150))
    assert [d.id for d in found] == [str(line) for line in range(300)]  # each saw all that was written before it


@pytest.mark.parametrize("fails", ["write", "fsync"])
def test_full_disk_leaves_no_partial_line(tmp_path, monkeypatch, fails):
    log = DecisionLog(tmp_path / "d.jsonl")
    log.append(lambda past: [make_decision(1)])
    real = getattr(os, fails)

    def full(handle, *content):
        if fails == "write":
            real(handle, content[0][:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(decisions.os, fails, full)
        with pytest.raises(ResourceError, match="the disk is full"):
            log.append(lambda past: [make_decision(2)])
    assert log.path.read_bytes() == make_decision(1).line()
    log.append(lambda past: [make_decision(3)])
    assert [d.index for d in log.decisions()] == [1, 3]


def test_line_is_flushed_before_append_returns(tmp_path, monkeypatch):
    path, seen = tmp_path / "review" / "d.jsonl", []
    real = os.fsync
    monkeypatch.setattr(decisions.os, "fsync", lambda handle: (real(handle), seen.append(path.read_bytes())))
    DecisionLog(path).append(lambda past: [make_decision(1)])
    assert seen[0] == make_decision(1).line()
    assert len(seen) == 3  # the file, its folder, and the run's
