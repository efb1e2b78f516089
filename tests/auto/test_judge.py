"""Judges: which trainings judge the labels of a run, and the noise rate that they report."""

import json
import shutil

import numpy as np
import pytest

from labelsieve.audit.estimate import Interval
from labelsieve.audit.findings import findings_from_guesses
from labelsieve.audit.guesses import guesses_from_run
from labelsieve.audit.held_out import dense_probs
from labelsieve.auto import judge as judging
from labelsieve.auto.audit import findings_of_run
from labelsieve.auto.judge import (
    combine_with_probes,
    held_out_guesses,
    is_clearly_better,
    noise_of_guesses,
    noise_of_run,
    plain_guesses,
    reported_rate,
    selecting_judges,
)
from labelsieve.cli import execute
from labelsieve.runs.read import HELD_OUT, finished_runs, read_run, read_samples
from tests.auto.conftest import QUICK, SAMPLES

CLASSES = list("0123")


def test_every_label_is_judged_by_a_probe_that_was_not_trained_on_it(auto_run, noisy_file):
    held = held_out_guesses(selecting_judges(auto_run))
    with np.load(noisy_file) as data:
        labels = data["labels"]
    parts = [read_samples(auto_run / "probe" / str(number))["split"] == HELD_OUT for number in range(1, 6)]
    assert (np.sum(parts, axis=0) == 1).all() and len(held) == SAMPLES
    assert (held.labels == np.concatenate([labels[part] for part in parts])).all()
    assert finished_runs(auto_run) == [auto_run]


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


@pytest.mark.parametrize(("worse", "plain_judge"), [(0.03, True), (0.05, False)])
def test_selecting_probes_judge_only_if_they_are_clearly_better(auto_run, monkeypatch, worse, plain_judge):
    selecting = noise_of_guesses(held_out_guesses(selecting_judges(auto_run))).log_likelihood
    monkeypatch.setattr(judging, "label_log_likelihood", lambda labels, probs: selecting - worse)
    assert (plain_guesses(auto_run) is not None) is plain_judge


def test_findings_follow_the_chosen_judges(auto_run, monkeypatch):
    folders = [auto_run / "plain" / str(number) for number in range(1, 6)]
    samples = read_samples(auto_run)
    chosen = findings_of_run(auto_run, samples, CLASSES)
    monkeypatch.setattr(judging, "label_log_likelihood", lambda labels, probs: -np.inf)
    assert plain_guesses(auto_run) is None
    selecting = findings_of_run(auto_run, samples, CLASSES)
    monkeypatch.setattr(judging, "label_log_likelihood", lambda labels, probs: 0.0)
    guesses = plain_guesses(auto_run)
    plain = findings_of_run(auto_run, samples, CLASSES)
    assert (plain.quality == findings_from_guesses(guesses, tuple(CLASSES), out_of_sample=True).quality).all()
    assert any((chosen.quality == each.quality).all() for each in (plain, selecting))
    for folder in folders:
        judge = read_samples(folder)
        held = judge["split"] == HELD_OUT
        assert np.allclose(dense_probs(guesses.at(held)), dense_probs(guesses_from_run(judge, 4).at(held)), atol=1e-6)


def test_incomplete_plain_judges_do_not_judge(auto_run, tmp_path, monkeypatch):
    monkeypatch.setattr(judging, "label_log_likelihood", lambda labels, probs: 0.0)
    shutil.copytree(auto_run, tmp_path / "cut")
    assert plain_guesses(tmp_path / "cut") is not None
    (tmp_path / "cut" / "plain" / "3" / "done").unlink()
    assert plain_guesses(tmp_path / "cut") is None


