"""audit: by hand, on noise that is known, on bad input, from real runs, and out again into other tools' formats."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from labelsieve.audit import estimate_noise, find_label_issues, guesses, label_quality
from labelsieve.audit import quality as quality_module
from labelsieve.audit.estimate import Interval, Noise, confident_joint, reconciled
from labelsieve.audit.files import COLUMNS, EXPORTS, labels_csv, labels_parquet, summary, thumbnail
from labelsieve.audit.findings import findings_of, reason, reasons, sharpened
from labelsieve.audit.guesses import guesses_of
from labelsieve.audit.posterior import counted_joint, label_given_true, posterior, quality, unmixed
from labelsieve.auto.audit import LEFT_OUT, printed
from labelsieve.cli import execute
from labelsieve.core.criteria import CriteriaALL
from labelsieve.data.labels import read_label_file
from labelsieve.errors import InputError
from labelsieve.noise import corrupt, pair, symmetry
from labelsieve.text import guarded, printable, unguarded

ROOT = Path(__file__).parents[1]


def noisy(matrix, count=4000, classes=10, seed=0, sure=3.0):
    """Labels, the probabilities of a classifier that knows all that can be known, and the truth."""
    random = np.random.default_rng(seed)
    clean = random.integers(0, classes, count)
    labels = corrupt(torch.from_numpy(clean), matrix(classes), seed).numpy()
    seen = random.normal(size=(count, classes))  # what class k looks like: a bump of this height at place k
    seen[np.arange(count), clean] += sure
    likely = np.exp(sure * (seen - seen.max(1, keepdims=True)))
    return labels, likely / likely.sum(1, keepdims=True), clean


def average_precision(wrong, score):
    hits = wrong[np.argsort(score, kind="stable")]
    return (np.cumsum(hits) / np.arange(1, len(hits) + 1))[hits].mean()


# --- scores


def test_bayes_rule_by_hand():
    labels, probs = np.array([0, 0, 1]), np.array([[0.8, 0.2], [0.3, 0.7], [0.1, 0.9]])
    found = guesses_of(labels, probs)
    assert counted_joint(found).tolist() == [[1, 1], [0, 1]]
    joint = np.array([[97.5, 47.5], [-2.5, 147.5]])  # with the prior of 2.5 a cell: 100, 50; 0, 150
    likely, again = posterior(found, label_given_true(joint))
    given_0 = 1.0, 0.25  # P(label 0 | true 0), P(label 0 | true 1)
    first = 0.8 * given_0[0] / (0.8 * given_0[0] + 0.2 * given_0[1])
    second = 0.3 * given_0[0] / (0.3 * given_0[0] + 0.7 * given_0[1])
    np.testing.assert_allclose(likely, [first, second, 1.0], rtol=1e-6)
    np.testing.assert_allclose(again, [[first + second, 2 - first - second], [0, 1]], atol=1e-6)


def test_classes_that_were_not_kept_share_what_is_left():
    labels, probs, _ = noisy(lambda k: pair(k, 0.3), classes=8)
    found = guesses_of(labels, probs)
    exact = posterior(found, label_given_true(joint := counted_joint(found)))[0]
    dense = joint + 5 / 8
    weight = probs * (dense / dense.sum(0))[labels]
    wanted = weight[np.arange(len(labels)), labels] / weight.sum(1)
    assert abs(exact - wanted).max() < 0.1 and abs(exact - wanted).mean() < 0.002


def test_criteria_all_is_that_of_training():
    labels, probs, _ = noisy(lambda k: pair(k, 0.3), count=500)
    criterion = CriteriaALL(10, lam=0.5)
    y, p = torch.from_numpy(labels), torch.from_numpy(probs).float()[None]
    criterion.stack(p, y, torch.ones(1, 500, dtype=torch.bool))
    criterion.roll()
    wanted = (criterion(p, y)[0].numpy() + 0.5) / 1.5
    np.testing.assert_allclose(label_quality(labels, probs, criterion="all", lam=0.5), wanted, atol=1e-5)


def test_simple_criteria_by_hand():
    labels, probs = np.array([0, 1]), np.array([[0.5, 0.3, 0.2], [0.6, 0.1, 0.3]])
    np.testing.assert_allclose(label_quality(labels, probs, criterion="ol"), [0.5, 0.1], rtol=1e-6)
    np.testing.assert_allclose(label_quality(labels, probs, criterion="margin"), [0.6, 0.25], rtol=1e-6)


@pytest.mark.parametrize("kind", [pair, symmetry])
def test_the_posterior_finds_more_than_the_confidence_on_pair_noise_and_as_much_on_symmetry(kind):
    labels, probs, clean = noisy(lambda k: kind(k, 0.4), sure=1.5)
    score = {
        name: average_precision(labels != clean, label_quality(labels, probs, criterion=name))
        for name in ("posterior", "ol")
    }
    assert score["posterior"] > score["ol"] + 0.02 if kind is pair else score["posterior"] > score["ol"] - 0.01


def test_tensors_are_taken_as_arrays_are():
    torch = pytest.importorskip("torch")
    labels, probs, _ = noisy(lambda k: pair(k, 0.4), sure=1.5)
    found = estimate_noise(torch.from_numpy(labels), torch.from_numpy(probs))
    assert found.rate == estimate_noise(labels, probs).rate


@given(st.integers(2, 12), st.integers(1, 60), st.integers(0, 10**6))
def test_any_probabilities_give_qualities_from_0_to_1(classes, count, seed):
    random = np.random.default_rng(seed)
    labels, probs = random.integers(0, classes, count), random.dirichlet(np.full(classes, 0.2), count)
    for criterion in ("posterior", "all", "ol", "margin"):
        found = label_quality(labels, probs, criterion=criterion)
        assert found.shape == (count,) and (found >= 0).all() and (found <= 1).all()
    noise = estimate_noise(labels, probs)
    np.testing.assert_allclose(noise.matrix.sum(1), 1)
    for share in (noise.rate, *noise.per_class):
        assert 0 <= share.low <= share.estimate <= share.high <= 1
    shuffled = random.permutation(count)
    np.testing.assert_allclose(label_quality(labels[shuffled], probs[shuffled]), label_quality(labels, probs)[shuffled])


def test_issues_as_a_mask_or_ranked():
    labels, probs, clean = noisy(lambda k: pair(k, 0.2))
    mask = find_label_issues(labels, probs)
    ranked = find_label_issues(labels, probs, return_indices_ranked_by="label_quality")
    assert sorted(ranked.tolist()) == np.flatnonzero(mask).tolist()
    assert (np.diff(label_quality(labels, probs)[ranked]) >= 0).all()
    assert (labels != clean)[mask].mean() > 0.9


def test_ranked_issues_read_the_probabilities_once(monkeypatch):
    labels, probs, _ = noisy(lambda k: pair(k, 0.2))
    read = []
    monkeypatch.setattr(quality_module, "guesses_of", lambda *both: read.append(both) or guesses_of(*both))
    assert len(find_label_issues(labels, probs, return_indices_ranked_by="label_quality")) and len(read) == 1
    with pytest.raises(TypeError, match="criterion"):
        find_label_issues(labels, probs, criterion="ol")


def test_training_sharpens_only_what_was_seen():
    quality = np.array([0.5, 0.5, 0.5, 0.9])
    found = sharpened(quality, np.array([0.8, -0.8, -0.8, 0.0]), np.array([3, 3, 0, 3]))
    assert found[0] > 0.5 > found[1] and found[2] == pytest.approx(0.5) and found[3] == pytest.approx(0.9)


# --- estimates


@pytest.mark.parametrize(("kind", "rate"), [(pair, 0.4), (symmetry, 0.4), (pair, 0.1), (pair, 0.0)])
def test_the_noise_is_estimated(kind, rate):
    labels, probs, clean = noisy(lambda k: kind(k, rate), sure=3.0)
    noise = estimate_noise(labels, probs)
    true = (labels != clean).mean()
    assert (
        noise.rate.low <= max(true, 0.01)
        and true <= noise.rate.high
        and noise.rate.estimate == pytest.approx(true, abs=0.03)
    )
    if kind is pair and rate == 0.4:
        truth = np.array([[(clean[labels == y] == j).mean() for j in range(10)] for y in range(10)])
        assert abs(noise.matrix - truth).max() < 0.08
        inside = [share.low <= 1 - truth[k, k] <= share.high for k, share in enumerate(noise.per_class)]
        assert sum(inside) >= 9


def test_the_confident_joint_by_hand():
    labels = np.array([0, 0, 1, 1])
    probs = np.array([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7], [0.45, 0.55]])  # usual: 0.55 for class 0, 0.625 for class 1
    assert confident_joint(guesses_of(labels, probs)).tolist() == [[1, 1], [0, 1]]


def test_a_class_without_samples_is_believed():
    noise = estimate_noise(np.array([0, 1, 0, 1]), np.full((4, 3), 1 / 3))
    assert noise.matrix[2].tolist() == [0, 0, 1] and noise.per_class[2] == (0, 0, 1)


def test_verdicts():
    def said(rate, **known):
        labels, probs, _ = noisy(lambda k: pair(k, rate), sure=4.0)
        return findings_of(guesses_of(labels, probs), [f"c{k}" for k in range(10)], **known).verdict

    assert "look clean" in said(0.0) and "Nothing needs to be done" in said(0.0)
    assert "where 11% were said to be wrong" in said(0.0, told=0.11) and "Nothing" not in said(0.0, told=0.11)
    assert said(0.0, told=0.001) == said(0.0) and said(0.3, told=0.4) == said(0.3)
    assert "by heart" in said(0.0, plain=True) and "Nothing" not in said(0.0, plain=True)
    assert said(0.3).startswith("About") and "seem to be" in said(0.3) and said(0.3, plain=True).startswith("At least")


def test_the_range_of_the_whole_holds_what_is_marked():
    labels, probs, _ = noisy(lambda k: pair(k, 0.3), sure=4.0)
    known = {"classes": [f"c{k}" for k in range(10)], "held_out": 100}
    found = findings_of(guesses_of(labels, probs), rate=Interval(0.06, 0.04, 0.08), **known)
    marked = found.issues.mean()
    assert marked > 0.2 and found.noise.rate == (0.06, 0.04, marked)
    assert findings_of(guesses_of(labels, probs), rate=Interval(0.3, 0.2, 0.4), **known).noise.rate == (0.3, 0.2, 0.4)


# --- size and bad input


def test_a_large_file_is_read_in_pieces_and_once(tmp_path, monkeypatch):
    labels, probs, _ = noisy(lambda k: pair(k, 0.3), count=3000)
    path = tmp_path / "probs.npy"
    np.save(path, probs.astype(np.float16))
    whole = quality(*unmixed(guesses_of(labels, np.load(path))))
    read = []

    class Watched(np.memmap):
        def __getitem__(self, rows):
            if isinstance(rows, slice):
                read.append(rows)
            return super().__getitem__(rows)

    monkeypatch.setattr(guesses, "CHUNK", 1000)
    mapped = np.load(path, mmap_mode="r").view(Watched)
    read.clear()
    np.testing.assert_array_equal(label_quality(labels, mapped), whole)
    assert [(rows.start, rows.stop) for rows in read] == [(first, first + 100) for first in range(0, 3000, 100)]


def resident_file_mb():
    """What of the files that it has mapped this process holds in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("RssFile"))) / 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_a_mapped_file_does_not_stay_in_memory(tmp_path):
    path = tmp_path / "probs.npy"
    table = np.lib.format.open_memmap(path, "w+", np.float16, (200_000, 100))  # 40 MB
    table[:] = 0.01
    del table
    mapped = np.load(path, mmap_mode="r")
    before = resident_file_mb()
    found = guesses_of(np.zeros(200_000, int), mapped)
    assert resident_file_mb() - before < 20
    assert mapped[0, 0] == np.float16(0.01) and len(found) == 200_000


