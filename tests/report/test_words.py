"""Sentences and number formats of the report."""

import re
from dataclasses import replace

import numpy as np
import pytest

from labelsieve.audit.estimate import Interval
from labelsieve.report import words
from labelsieve.report.audit import read_audit
from labelsieve.runs.read import read_progress
from labelsieve.text import format_quality, percent
from tests.made_runs import make_run


@pytest.mark.parametrize(("back", "mutual"), [(0.1, False), (0.125, True), (0.3, True)])
def test_mutual_confusions_are_one_sentence(photos, back, mutual):
    matrix = np.eye(10)
    matrix[8, 7:9], matrix[7, 7:9] = 0.5, (1 - back, back)
    (line,) = words.confusions(replace(read_audit(photos, 200), noise_matrix=matrix), 2)
    one_way = "About 300 of the 600 samples labelled “Bag” seem to be “Sneaker”."
    counts = f"about 300 of the 600 samples labelled “Bag” and {round(600 * back)} of the 600 labelled “Sneaker”"
    both = f"The labels “Bag” and “Sneaker” are confused with each other: {counts}."
    assert re.sub("<.*?>", "", line) == (both if mutual else one_way)


def test_number_formats():
    assert [percent(x) for x in (0, 0.0004, 0.042, 0.0996, 0.384)] == ["0%", "under 0.1%", "4.2%", "10%", "38%"]
    assert words.with_interval(Interval(0.38, 0.05, 0.4)) == "38% (5.0 to 40%)"
    assert [format_quality(x) for x in (0, 0.0099, 0.02, 0.5, 1)] == ["under 1%", "under 1%", "2%", "50%", "over 99%"]


def test_run_labels_are_unique(tmp_path):
    runs = [("runs/a", read_progress(make_run(tmp_path / "a"))), ("runs/b", read_progress(make_run(tmp_path / "b")))]
    assert words.run_labels(runs[:1]) == ["mentornet-prop"]
    assert words.run_labels(runs) == ["mentornet-prop, a", "mentornet-prop, b"]


def test_estimate_is_told_in_three_sentences(photos):
    audit = read_audit(photos, 1)
    learned = words.estimate_story(audit)
    unseen = words.estimate_story(replace(audit, held_out_error=0.4))
    compared = words.estimate_story(replace(audit, held_out_error=0.4, made={"pred_probs": "p.csv"}))
    assert learned.startswith("The trained model judged every label, including those that it learned from. Where it is")
    assert "models that had not learned it: the images were divided into parts" in unseen
    assert compared.startswith("Every label was compared with the probabilities that a classifier predicted")
    assert "the classifier prefers another class, either the label or the classifier is wrong" in compared
    for story in (learned, unseen, compared):
        assert len(re.findall(r"\.(?: |$)", story)) == 3
        assert "38% of the 6,000 labels, and the true share is meant to lie between 35% and 40%" in story


def test_notes_leave_out_what_the_labels_say(photos):
    sample = replace(read_audit(photos, 1).gallery[0].sample, given="cat", suggested="dog")
    assert words.note_on(replace(sample, why="Looks more like dog than cat.")) == ""
    assert (
        words.note_on(replace(sample, why="Looks more like dog than cat. Near-duplicate of x."))
        == "Near-duplicate of x."
    )
    assert words.note_on(replace(sample, why="The model doubts that it is cat.")) == "The model doubts that it is cat."


def test_equal_qualities_are_explained(photos):
    cards = read_audit(photos, 4).gallery

    def told(*qualities):
        suspects = [replace(card.sample, quality=one) for card, one in zip(cards, qualities, strict=False)]
        return words.shared_quality([replace(cards[0], sample=sample) for sample in suspects])

    assert told(0.05, 0.051, 0.054, 0.06) == "The first 3 have the lowest quality, 5%; their order still counts."
    assert told(0.05, 0.06, 0.06) == told(0.05) == told() == ""


@pytest.mark.parametrize("name", ["", "a", "a.png", "shirt/e77efa63-0477-4af2-b56d-c15da31bdad6.jpg"])
def test_names_are_cut_into_two_parts(name):
    start, end = words.name_parts(name)
    assert start + end == name and len(end) <= 10 and len(end) <= len(start)
