"""Findings: reasons and verdicts in words, corrected labels, decided labels."""

from dataclasses import replace

import numpy as np
import pytest

from labelsieve import estimate_noise, find_label_issues
from labelsieve.audit.estimate import Interval, Noise
from labelsieve.audit.findings import (
    DECIDED,
    Findings,
    add_training_margin,
    doubt_about,
    findings_from_guesses,
    held_out_error,
    looks_like,
    reason,
    reasons,
    unreliable_remark,
)
from labelsieve.audit.guesses import guesses_from_probs, with_decided
from labelsieve.noise import pair, symmetry
from tests.audit.simulated import label_predictions, other_issues, true_class_predictions

NAMES = [f"c{k}" for k in range(10)]


def verdict(noise, issues, samples, classes):
    """Return the verdict on so many samples with so many issues."""
    zeros, marked = np.zeros(samples, int), np.arange(samples) < issues
    return Findings(classes, [], zeros, zeros, zeros, marked, [], noise).verdict


def test_training_margin_counts_only_for_seen_samples():
    quality = np.array([0.5, 0.5, 0.5, 0.9])
    found = add_training_margin(quality, np.array([0.8, -0.8, -0.8, 0.0]), np.array([3, 3, 0, 3]))
    assert found[0] > 0.5 > found[1] and found[2] == pytest.approx(0.5) and found[3] == pytest.approx(0.9)


def test_verdicts():
    def said(rate, **known):
        labels, probs, _ = true_class_predictions(lambda k: pair(k, rate), sure=4.0)
        return findings_from_guesses(guesses_from_probs(labels, probs), NAMES, **known).verdict

    assert "at most 0.2%. 1 label is more likely wrong than right; it may be a mistake of the model." in said(0.0)
    doubtful = said(0.0, given_rate=0.11)
    assert "the noise rate was given as 11%" in doubtful and "No correction" not in doubtful
    assert said(0.0, given_rate=0.001) == said(0.0) and said(0.3, given_rate=0.4) == said(0.3)
    memorized = said(0.0, trusts_labels=True)
    assert "may have memorized" in memorized and "No correction" not in memorized
    assert said(0.3).startswith("About") and said(0.3, trusts_labels=True).startswith("At least")
    assert "Most common confusion" in said(0.3) and "seem to be" in said(0.3)


def test_verdict_does_not_contradict_the_number_of_issues():
    noise = Noise(Interval(0.2, 0.1, 0.3), [], np.eye(3))
    assert "300 labels are marked as suspect, more than estimated, so some" in verdict(noise, 300, 1000, "abc")
    assert "200 labels are more likely wrong than right." in verdict(noise, 200, 1000, "abc")
    assert " 1 label is more likely wrong than right." in verdict(noise, 1, 1000, "abc")


def test_verdict_says_what_may_be_correct_labels_of_hard_samples():
    noise = Noise(Interval(0.12, 0.002, 0.2), [], np.eye(3), sample_dependent=0.66)
    said = verdict(noise, 105, 1100, "abc")
    assert (
        "About 66% of them may be correct labels of samples that are hard to tell apart. 105 labels are marked" in said
    )
    assert "look at them before you accept corrections." in said and "more likely wrong" not in said
    assert "may be correct" not in verdict(replace(noise, sample_dependent=0.1), 105, 1100, "abc")


@pytest.mark.parametrize(("rate", "few"), [((0.04, 0.01, 0.08), True), ((0.04, 0.03, 0.08), False)])
def test_few_wrong_labels(rate, few):
    noise = Noise(Interval(*rate), [], np.eye(4))
    said = verdict(noise, 3, 1200, list("abcd"))
    assert said.startswith("Few labels look wrong: 4.0%, at most 8.0%. 3 labels are more likely") is few
    assert "No correction" not in said  # suspects should be looked at
    clean = "The labels look clean: at most 8.0% are wrong. No correction is needed."
    assert (verdict(noise, 0, 1200, list("abcd")) == clean) is few


def test_wide_range_is_neither_called_clean_nor_few():
    noise = Noise(Interval(0.01, 0.0, 0.26), [], np.eye(4))
    none, some = (verdict(noise, issues, 80, list("abcd")) for issues in (0, 3))
    assert none.startswith("No single label looks wrong, but up to 26% of the labels may be")
    assert some.startswith("About 1.0% of the labels look wrong, but up to 26% may be. 3 labels are more likely wrong")