GOOD = np.array([[0.5, 0.5], [0.9, 0.1], [0.2, 0.8]])


@pytest.mark.parametrize(
    ("labels", "probs", "message"),
    [
        ([0, 1], GOOD, "2 labels but pred_probs has 3 rows"),
        ([0, 1, 2], GOOD, "label 2 at position 2 is out of range"),
        ([0, -1, 1], GOOD, "label -1 at position 1 is out of range"),
        ([0.0, 1.0, 1.0], GOOD, "whole numbers"),
        ([0, 1, 1], GOOD[:, 0], "shape \\(samples, classes\\)"),
        ([0, 1, 1], GOOD.astype(int), "must be floats"),
        ([0, 0, 0], np.ones((3, 1)), "one column"),
        ([], np.ones((0, 2)), "no samples"),
        ([0, 1, 1], GOOD * [[1], [np.nan], [1]], "row 1 of pred_probs has a value that is not finite"),
        ([0, 1, 1], GOOD * 2.7, "row 0 of pred_probs does not sum to 1"),
        ([0, 1, 1], GOOD + np.array([[0, 0], [0, 0], [1, -1]]), "row 2 of pred_probs has a probability below 0"),
    ],
)
def test_bad_input_is_one_clear_line(labels, probs, message):
    labels = np.array(labels, dtype=int) if not labels else np.array(labels)
    for call in (label_quality, find_label_issues, estimate_noise):
        with pytest.raises(InputError, match=message) as caught:
            call(labels, probs)
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match=message):
        label_quality(labels, probs, criterion="all")


