"""Judges: which trainings judge the labels of a run, out of fold, and the noise rate that they report."""

import json
import shutil
from functools import cached_property

import numpy as np
import pytest

from labelsieve.audit.estimate import Interval
from labelsieve.audit.findings import findings_from_guesses
from labelsieve.audit.guesses import guesses_from_probs, guesses_from_run, with_decided
from labelsieve.audit.quality import LOWEST
from labelsieve.auto.audit import findings_of_run, samples_as_given
from labelsieve.auto.judge import (
    Judges,
    best_judges,
    is_clearly_better,
    judges_of,
    opinion_on,
    rate_of_selecting,
    reported_rate,
)
from labelsieve.cli import execute
from labelsieve.runs.read import HELD_OUT, PLAIN, SECOND, SELECTING, TESTED, TRAINED, finished_runs, read_samples
from tests.auto.conftest import QUICK, SAMPLES
from tests.conftest import save_blobs

CLASSES = list("0123")


def prefer(monkeypatch, kind):
    """Let one kind of judges predict held-out labels best."""
    likelihood = property(lambda judges: -0.5 if judges.kind == kind else -0.7)
    monkeypatch.setattr(Judges, "log_likelihood", likelihood)


def assert_judged_out_of_fold(run, count):
    """Check that every prediction that can judge comes from a training that did not learn the sample."""
    for kind in (PLAIN, SELECTING, SECOND):
        judges = best_judges(run, kind)
        assert (judges.guesses.labels == samples_as_given(run)["label"]).all()
        every = [read_samples(run / kind / str(number)) for number in range(1, 6)]
        every = [samples for samples in every if samples is not None]
        split = np.array([samples["split"] for samples in every])
        assert len(every) == 5 and split.shape == (5, count)
        tested = (split == TESTED).all(0)
        assert ((split == HELD_OUT).sum(0) == ~tested).all() and (judges.held_out == ~tested).all()
        unlearned = split != TRAINED
        by = np.where(tested, 0, unlearned.argmax(0))
        for name in ("confidence", "likelihood", "likeliest"):
            expected = np.array([every[judge][name][place] for place, judge in enumerate(by)])
            assert (getattr(judges.guesses, name) == expected).all()


def test_every_label_is_judged_by_networks_that_did_not_learn_it(auto_run, noisy_file):
    assert_judged_out_of_fold(auto_run, SAMPLES)
    with np.load(noisy_file) as data:
        assert (judges_of(auto_run).guesses.labels == data["labels"]).all()
    opinion = opinion_on(auto_run, samples_as_given(auto_run), 4)
    assert opinion.out_of_sample and opinion.training is None
    assert (opinion.guesses.confidence == judges_of(auto_run).guesses.confidence).all()
    assert (opinion.second.confidence == best_judges(auto_run, SECOND).guesses.confidence).all()
    assert finished_runs(auto_run) == [auto_run]


@pytest.mark.parametrize("options", [[], ["--test", "0.1", "--valid", "0.3", "--no-final"]])
def test_larger_data_is_judged_in_the_same_way(tmp_path, options):
    """Before decision 37, samples were judged by trainings that had learned them from 3,000 samples on."""
    data = save_blobs(tmp_path / "blobs.npz", 3003, wrong=0.3)
    out = tmp_path / "run"
    brief = ["--model", "small", "--epochs", "2", "--warmup", "1", "--lr", "0.05", "--batch", "256", "--threads", "1"]
    assert execute(["train", str(data), *brief, *options, "--out", str(out)]) == 0
    assert_judged_out_of_fold(out, 3003)
    shares = [(read_samples(out / PLAIN / str(fold))["split"] == HELD_OUT).sum() for fold in range(1, 6)]
    assert sum(shares) == (2703 if options else 3003)
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == ["audit", PLAIN, SECOND, SELECTING]


@pytest.mark.parametrize(
    ("log_likelihood", "other", "better"),
    [
        (-0.70, -0.74, True),  # by 0.04, 5%
        (-0.70, -0.73, False),  # by 0.03, less than the absolute bound
        (-1.60, -1.64, False),  # by 0.04, but 2.4%
        (-1.60, -1.66, True),  # by 3.6%
        (-1.60, -np.inf, True),
        (-0.05, 0.0, False),
    ],
)
def test_advantage_is_clear_in_absolute_and_relative_terms(log_likelihood, other, better):
    assert is_clearly_better(log_likelihood, other) is better


@pytest.mark.parametrize("kind", [PLAIN, SELECTING])
def test_findings_follow_the_better_judges(auto_run, monkeypatch, kind):
    prefer(monkeypatch, kind)
    judges = judges_of(auto_run)
    assert judges.kind == kind
    found = findings_of_run(auto_run, samples_as_given(auto_run), CLASSES)
    first, second = (best_judges(auto_run, each).guesses for each in (kind, SECOND))
    rate = reported_rate(best_judges(auto_run, SELECTING).noise.rate)
    expected = findings_from_guesses(first, tuple(CLASSES), out_of_sample=True, second=second, rate=rate)
    assert (found.quality == expected.quality).all() and found.noise.rate == expected.noise.rate
    raised = LOWEST * found.issues.mean()  # the quality of suspects is at least LOWEST
    assert found.noise.rate.estimate == rate.estimate
    assert rate.estimate - raised - 1e-6 <= 1 - found.quality.mean() <= rate.estimate + 1e-6
    alone = findings_from_guesses(first, tuple(CLASSES), out_of_sample=True).noise.rate
    assert found.noise.rate.low <= alone.low and found.noise.rate.high >= alone.high  # the range includes theirs
    assert found.held_out_error is not None  # a weak model is noticed, whoever judges