def test_tiny_shares_are_not_at_most_under_a_share():
    noise = Noise(Interval(0.0005, 0.0, 0.0008), [], np.eye(4))
    assert verdict(noise, 0, 9000, list("abcd")).startswith("The labels look clean: under 0.1% are wrong.")
    assert verdict(noise, 1, 9000, list("abcd")).startswith("Few labels look wrong: under 0.1%. 1 label is")


def test_most_common_confusion_is_that_of_most_samples():
    matrix = np.array([[0.9, 0.1, 0.0], [0.0, 1.0, 0.0], [0.0, 0.6, 0.4]])
    labels = np.repeat([0, 1, 2], [60, 39, 1])  # six samples of a, but not one of c
    noise = Noise(Interval(0.06, 0.04, 0.1), [], matrix)
    found = Findings(list("abc"), [], labels, labels, labels, np.arange(100) < 6, [], noise)
    assert found.verdict.endswith("confusion: about 10% of the samples labelled a seem to be b.")


def test_rare_confusion_of_a_large_class_does_not_hide_that_of_a_small_one():
    matrix = np.array([[0.96, 0.04, 0.0], [0.0, 1.0, 0.0], [0.9, 0.0, 0.1]])
    labels = np.repeat([0, 1, 2], [1000, 1000, 30])  # 40 samples of a seem to be b, 27 of c to be a
    noise = Noise(Interval(0.06, 0.04, 0.1), [], matrix)
    found = Findings(list("abc"), [], labels, labels, labels, np.arange(2030) < 60, [], noise)
    assert found.verdict.endswith("confusion: about 90% of the samples labelled c seem to be a.")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.9])
def test_decisions_do_not_hide_that_a_model_is_weak(share):
    """Decided labels agree with themselves; they say nothing about the model."""
    draw = np.random.default_rng(0)
    labels, probs = np.arange(600) % 4, draw.dirichlet(np.ones(4), 600)
    guesses = with_decided(guesses_from_probs(labels, probs), draw.random(600) < share)
    found = findings_from_guesses(guesses, list("abcd"), out_of_sample=True)
    assert held_out_error(guesses) == pytest.approx(0.75, abs=0.1)
    assert "too weak to judge" in found.doubt and (found.training_labels == labels).all()


def test_both_directions_of_a_confusion_are_given_unless_one_is_rare():
    matrix = np.array([[0.9, 0.1, 0.0], [0.02, 0.98, 0.0], [0.0, 0.0, 1.0]])
    rate = Interval(0.05, 0.04, 0.06)
    labels = np.arange(99) % 3
    found = Findings(list("abc"), [], labels, labels, labels, np.arange(99) < 3, [], Noise(rate, [], matrix))
    assert "about 10% of the samples labelled a seem to be b" in found.verdict
    matrix[1] = [0.05, 0.95, 0.0]
    found = replace(found, noise=Noise(rate, [], matrix))
    said = "confusion: a and b, in both directions (about 10% of the samples labelled a, 5.0% of those labelled b)."
    assert found.verdict.endswith(said)


def test_random_classifier_is_called_weak():
    random = np.random.default_rng(0)
    labels, guessed = random.integers(0, 10, 2000), random.dirichlet(np.ones(10), 2000)
    found = findings_from_guesses(guesses_from_probs(labels, guessed), list("abcdefghij"), out_of_sample=True)
    assert found.verdict.endswith("the model is too weak to judge them: check some samples first.")


def test_range_of_the_rate_includes_the_issues():
    labels, probs, _ = true_class_predictions(lambda k: pair(k, 0.3), sure=4.0)
    guesses = guesses_from_probs(labels, probs)
    found = findings_from_guesses(guesses, NAMES, rate=Interval(0.06, 0.04, 0.08), held_out=100)
    marked = found.issues.mean()
    assert marked > 0.2 and found.noise.rate == (0.06, 0.04, marked)
    wide = Interval(0.3, 0.2, 0.4)
    assert findings_from_guesses(guesses, NAMES, rate=wide, held_out=100).noise.rate == wide


@pytest.mark.parametrize(
    ("doubted", "unreliable"),
    [((40, 5, 5), [0]), ((25, 0, 0), []), ((30, 0, 0), [0]), ((30, 25, 25), []), ((0, 0, 0), []), ((44, 44, 5), [])],
)
def test_unreliable_class_is_not_corrected(doubted, unreliable):
    """Each class has 50 samples; it is unreliable if over half of them, and twice the overall share, are issues."""
    labels = np.repeat(np.arange(3), 50)
    issues = np.concatenate([np.arange(50) < count for count in doubted])
    findings = findings_from_guesses(guesses_from_probs(labels, np.full((150, 3), 1 / 3)), "abc")
    noise = replace(findings.noise, rate=Interval(issues.mean(), 0.0, 1.0))
    findings = replace(findings, suggested=(labels + 1) % 3, issues=issues, noise=noise)
    assert findings.unreliable_classes.tolist() == unreliable and not len(findings.lost_classes)
    changed = issues & ~np.isin(labels, unreliable)
    assert findings.training_labels.tolist() == np.where(changed, (labels + 1) % 3, labels).tolist()