def test_unknown_options_are_refused():
    with pytest.raises(InputError, match="did you mean margin"):
        label_quality(np.array([0, 1, 1]), GOOD, criterion="margn")
    with pytest.raises(InputError, match="lam must be"):
        label_quality(np.array([0, 1, 1]), GOOD, criterion="all", lam=-1)


# --- files


HOSTILE = [
    "=cmd|' /C calc'!A0",
    "+1",
    "-2",
    "@x",
    "\tx",
    "'=x",
    "''@y",
    "<script>",
    'a,b\n"c',
    "\x1b[2J",
    "Ω",
    "'plain",
    "",
]


@given(st.text(alphabet="=+-@'\t\r\n\0ax, ", max_size=6))
def test_a_guarded_text_comes_back_and_never_acts(text):
    assert unguarded(guarded(text)) == text
    assert not guarded(text).startswith(("=", "+", "-", "@", "\t", "\r", "\n", "\0"))


def hostile_findings():
    count = len(HOSTILE)
    labels, probs, _ = noisy(lambda k: pair(k, 0.3), count=300, classes=count)
    return findings_of(guesses_of(labels, probs), HOSTILE, [f"{HOSTILE[i % count]}{i}" for i in range(300)])


@pytest.mark.parametrize(
    ("doubted", "unknown"),
    [((8, 1, 1), ["a"]), ((5, 0, 0), []), ((6, 0, 0), ["a"]), ((6, 5, 5), []), ((0, 0, 0), []), ((10, 10, 1), [])],
)
def test_a_class_most_of_whose_labels_look_wrong_is_not_corrected(doubted, unknown):
    """Ten samples of each class; more than half, and more than twice the share of all, are too many to believe."""
    labels = np.repeat(np.arange(3), 10)
    issues = np.concatenate([np.arange(10) < count for count in doubted])
    findings = replace(hostile_findings(), classes="abc", labels=labels, suggested=(labels + 1) % 3, issues=issues)
    assert findings.unknown == unknown
    believed = issues & ~np.isin(labels, ["abc".index(name) for name in unknown])
    assert findings.believed.tolist() == np.where(believed, (labels + 1) % 3, labels).tolist()


