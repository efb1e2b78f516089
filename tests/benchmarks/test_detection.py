"""Benchmarks of detection: figures by hand, scores of other packages, and tables from the records."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.audit import main
from benchmarks.audit_scores import OURS, THEIRS, classifiers_table, steps_table
from benchmarks.audit_tables import (
    POST_HOC,
    behind,
    best_peer,
    differences,
    precision_table,
    settings,
    summary,
    time_table,
)
from benchmarks.auto import RESULTS as AUTOMATIC
from benchmarks.auto import audited
from benchmarks.auto import table as automatic_table
from benchmarks.detection import auroc, average_precision, decision, precision_at_errors, ranking
from benchmarks.peers import Watched, cross_validated, margins, normalized_margin, self_confidence, stratified_folds
from benchmarks.peers import watched as watched_training
from benchmarks.record import read_rows
from labelsieve.runs.data import Shelf
from labelsieve.runs.execute import prepare
from labelsieve.runs.spec import experiment_for

ROOT = Path(__file__).parents[2]
WRONG = np.array([True, False, True, False])
LABELS = np.array([0, 2, 1])
PROBS = np.array([[0.7, 0.2, 0.1], [0.5, 0.3, 0.2], [0.1, 0.8, 0.1]])


def test_ranking_figures_by_hand():
    score = np.array([0.1, 0.2, 0.3, 0.4])  # wrong, right, wrong, right
    assert average_precision(WRONG, score) == pytest.approx((1 + 2 / 3) / 2)
    assert auroc(WRONG, score) == 3 / 4
    assert precision_at_errors(WRONG, score) == 1 / 2


def test_equal_scores_share_a_rank():
    score = np.array([0.1, 0.1, 0.1, 0.9])  # the first three are equal: wrong, right, wrong
    assert average_precision(WRONG, score) == pytest.approx(2 / 3)
    assert auroc(WRONG, score) == pytest.approx((2 + 2 * 0.5) / 4)
    constant = np.zeros(4)
    assert average_precision(WRONG, constant) == auroc(WRONG, constant) == 0.5


def test_best_and_worst_ranking():
    assert set(ranking(WRONG, -WRONG.astype(float)).values()) == {1.0}
    worst = ranking(WRONG, WRONG.astype(float))
    assert (worst["auroc"], worst["precision_at_errors"]) == (0, 0)
    assert worst["average_precision"] == 0.5  # both wrong labels come last


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=2, max_size=30))
def test_auroc_counts_pairs(rows):
    wrong, score = (np.array(column) for column in zip(*rows, strict=True))
    if wrong.all() or not wrong.any():
        return
    pairs = [(b < g) + (b == g) / 2 for b in score[wrong] for g in score[~wrong]]
    assert auroc(wrong, score) == pytest.approx(np.mean(pairs))
    shuffled = np.random.default_rng(0).permutation(len(wrong))
    assert average_precision(wrong[shuffled], score[shuffled]) == pytest.approx(average_precision(wrong, score))


def test_decision_figures_by_hand():
    found = decision(WRONG, np.array([True, True, False, False]))
    assert found == {"precision": 0.5, "recall": 0.5, "f1": 0.5}
    assert decision(WRONG, np.zeros(4, bool)) == {"precision": 0, "recall": 0, "f1": 0}
    assert decision(WRONG, np.ones(4, bool)) == {"precision": 0.5, "recall": 1, "f1": pytest.approx(2 / 3)}


def test_scores_of_probabilities_by_hand():
    assert self_confidence(LABELS, PROBS).tolist() == [0.7, 0.2, 0.8]
    assert normalized_margin(LABELS, PROBS) == pytest.approx([0.75, 0.35, 0.85])


def test_scores_match_cleanlab():
    rank = pytest.importorskip("cleanlab.rank", reason="cleanlab is not installed")
    probs = np.random.default_rng(0).dirichlet(np.ones(5), 200)
    labels = np.arange(200) % 5
    for method, ours in (("self_confidence", self_confidence), ("normalized_margin", normalized_margin)):
        assert ours(labels, probs) == pytest.approx(rank.get_label_quality_scores(labels, probs, method=method))


def test_margins_by_hand():
    logits = torch.tensor([[2.0, 5.0, 1.0], [2.0, 5.0, 1.0]])
    assert margins(logits, torch.tensor([0, 1])).tolist() == [-3.0, 3.0]


def test_area_under_the_margin_matches_the_aum_package(tmp_path):
    aum = pytest.importorskip("aum", reason="aum is not installed")
    calculator = aum.AUMCalculator(str(tmp_path), compressed=True)
    random = torch.Generator().manual_seed(0)
    method, labels, index = Watched(20), torch.arange(20) % 4, torch.arange(20)
    for _ in range(3):
        logits = torch.randn(20, 4, generator=random)
        calculator.update(logits, labels, index.tolist())
        method.step(logits.unsqueeze(0), labels, index)
    calculator.finalize()
    rows = [line.split(",") for line in (tmp_path / "aum_values.csv").read_text().splitlines()[1:]]
    theirs = {int(sample): float(value) for sample, value in rows}
    assert method.scores()["AUM"] / 3 == pytest.approx([theirs[i] for i in range(20)], abs=1e-5)


def test_folds_are_stratified():
    labels = torch.tensor([0] * 50 + [1] * 23)
    folds = stratified_folds(labels, 5, seed=0)
    assert folds[:50].bincount().tolist() == [10] * 5
    assert sorted(folds[50:].bincount(minlength=5).tolist()) == [4, 4, 5, 5, 5]
    assert not torch.equal(folds, stratified_folds(labels, 5, seed=1))


@pytest.fixture(scope="module")
def small():
    experiment = experiment_for("fashion", noise="symmetry", rate=0.4, epochs=4, warmup=0, seed=1)
    prepared = prepare(experiment, Shelf())
    return replace(prepared, train=prepared.train.at(torch.arange(1000)))


def test_cross_validated_probabilities_find_wrong_labels(small):
    found = cross_validated(small, seed=1)
    wrong = (small.train.labels != small.train.clean).numpy()
    assert found.probs.sum(1) == pytest.approx(np.ones(1000), abs=1e-5)
    assert set(found.accuracies) == {1, 2, 4} and found.epochs in found.accuracies
    assert auroc(wrong, self_confidence(small.train.labels.numpy(), found.probs)) > 0.75
    assert found.search.cpu > 0 and found.folds.cpu > 0


def test_scores_of_a_plain_training_find_wrong_labels(small):
    found = watched_training(small)
    wrong = (small.train.labels != small.train.clean).numpy()
    assert list(found) == ["AUM, until the first drop", "AUM, all epochs", "mean loss", "mean confidence"]
    assert found["AUM, until the first drop"][1].cpu < found["AUM, all epochs"][1].cpu
    assert all(auroc(wrong, score) > 0.7 for score, _ in found.values())


def cell(system, seed, noise="pair", **scores):
    figures = {name: {"average_precision": value, "cpu": 10.0, "wall": 20.0} for name, value in scores.items()}
    task = {"data": "fashion", "noise": noise, "rate": 0.4, "labels": None, "seed": seed, "epochs": None}
    made = {"versions": {"cleanlab": "2.9.0"}}
    return {"system": system, **task, "samples": 6000, "model": "small", "scores": figures, "made": made}


MADE_UP = [
    cell("labelsieve", 3, **{"labelsieve, true rate": 0.9}),
    cell("labelsieve", 4, **{"labelsieve, true rate": 0.8}),
    {**cell("cleanlab", 3, **{"cleanlab, self-confidence": 0.7}), "search": {"cpu": 4.0, "wall": 8.0}},
    {**cell("cleanlab", 4, **{"cleanlab, self-confidence": 0.9}), "search": {"cpu": 4.0, "wall": 8.0}},
    cell("plain training", 3, **{"mean loss": 0.6}),
    cell("plain training", 4, **{"mean loss": 0.6}),
]


def test_best_peer_and_paired_difference():
    cells = settings(MADE_UP)["fashion (6,000 samples, small)"]["pair 40%"]
    assert best_peer(cells) == "cleanlab, self-confidence"
    assert differences(cells, "labelsieve, true rate", best_peer(cells)) == pytest.approx([0.2, -0.1])
    table = precision_table({"pair 40%": cells})
    assert "| labelsieve, true rate | 0.850 ± 0.050 |" in table
    assert "| labelsieve, true rate, minus best peer | +0.050 ± 0.150 |" in table
    assert behind({"pair 40%": cells}) == []
    assert "| cleanlab, without the search for the number of epochs | 6.0 | 12.0 |" in time_table(settings(MADE_UP))


def test_lower_precision_is_reported():
    worse = [cell("labelsieve", 3, **{"labelsieve, true rate": 0.5}), *MADE_UP[2:3]]
    claim = "labelsieve, true rate, has a lower average precision than the best peer"
    assert f"- {claim}: pair 40%, cleanlab, self-confidence (-0.200)." in summary(worse)


def test_lower_f1_is_reported():
    ours, theirs = cell("labelsieve", 3, **{"labelsieve, true rate": 0.9}), MADE_UP[2]
    ours["scores"]["labelsieve, true rate"]["f1"] = 0.5
    theirs = {**theirs, "scores": {name: {**row, "f1": 0.75} for name, row in theirs["scores"].items()}}
    assert behind({"pair 40%": [ours, theirs]}) == [
        "labelsieve, true rate, has a lower F1 than cleanlab, find_label_issues: pair 40% (-0.250)"
    ]


def test_scores_without_cleanlab_are_marked():
    made = {"made": {"versions": {"cleanlab": "not installed"}}}
    (noises,) = settings([MADE_UP[0], {**MADE_UP[2], **made}]).values()
    assert "| cleanlab, self-confidence (by its definition) | 0.700 |" in precision_table(noises)


def test_recorded_results_are_not_computed_again(tmp_path, capsys):
    """Run a tiny benchmark twice; it needs no other package."""
    words = ["--data", "fashion", "--noise", "pair:0.4", "--seeds", "0", "--epochs", "2", "--subset", "300"]
    words += ["--device", "cpu", "--work", str(tmp_path / "work"), "--out", str(tmp_path / "record.json")]
    main(words)
    first = capsys.readouterr().out
    record = json.loads((tmp_path / "record.json").read_text())
    assert [made["system"] for made in record][:3] == ["labelsieve", "cleanlab", "plain training"]
    assert all(made["samples"] == 300 and made["made"]["device"] for made in record)
    before = (tmp_path / "record.json").stat().st_mtime_ns
    main(words)
    again = capsys.readouterr().out
    assert (tmp_path / "record.json").stat().st_mtime_ns == before
    assert first.endswith(again) and again.strip() == summary(record)
    main([*words, "--again", "cleanlab"])  # its probabilities are kept, only the scores are computed again
    anew = json.loads((tmp_path / "record.json").read_text())
    assert [made for made in record if made["system"] != "cleanlab"] == anew[:-1] and len(anew) == len(record)
    (old,) = [made for made in record if made["system"] == "cleanlab"]
    assert anew[-1]["search"] == old["search"]
    for name, row in old["scores"].items():
        assert anew[-1]["scores"][name]["average_precision"] == row["average_precision"]


def test_tables_of_the_documentation_match_the_record():
    record = json.loads((ROOT / "benchmarks" / "results" / "audit.json").read_text())
    systems = len({made["system"] for made in record})
    for cells in (cells for noises in settings(record).values() for cells in noises.values()):
        assert len(cells) == systems * (1 if cells[0]["labels"] else 3)  # seeds
    assert summary(record) in (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")


def test_documented_recall_matches_the_record():
    record = json.loads((ROOT / "benchmarks" / "results" / "audit.json").read_text())
    rows = [made["scores"].get(POST_HOC) for made in record if made["rate"] == 0.4]
    recall = [100 * row["recall"] for row in rows if row]
    assert f"finds {min(recall):.0f}% to {max(recall):.0f}% of the wrong labels" in (ROOT / "docs/audit.md").read_text()


def test_audit_of_a_run_is_measured_from_its_files(tmp_path):
    """Four samples of classes a and b; the first and the third label are wrong, the first two are suspects."""
    (tmp_path / "audit").mkdir()
    rate = {"estimate": 0.4, "low": 0.1, "high": 0.5}
    (tmp_path / "audit" / "summary.json").write_text(json.dumps({"classes": ["a", "b"], "noise_rate": rate}))
    rows = ["0,b,true", "1,a,true", "2,a,false", "3,b,false"]  # the most suspicious first
    (tmp_path / "audit" / "labels.csv").write_text("\n".join(["index,suggested_label,is_label_issue", *rows]))
    found = audited(tmp_path, given=np.array([0, 1, 0, 1]), true=np.array([1, 1, 1, 1]))
    assert found["estimate"] == [0.4, 0.1, 0.5] and found["holds"] and found["f1"] == 0.5
    assert found["average_precision"] == pytest.approx((1 + 2 / 3) / 2)
    assert found["flagged"] == 0.5 and found["wrong_after"] == 0.5  # one corrected, one made wrong


def test_documented_automatic_training_matches_the_record():
    rows = read_rows(AUTOMATIC)
    if not rows:
        pytest.skip(f"{AUTOMATIC.name} has not been recorded yet")
    assert automatic_table(rows) in (ROOT / "docs" / "auto.md").read_text(encoding="utf-8")


def test_tables_of_decision_26_match_the_record():
    record = json.loads((ROOT / "benchmarks" / "results" / "posthoc.json").read_text())
    decided = (ROOT / "docs" / "decisions" / "026-probabilities-of-any-classifier.md").read_text(encoding="utf-8")
    assert steps_table(record) in decided and classifiers_table(record) in decided
    assert {OURS, THEIRS} <= {row["step"] for row in record}