@pytest.mark.parametrize(
    ("size", "doubted", "lost"),
    [(12, 12, True), (12, 7, True), (12, 6, False), (1, 1, True), (30, 20, False), (30, 21, True)],
)
def test_class_that_corrections_would_empty_is_not_corrected(size, doubted, lost):
    """It would keep less than half of its samples, and fewer than ten."""
    labels = np.repeat([0, 1, 2], [100, size, 100])
    found = findings_from_guesses(guesses_from_probs(labels, np.full((len(labels), 3), 1 / 3)), ["a", "b", "c"])
    issues = (labels == 1) & (np.cumsum(labels == 1) <= doubted)
    issues[:2] = True
    noise = replace(found.noise, rate=Interval(issues.mean(), 0.0, 1.0))
    found = replace(found, suggested=np.full(len(labels), 2), issues=issues, noise=noise)
    assert found.lost_classes.tolist() == ([1] if lost else [])
    assert found.corrected.tolist() == np.where(issues & ~(lost & (labels == 1)), 2, labels).tolist()
    said = "Most labels of b look wrong, and correcting them would leave almost no samples: the model has probably"
    assert (said in found.verdict) is lost


def test_warning_names_the_classes_whose_labels_are_not_changed():
    one, two = (unreliable_remark(["a", "b", "c"], np.array(places)) for places in ([1], [0, 2]))
    assert one.startswith("warning: most labels of b look wrong; the model may not have learned this class, so these")
    assert two.startswith("warning: most labels of a, c look wrong; the model may not have learned these classes, so")
    assert unreliable_remark(["a"], np.array([], int)) == ""


def test_findings_suggest_the_true_class_and_quote_the_model():
    labels, probs, clean = label_predictions(lambda k: pair(k, 0.4))
    found = findings_from_guesses(guesses_from_probs(labels, probs), NAMES, out_of_sample=True)
    np.testing.assert_array_equal(found.issues, find_label_issues(labels, probs))
    assert (found.suggested == clean)[found.issues].mean() > 0.85
    assert found.noise.rate == estimate_noise(labels, probs).rate


def test_reasons():
    """They quote no probabilities of the model: people see one probability, the label quality."""
    assert reason("cat", "dog", 0.02, 0.2, True) == "No class fits well, but dog fits better than cat."
    assert reason("cat", "dog", 0.1, 0.9, True) == "Looks more like dog than cat." == looks_like("cat", "dog")
    assert reason("cat", "dog", 0.6, 0.3, True) == "The model doubts that it is cat; it may be dog."
    assert reason("cat", "dog", 0.3, 0.6, False) == (
        "Looks more like dog than cat, but the label is still more likely right than wrong."
    )
    assert reason("cat", "dog", 0.97, 0.02, False) == "The model agrees that it is cat."
    guesses = guesses_from_probs(np.array([0]), np.array([[0.1, 0.8, 0.1]]))
    every = reasons(guesses, np.array([1]), np.array([0.8]), np.array([True]), ["cat", "dog", "cow"], ["Remark."])
    assert every == ["Looks more like dog than cat. Remark."]


def test_decided_labels_are_correct():
    labels = np.arange(400) % 4
    true = np.where(np.arange(400) < 80, (labels + 1) % 4, labels)  # the first 80 look wrong
    guesses = guesses_from_probs(labels, (0.9 * np.eye(4)[true] + 0.025).astype(np.float32))
    before = findings_from_guesses(guesses, "abcd")
    decided = np.arange(400) < 60
    after = findings_from_guesses(with_decided(guesses, decided), "abcd")
    assert before.issues[:80].all() and before.noise.rate.estimate > 0.17
    assert after.issues.tolist() == [60 <= index < 80 for index in range(400)]
    assert after.noise.rate.estimate < 0.07 and all(share.estimate < 0.09 for share in after.noise.per_class)
    assert (after.suggested[decided] == labels[decided]).all() and (after.quality[decided] == 1).all()
    assert [reason == DECIDED for reason in after.why] == decided.tolist()