def test_hostile_names_pass_through_every_file(tmp_path):
    findings = hostile_findings()
    rows = list(csv.DictReader(io.StringIO(labels_csv(findings).decode(), newline="")))
    assert tuple(rows[0]) == COLUMNS and len(rows) == 300
    for row in rows:
        for name in ("id", "given_label", "suggested_label", "why"):
            assert not row[name].startswith(("=", "+", "-", "@", "\t", "\r"))
        index = int(row["index"])
        assert unguarded(row["id"]) == findings.ids[index]
        assert unguarded(row["given_label"]) == HOSTILE[findings.labels[index]]
        assert row["is_label_issue"] in ("true", "false") and 0 <= float(row["label_quality"]) <= 1
    assert [float(row["label_quality"]) for row in rows] == sorted(float(row["label_quality"]) for row in rows)
    path = tmp_path / "corrected.csv"
    path.write_bytes(EXPORTS["corrected"][1](findings, {}))
    assert read_label_file(path, HOSTILE, 300, findings.ids).labels.tolist() == findings.corrected.tolist()
    assert "\x1b" not in printed(findings, summary(findings, None, {}), tmp_path, [])
    assert printable("\x1b[2J\n") == "\\x1b[2J\\n"


def test_parquet_is_the_same_table():
    parquet = pytest.importorskip("pyarrow.parquet")
    findings = hostile_findings()
    table = parquet.read_table(io.BytesIO(labels_parquet(findings)))
    assert tuple(table.column_names) == COLUMNS
    assert table["index"].to_pylist() == findings.order.tolist()
    assert table["is_label_issue"].to_pylist() == findings.issues[findings.order].tolist()