def test_plain_judges_are_used_unless_the_others_are_clearly_better(auto_run, monkeypatch):
    monkeypatch.setattr(Judges, "log_likelihood", property(lambda judges: -0.7 + 0.03 * (judges.kind == SELECTING)))
    assert judges_of(auto_run).kind == PLAIN


def test_likelihood_is_that_of_the_labels(auto_run):
    """Selecting trainings predict true classes: a noise model leads from these to the labels."""
    assert isinstance(Judges.__dict__["log_likelihood"], cached_property)
    for kind in (PLAIN, SELECTING):
        judges = best_judges(auto_run, kind)
        assert -1.5 < judges.log_likelihood < -0.3
    assert judges.log_likelihood == judges.noise.log_likelihood and abs(judges.noise.rate.estimate - 0.3) < 0.1


def test_second_round_learns_the_labels_that_the_first_corrected(auto_run, tmp_path):
    first = tmp_path / "first"
    shutil.copytree(auto_run, first, ignore=shutil.ignore_patterns(SECOND))
    findings = findings_of_run(first, samples_as_given(first), CLASSES)
    corrected = np.load(auto_run / SECOND / "corrected.npy")
    assert (corrected == findings.training_labels).all() and findings.issues.any()
    for number in range(1, 6):
        samples = read_samples(auto_run / SECOND / str(number))
        learned = samples["split"] == TRAINED
        assert (samples["label"][learned] == corrected[learned]).all()


def test_incomplete_judges_do_not_judge(auto_run, tmp_path, monkeypatch):
    prefer(monkeypatch, SELECTING)
    shutil.copytree(auto_run, tmp_path / "cut")
    (tmp_path / "cut" / SECOND / "3" / "done").unlink()
    assert opinion_on(tmp_path / "cut", samples_as_given(auto_run), 4).second is None
    (tmp_path / "cut" / SELECTING / "3" / "done").unlink()
    assert judges_of(tmp_path / "cut").kind == PLAIN
    (tmp_path / "cut" / PLAIN / "3" / "done").unlink()
    assert judges_of(tmp_path / "cut") is None


def test_samples_are_those_with_the_given_labels(auto_run, noisy_file):
    with np.load(noisy_file) as data:
        assert (samples_as_given(auto_run)["label"] == data["labels"]).all()
        assert (read_samples(auto_run)["label"] != data["labels"]).any()  # the delivered model learned corrected ones


@pytest.mark.parametrize(
    ("estimate", "reported"),
    [(0.0, 0.0), (0.004, 0.0), (0.02, 0.0105), (0.1, 0.0925), (0.3, 0.2975), (0.4, 0.4), (0.6, 0.6)],
)
def test_reported_rate_is_lower_where_few_labels_are_wrong(estimate, reported):
    assert reported_rate(Interval(estimate, 0.0, 0.7)) == pytest.approx((reported, 0.0, 0.7))
    assert reported_rate(Interval(estimate, estimate, 0.7)).low == pytest.approx(reported)  # in the range


@pytest.mark.parametrize("kind", [PLAIN, SELECTING])
@pytest.mark.parametrize("share", [0.5, 0.93, 1.0])  # 0.93 leaves fewer samples undecided than an estimate needs
def test_decided_labels_count_as_correct_for_all_judges(monkeypatch, tmp_path, kind, share):
    draw = np.random.default_rng(0)
    true = draw.integers(4, size=600)
    decided = draw.random(600) < share
    labels = np.where(decided | (draw.random(600) > (0.3 if share < 0.9 else 0.6)), true, (true + 1) % 4)
    guesses = with_decided(guesses_from_probs(labels, 0.94 * np.eye(4)[true] + 0.015), decided)
    judges = Judges(kind, 0.1, guesses, np.ones(600, bool))
    wrong = (labels != true).mean()
    assert judges.noise.rate.estimate == pytest.approx(wrong, abs=0.02 if share < 0.9 else 0.1 * wrong)
    left = judges if decided.all() else Judges(kind, 0.1, guesses.undecided, np.ones((~decided).sum(), bool))
    assert judges.log_likelihood == pytest.approx(left.log_likelihood)  # both kinds are compared on the same labels
    np.testing.assert_allclose(judges.noise.matrix.sum(1), 1)
    monkeypatch.setattr("labelsieve.auto.judge.best_judges", lambda run, kind: judges)
    assert rate_of_selecting(tmp_path) == reported_rate(judges.noise.rate)


def test_single_run_reports_the_rate_of_the_samples_that_it_held_out(noisy_file, tmp_path, capsys):
    run = tmp_path / "run"
    assert execute(["train", str(noisy_file), *QUICK, "--noise-rate", "0.3", "--valid", "0.2", "--out", str(run)]) == 0
    assert execute(["audit", str(run)]) == 0
    summary = json.loads((run / "audit" / "summary.json").read_text())
    rate = summary["noise_rate"]
    assert abs(rate["estimate"] - 0.3) < 0.1 and "from the 120 samples that the model was not" in summary["basis"]
    expected = sum(row["estimate"] * row["samples"] for row in summary["per_class"]) / SAMPLES
    assert expected == pytest.approx(rate["estimate"], abs=1e-5)  # the classes add up to it
    assert "unlearned" not in capsys.readouterr().err
    samples = read_samples(run)
    opinion = opinion_on(run, samples, 4)
    assert not opinion.out_of_sample and (opinion.guesses.confidence == guesses_from_run(samples, 4).confidence).all()