def test_other_issues_are_reported_and_change_no_judgment():
    labels, probs, _ = true_class_predictions(lambda k: pair(k, 0.2), count=400)
    guesses, ids = guesses_from_probs(labels, probs), [f"{k}.png" for k in range(400)]
    twin = int(np.flatnonzero(labels != labels[0])[0])
    others = other_issues(400, groups=[(0, twin)], outliers=[7, 9])
    plain = findings_from_guesses(guesses, NAMES, ids, remarks=["Seen."] * 400)
    found = findings_from_guesses(guesses, NAMES, ids, remarks=["Seen."] * 400, others=others)
    assert np.array_equal(found.quality, plain.quality) and np.array_equal(found.suggested, plain.suggested)
    besides = "2 samples are near-duplicates of others with another label; 2 samples resemble none of the classes."
    assert found.verdict == f"{plain.verdict} {besides}"
    named = f"Near-duplicate of {twin}.png, which is labelled {NAMES[labels[twin]]}: at least"
    assert found.why[0].startswith(f"{plain.why[0]} {named}")
    assert found.why[7] == f"{plain.why[7]} It resembles none of the classes." and found.why[8] == plain.why[8]
    assert np.flatnonzero(found.conflicting).tolist() == [0, twin]
    assert found.twins[[0, twin, 7]].tolist() == [twin, 0, -1]
    assert not plain.conflicting.any() and (plain.twins == -1).all()


LABELS = np.repeat(np.arange(4), 250)


@pytest.mark.parametrize(
    ("rate", "suspects", "error", "said"),
    [
        (0.2, 0.2, 0.3, ""),
        (0.2, 0.11, None, ""),
        (0.04, 0.0, 0.1, ""),  # few labels: no contradiction
        (0.39, 0.12, None, "39% of the labels are estimated to be wrong, but 12% look wrong one by one"),
        (0.1, 0.25, None, "10% of the labels are estimated to be wrong, but 25% look wrong one by one"),
        (0.1, 0.1, 0.45, "predicts 45% of those it has not learned differently"),
        (0.7, 0.7, 0.74, "predicts 74% of those it has not learned differently"),  # no better than chance
    ],
)
def test_findings_that_must_not_be_applied_say_so(rate, suspects, error, said):
    issues = np.arange(1000) < 1000 * suspects
    doubt = doubt_about(rate, issues, LABELS, error)
    assert said in doubt and bool(doubt) == bool(said)


def test_doubt_comes_first_and_nothing_is_corrected():
    labels, probs, _ = label_predictions(lambda k: pair(k, 0.3))
    found = findings_from_guesses(guesses_from_probs(labels, probs), NAMES, out_of_sample=True)
    assert not found.doubt and (found.training_labels != labels).any()
    weak = replace(found, held_out_error=0.9)
    assert weak.verdict.startswith("The model is too weak") and (weak.training_labels == labels).all()


@pytest.mark.parametrize("undecided", [1, 3, 10])
def test_a_few_undecided_labels_do_not_make_the_model_look_weak(undecided):
    given, probs, true = label_predictions(lambda k: symmetry(k, 0.3), sure=5.0)
    for seed in range(20):
        decided = np.ones(len(given), bool)
        decided[np.random.default_rng(seed).permutation(len(given))[:undecided]] = False
        guesses = with_decided(guesses_from_probs(np.where(decided, true, given), probs), decided)
        assert not findings_from_guesses(guesses, NAMES, out_of_sample=True).doubt


@pytest.mark.parametrize("share", [0.8, 1.0])
def test_a_review_of_many_suspects_does_not_make_the_model_look_weak(share):
    given, probs, true = label_predictions(lambda k: symmetry(k, 0.45), sure=5.0)
    _, true_probs, same = true_class_predictions(lambda k: symmetry(k, 0.45), sure=5.0)
    assert (same == true).all()
    first, second = guesses_from_probs(given, probs), guesses_from_probs(given, true_probs)
    before = findings_from_guesses(first, NAMES, second=second)
    decided = np.zeros(len(given), bool)
    decided[before.order[: int(share * before.issues.sum())]] = True
    labels = np.where(decided, true, given)
    after = with_decided(guesses_from_probs(labels, true_probs), decided)
    found = findings_from_guesses(first, NAMES, second=after)
    left = (labels != true).mean()
    assert found.held_out_error - left > (1 - left) / 3  # as if it were a weak model of the reviewed labels
    assert found.noise.rate.estimate == pytest.approx(left, abs=0.03)
    assert not before.doubt and not found.doubt
    assert (found.training_labels == found.corrected).all() and (found.corrected[decided] == true[decided]).all()