def test_exports_have_the_shape_that_their_tools_read():
    labels, probs, _ = noisy(lambda k: pair(k, 0.3), count=300)
    names = [f"class {k}" for k in range(10)]
    findings = findings_of(guesses_of(labels, probs), names, [f"some folder/{i}.png" for i in range(300)])
    views = {index: {"image": f"thumbs/{index}.webp"} for index in range(300)}
    made = {name: make(findings, views) for name, (_, make) in EXPORTS.items()}
    rows = list(csv.DictReader(io.StringIO(made["cleanlab"].decode())))
    assert list(rows[0]) == ["is_label_issue", "label_quality", "label_score", "given_label", "predicted_label"]
    assert [row["given_label"] for row in rows] == [names[k] for k in labels]
    tasks = json.loads(made["label-studio"])
    assert len(tasks) == findings.issues.sum() > 0
    for task in tasks:
        (prediction,) = task["predictions"]
        (result,) = prediction["result"]
        assert result["to_name"] in task["data"] and result["type"] == "choices" and 0 <= prediction["score"] <= 1
        (choice,) = result["value"]["choices"]
        assert choice in names and choice != task["data"]["given_label"]
        assert task["data"]["image"] == f"/data/local-files/?d=some%20folder/{task['data']['index']}.png"
    fiftyone = json.loads(made["fiftyone"])
    assert fiftyone["classes"] == names
    assert [fiftyone["labels"][f"some folder/{i}"]["label"] for i in range(300)] == labels.tolist()


def test_thumbnails_keep_the_aspect_and_enlarge_by_whole_factors():
    def size(*shape):
        return Image.open(io.BytesIO(thumbnail(np.zeros(shape, np.uint8)))).size

    assert size(28, 28, 1) == (84, 84) and size(400, 100, 3) == (24, 96) and size(60, 50, 3) == (50, 60)
    random = np.random.default_rng(0).integers(0, 256, (8, 6, 3), dtype=np.uint8)
    shown = np.asarray(Image.open(io.BytesIO(thumbnail(random))).convert("RGB"))
    assert np.array_equal(shown, random.repeat(12, 0).repeat(12, 1))


# --- runs