@pytest.mark.parametrize(
    ("worse", "long_worse", "trained"), [(0.03, 0.0, (5, 0)), (0.05, 0.03, (1, 5)), (0.05, 0.038, (1, 1))]
)
def test_first_judge_decides_whether_others_are_needed_if_the_run_held_samples_out(
    noisy_file, tmp_path, monkeypatch, worse, long_worse, trained
):
    judged = []

    def log_likelihood(labels, probs):
        judged.append(labels)
        is_long = any((out / "longer").glob("*/done"))
        return noise_of_guesses(held_out_guesses([out])).log_likelihood - (long_worse if is_long else worse)

    out = tmp_path / "run"
    monkeypatch.setattr(judging, "label_log_likelihood", log_likelihood)
    brief = ["--epochs", "4", "--warmup", "1", "--valid", "0.1", "--no-final"]
    assert execute(["train", str(noisy_file), *QUICK, *brief, "--out", str(out)]) == 0
    assert tuple(len(list((out / folder).glob("*/done"))) for folder in ("plain", "longer")) == trained
    assert {read_run(judge.parent).spec["epochs"] for judge in (out / "longer").glob("*/done")} <= {4}
    assert (plain_guesses(out) is not None) is (5 in trained)
    own = held_out_guesses([out])
    assert sorted(judged[-1]) == sorted(own.labels)  # both are compared on the same samples
    findings = findings_of_run(out, read_samples(out), CLASSES)
    assert findings.held_out == len(own) == SAMPLES // 10
    assert findings.noise.rate[:2] == reported_rate(noise_of_guesses(own).rate)[:2]


def test_run_is_combined_with_the_probe_that_held_each_sample_out(auto_run):
    """Log-probabilities of the run and of the probe that was not trained on the sample have equal weight."""
    probes = selecting_judges(auto_run)
    samples, probe = read_samples(auto_run), read_samples(probes[1])
    combined = combine_with_probes(guesses_from_run(samples, 4), probes, samples["split"])
    held = probe["split"] == HELD_OUT
    own, other = (dense_probs(guesses_from_run(each, 4).at(held)) for each in (samples, probe))
    both = np.sqrt(np.maximum(own * other, 1e-12))
    assert np.allclose(dense_probs(combined.at(held)), both / both.sum(1, keepdims=True), atol=1e-6)
    assert (combined.labels == samples["label"]).all()
    split = samples["split"].copy()
    split[0] = HELD_OUT  # a run that held samples out needs no probes
    assert combine_with_probes(guesses_from_run(samples, 4), [], split).likelihood is samples["likelihood"]


@pytest.mark.parametrize(
    ("estimate", "reported"),
    [(0.0, 0.0), (0.004, 0.0), (0.02, 0.0105), (0.1, 0.0925), (0.3, 0.2975), (0.4, 0.4), (0.6, 0.6)],
)
def test_reported_rate_is_lower_where_few_labels_are_wrong(estimate, reported):
    assert reported_rate(Interval(estimate, 0.0, 0.7)) == pytest.approx((reported, 0.0, 0.7))
    assert reported_rate(Interval(estimate, estimate, 0.7)).low == pytest.approx(reported)  # in the range


def test_audit_reports_the_rate_of_held_out_samples(auto_run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(judging, "label_log_likelihood", lambda labels, probs: -np.inf)  # selecting probes judge
    assert execute(["audit", str(auto_run), "--out", str(tmp_path / "audit")]) == 0
    summary = json.loads((tmp_path / "audit" / "summary.json").read_text())
    rate = summary["noise_rate"]
    assert list(rate.values()) == pytest.approx(list(reported_rate(noise_of_run(auto_run).rate)), abs=1e-5)
    shown = capsys.readouterr().out
    assert f"% of the {SAMPLES} labels look wrong" in shown
    expected = sum(row["estimate"] * row["samples"] for row in summary["per_class"]) / SAMPLES
    assert expected == pytest.approx(rate["estimate"], abs=1e-5)  # the classes add up to it
    off_diagonal = 1 - np.diagonal(summary["noise_matrix"])
    assert off_diagonal == pytest.approx([row["estimate"] for row in summary["per_class"]], abs=0.02)
    assert "by models that were not trained on the labels they judged" in summary["basis"] and summary["basis"] in shown