def blob_images(count, seed):
    random = np.random.default_rng(seed)
    labels = np.arange(count) % 4
    images = random.integers(0, 120, (count, 8, 8), dtype=np.uint8)
    for k in range(4):
        images[labels == k, 4 * (k // 2) : 4 * (k // 2) + 4, 4 * (k % 2) : 4 * (k % 2) + 4] += 90
    return images, labels


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on a .npz file with pair noise, a test set drawn and some samples held out; the folder and the truth."""
    folder = tmp_path_factory.mktemp("audit")
    images, labels = blob_images(600, 0)
    noisy_labels = corrupt(torch.from_numpy(labels), pair(4, 0.3), 0).numpy()
    np.savez(folder / "data.npz", images=images, labels=noisy_labels, classes=np.array(["a", "b", "=c", "d"]))
    options = (
        "--noise-rate 0.3 --test 0.1 --valid 0.1 --epochs 8 --warmup 2 --model small --lr 0.05 --batch 128 --threads 1"
    )
    arguments = ["train", str(folder / "data.npz"), *options.split(), "--device", "cpu", "--out", str(folder / "run")]
    assert execute(arguments) == 0
    return folder, labels, noisy_labels


def read_csv(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_run_is_audited(trained, capsys):
    folder, clean, given_labels = trained
    assert execute(["audit", str(folder / "run"), "--export", "corrected", "--export", "cleanlab"]) == 0
    said = capsys.readouterr().out
    out = folder / "run" / "audit"
    rows = read_csv(out / "labels.csv")
    assert sorted(int(row["index"]) for row in rows) == list(range(600))  # held out and test samples too
    names = ["a", "b", "'=c", "d"]
    assert all(names[given_labels[int(row["index"])]] == row["given_label"] for row in rows)
    unseen = [row for row in rows if row["why"].endswith(" The model did not learn from it.")]
    assert len(unseen) == 54 + 60  # held out, and drawn for the test
    wrong = np.array([clean[int(row["index"])] != given_labels[int(row["index"])] for row in rows])
    assert wrong[: wrong.sum()].mean() > 0.9
    issues = np.array([row["is_label_issue"] == "true" for row in rows])
    assert wrong[issues].mean() > 0.9 and issues.sum() > 0.8 * wrong.sum()
    found = json.loads((out / "summary.json").read_bytes())
    assert found["samples"] == 600 and found["issues"] == issues.sum() and found["classes"] == ["a", "b", "=c", "d"]
    rate = found["noise_rate"]
    assert rate["low"] <= wrong.mean() <= rate["high"]
    assert np.allclose(np.sum(found["noise_matrix"], 1), 1, atol=1e-4) and len(found["penalty"]) == 4
    assert said.startswith(found["verdict"]) and found["made"]["method"] == "mentornet-prop"
    gallery = [json.loads(line) for line in (out / "gallery.jsonl").read_text().splitlines()]
    assert [line["index"] for line in gallery] == [int(row["index"]) for row in rows[: len(gallery)]]
    assert len(gallery) == issues.sum() + 200 and all(line["is_label_issue"] for line in gallery[: issues.sum()])
    assert all((out / line["image"]).is_file() for line in gallery)
    fixed = read_label_file(out / "corrected.csv", found["classes"], 600).labels
    assert (fixed.numpy() == clean).mean() > 0.95 > (given_labels == clean).mean()
    again = ["train", str(folder / "data.npz"), "--labels", str(out / "corrected.csv"), "--noise-rate", "0.05"]
    assert execute([*again, "--epochs", "2", "--warmup", "1", "--dry-run"]) == 0


def test_a_run_of_an_older_version_predicts_anew(trained, tmp_path, capsys):
    folder, clean, given_labels = trained
    old = tmp_path / "old"
    old.mkdir()
    for name in ("spec.json", "record.jsonl", "model.safetensors", "tables.safetensors", "done"):
        (old / name).write_bytes((folder / "run" / name).read_bytes())
    assert execute(["audit", str(old), "--out", str(tmp_path / "out")]) == 0
    assert "older version" in capsys.readouterr().out
    rows = read_csv(tmp_path / "out" / "labels.csv")
    wrong = [clean[int(row["index"])] != given_labels[int(row["index"])] for row in rows]
    assert np.mean(wrong[: sum(wrong)]) > 0.9


def test_data_that_moved_is_named_anew_and_other_data_is_refused(trained, tmp_path, capsys):
    folder, *_ = trained
    (folder / "data.npz").rename(tmp_path / "moved.npz")
    try:
        assert execute(["audit", str(folder / "run"), "--out", str(tmp_path / "out")]) == 2
        message = capsys.readouterr().err
        assert "data.npz" in message and "--data" in message and message.count("\n") == 1
        moved = ["--data", str(tmp_path / "moved.npz")]
        assert execute(["audit", str(folder / "run"), "--out", str(tmp_path / "out"), *moved]) == 0
        images, labels = blob_images(600, 1)
        np.savez(tmp_path / "other.npz", images=images, labels=labels, classes=np.array(["a", "b", "=c", "d"]))
        other = ["--data", str(tmp_path / "other.npz")]
        assert execute(["audit", str(folder / "run"), "--out", str(tmp_path / "out"), *other]) == 2
        assert "fingerprint" in capsys.readouterr().err
    finally:
        (tmp_path / "moved.npz").rename(folder / "data.npz")


def test_tables_show_their_rows_and_folders_their_upright_images(tmp_path, capsys):
    random = np.random.default_rng(0)
    lines = [f"{k}.png,{random.normal(3 * (k % 2)):.3f},{random.normal():.3f},{'ab'[k % 2]}" for k in range(60)]
    (tmp_path / "rows.csv").write_text("id,x,y,label\n" + "\n".join(lines), encoding="utf-8")
    small = ["--noise-rate", "0.1", "--epochs", "2", "--warmup", "1", "--threads", "1", "--device", "cpu"]
    assert execute(["train", str(tmp_path / "rows.csv"), *small, "--out", str(tmp_path / "table")]) == 0
    assert execute(["audit", str(tmp_path / "table")]) == 0
    line = json.loads((tmp_path / "table" / "audit" / "gallery.jsonl").read_text().splitlines()[0])
    assert set(line["row"]) == {"x", "y"}
    for k in range(24):
        (tmp_path / "images" / "ab"[k % 2]).mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 60, (20, 40, 3), dtype=np.uint8) + np.uint8(150 * (k % 2))
        exif = Image.Exif()
        exif[0x0112] = 6  # lies on its side
        Image.fromarray(pixels).save(tmp_path / "images" / "ab"[k % 2] / f"{k}.jpg", exif=exif)
    assert execute(["train", str(tmp_path / "images"), *small, "--model", "small", "--out", str(tmp_path / "run")]) == 0
    assert execute(["audit", str(tmp_path / "run"), "--export", "fiftyone"]) == 0
    line = json.loads((tmp_path / "run" / "audit" / "gallery.jsonl").read_text().splitlines()[0])
    with Image.open(tmp_path / "run" / "audit" / line["image"]) as image:
        assert image.size == (40, 80)
    assert line["id"].startswith(("a/", "b/"))


@pytest.fixture
def files(tmp_path):
    labels, probs, clean = noisy(lambda k: pair(k, 0.3), count=400, classes=3)
    np.save(tmp_path / "y.npy", labels)
    np.save(tmp_path / "p.npy", probs.astype(np.float32))
    (tmp_path / "names.txt").write_text("red\ngreen\nblue\n", encoding="utf-8")
    (tmp_path / "texts.csv").write_text("text\n" + "\n".join(f"text {i}" for i in range(400)), encoding="utf-8")
    return tmp_path, labels, clean


def test_probabilities_of_anybody_are_audited(files, monkeypatch):
    folder, labels, clean = files
    monkeypatch.chdir(folder)
    arguments = ["audit", "--labels", "y.npy", "--pred-probs", "p.npy", "--classes", "names.txt"]
    assert execute([*arguments, "--text", "texts.csv:text", "--out", "out", "--export", "label-studio"]) == 0
    rows = read_csv(folder / "out" / "labels.csv")
    assert {row["given_label"] for row in rows} == {"red", "green", "blue"}
    wrong = [clean[int(row["index"])] != labels[int(row["index"])] for row in rows]
    assert np.mean(wrong[: sum(wrong)]) > 0.8
    flagged = sorted(int(row["index"]) for row in rows if row["is_label_issue"] == "true")
    assert flagged == np.flatnonzero(find_label_issues(labels, np.load("p.npy"))).tolist()  # not as if it were a run
    line = json.loads((folder / "out" / "gallery.jsonl").read_text().splitlines()[0])
    assert line["text"] == f"text {line['index']}"
    assert json.loads((folder / "out" / "label-studio.json").read_text())[0]["data"]["text"].startswith("text ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "say which run"),
        (["--labels", "y.npy", "--out", "out"], "say which run"),
        (["nowhere"], "there is no folder nowhere"),
        (["--labels", "y.npy", "--pred-probs", "none.npy", "--out", "out"], "cannot read none.npy"),
        (["--labels", "y.npy", "--pred-probs", "y.npy", "--out", "out"], "y.npy must hold one array"),
        (["--labels", "y.npy", "--pred-probs", "p.npy", "--out", "out", "--export", "csv"], "no export 'csv'"),
        (["--labels", "y.npy", "--pred-probs", "p.npy", "--out", "out", "--text", "texts.csv:x"], "no column 'x'"),
        (["--labels", "y.npy", "--pred-probs", "p.npy", "--out", "out", "--classes", "y.npy"], "y.npy"),
    ],
)
def test_what_cannot_be_audited_is_one_line(files, arguments, message, monkeypatch, capsys):
    monkeypatch.chdir(files[0])
    assert execute(["audit", *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said and said.startswith("error: ") and said.count("\n") == 1
    assert not (files[0] / "out").exists()


# --- what the documentation says


SCORES = (
    "posterior and margin of training",
    "confidence in the label, delivered network",
    "Criteria_ALL, mean of training",
)


def measured():
    """The table of docs/audit.md from the record: means over the seeds."""
    record = json.loads((ROOT / "benchmarks" / "results" / "audit_scores.json").read_text())
    for noise, rate in dict.fromkeys((row["noise"], row["rate"]) for row in record):
        rows = [row for row in record if (row["noise"], row["rate"]) == (noise, rate)]
        wrong, issues = (f"{100 * np.mean([row[name] for row in rows]):.1f}%" for name in ("wrong", "issues"))
        rates = [row["noise_rate"] for row in rows]
        found, low, high = (100 * np.mean([r[end] for r in rates]) for end in ("estimate", "low", "high"))
        kind = f"{noise} {100 * rate:.0f}%" if noise else "none"
        cells = [kind, wrong, f"{found:.1f}% ({low:.1f} to {high:.1f})", issues]
        if noise:
            cells += [f"{100 * np.mean([row[name] for row in rows]):.0f}%" for name in ("precision", "recall")]
            cells += [f"{np.mean([row['scores'][s]['average_precision'] for row in rows]):.3f}" for s in SCORES]
        yield f"| {' | '.join(cells)} |"


def test_the_documented_figures_come_from_the_records():
    text = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
    lines = list(measured())
    assert len(lines) == 5
    for line in lines:
        assert line in text
    memory = json.loads((ROOT / "benchmarks" / "results" / "audit_memory.json").read_text())
    assert f"{memory['figures']['label_quality, posterior']['peak_mb']} MB" in text


def test_a_reason_never_says_what_the_model_does_not():
    """The suggestion follows where wrong labels come from, and need not be the model's first."""
    assert reason("cat", "dog", 0.02, 0.2, True, 0.0) == "The model is unsure: looks more like dog (20%) than cat (2%)."
    assert reason("cat", "dog", 0.1, 0.5, True, 0.0) == "Looks more like dog (50%) than cat (10%)."
    assert reason("cat", "dog", 0.3, 0.2, True, 0.0) == "The model is only 30% sure of cat; it may be dog (20%)."


def test_every_reason_is_short_and_without_jargon():
    common = " A common mix-up: about 31% of those labelled cat."
    assert (
        reason("cat", "dog", 0.0004, 0.9996, True, 0.31)
        == "Looks more like dog (over 99%) than cat (under 1%)." + common
    )
    assert (
        reason("cat", "dog", 0.6, 0.3, True, 0.31) == "The model is only 60% sure of cat; it may be dog (30%)." + common
    )
    assert reason("cat", "dog", 0.3, 0.6, False, 0.31) == (
        "Looks more like dog (60%) than cat (30%), but all in all the label is more likely right."
    )
    assert reason("cat", "dog", 0.97, 0.02, False, 0.31) == "The model agrees: cat (97%)."
    every = reasons([0], [1], [0.1], [0.8], [True], np.array([[0.9, 0.1], [0, 1]]), ["cat", "dog"], [LEFT_OUT])
    assert every == [
        "Looks more like dog (80%) than cat (10%). A common mix-up: about 10% of those labelled cat. "
        "The model mostly set it aside as doubtful."
    ]


# --- the shares of the classes and that of the whole


@given(
    st.lists(st.tuples(st.floats(0.001, 0.999), st.integers(1, 500)), min_size=2, max_size=8),
    st.floats(0.001, 0.95),
)
def test_reconciled_shares_add_up_to_the_rate(classes, rate):
    wrong, sizes = (np.array(column) for column in zip(*classes, strict=True))
    count = len(wrong)
    matrix = np.where(np.eye(count) > 0, 1 - wrong[:, None], wrong[:, None] / (count - 1))
    each = [Interval(w, 0.9 * w, min(1.0, 1.1 * w)) for w in wrong]
    whole = Interval(rate, rate / 2, rate)
    noise = reconciled(Noise(Interval(0.5, 0.4, 0.6), each, matrix), whole, sizes)
    after = np.array([share.estimate for share in noise.per_class])
    assert noise.rate == whole and np.average(after, weights=sizes) == pytest.approx(rate, abs=1e-6)
    assert (np.diff(after[np.argsort(wrong, kind="stable")]) >= -1e-12).all()
    assert all(0 <= s.low <= s.estimate <= s.high <= 1 for s in noise.per_class)
    assert all(s.low <= old.low and s.high >= old.high for s, old in zip(noise.per_class, each, strict=True))
    assert np.allclose(noise.matrix.sum(1), 1) and np.allclose(1 - noise.matrix.diagonal(), after, atol=1e-6)


def test_reconciling_by_hand():
    """Odds 1/4 and 1/1 become a third of that: 1/12 and 1/3, shares 1/13 and 1/4."""
    noise = Noise(
        Interval(0.3, 0.2, 0.4), [Interval(0.2, 0.1, 0.3), Interval(0.5, 0.4, 0.6)], np.array([[0.8, 0.2], [0.5, 0.5]])
    )
    sizes = np.array([300, 100])
    rate = (3 / 13 + 1 / 4) / 4
    found = reconciled(noise, Interval(rate, 0.1, 0.2), sizes)
    assert [share.estimate for share in found.per_class] == pytest.approx([1 / 13, 1 / 4])
    assert [share.high for share in found.per_class] == [0.3, 0.6] and found.per_class[1].low == pytest.approx(2 / 11)
    assert np.allclose(found.matrix, [[12 / 13, 1 / 13], [1 / 4, 3 / 4]])
    assert [share.estimate for share in reconciled(noise, Interval(0.0, 0.0, 0.1), sizes).per_class] == pytest.approx(
        [0, 0]
    )
    empty = replace(
        noise, per_class=[Interval(0.0, 0.0, 1.0), Interval(0.5, 0.4, 0.6)], matrix=np.array([[1.0, 0], [0.5, 0.5]])
    )
    found = reconciled(empty, Interval(0.25, 0.1, 0.3), np.array([0, 100]))
    assert found.per_class[0] == (0, 0, 1) and found.per_class[1].estimate == pytest.approx(0.25)
