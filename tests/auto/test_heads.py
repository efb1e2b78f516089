"""Automatic training on features: photographs, texts, features in files; interrupted, moved, predicted, reviewed."""

import csv
import json
import shutil

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

import labelsieve
from labelsieve import catalogue
from labelsieve.auto import heads as heads_module
from labelsieve.auto import request as request_module
from labelsieve.auto.judge import opinion_on
from labelsieve.cli import execute
from labelsieve.review.decisions import Decision, DecisionLog, decisions_path
from labelsieve.runs.read import read_judgment, read_run, read_samples
from tests.auto.conftest import save_photos

PER_CLASS = 48


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Return a folder of photographs of coloured patterns; every fourth green one lies in the folder of the blue."""
    return save_photos(tmp_path_factory.mktemp("photos"), per_class=PER_CLASS)


@pytest.fixture(scope="module")
def run(photos, tmp_path_factory):
    """Return a finished automatic run on these photographs, with nothing named but the folder."""
    out = tmp_path_factory.mktemp("runs") / "run"
    assert execute(["train", str(photos), "--threads", "1", "--out", str(out)]) == 0
    return out


def labels_of(folder):
    with (folder / "labels.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_wrong_labels_are_found_and_the_model_is_not_misled(run):
    rows = labels_of(run / "audit")
    wrong = {row["id"] for row in rows if row["given_label"] not in row["id"].rpartition("/")[2]}
    assert len(wrong) == PER_CLASS // 4
    found = {row["id"] for row in rows if row["is_label_issue"] == "true"}
    assert found <= wrong and len(found) >= len(wrong) - 2
    assert {row["id"] for row in rows[: len(wrong)]} == wrong  # the most suspicious
    assert {row["suggested_label"] for row in rows if row["id"] in wrong} == {"green"}
    assert read_run(run).end["last"] == 0
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "logistic regression on features of lite0+lite2" in page and "1 epochs" not in page
    assert read_run(run).spec["backbone"] == "lite0+lite2"


def test_every_sample_is_judged_by_heads_that_did_not_learn_it(run):
    judgment, samples = read_judgment(run), read_samples(run)
    assert judgment is not None and samples is not None
    opinion = opinion_on(run, samples, 3)
    assert opinion.out_of_sample and opinion.second is not None
    np.testing.assert_array_equal(opinion.guesses.confidence, judgment["first/confidence"])
    np.testing.assert_array_equal(opinion.second.confidence, judgment["second/confidence"])
    assert len(judgment["first/confidence"]) == 3 * PER_CLASS


def test_same_command_again_decodes_nothing(run, photos, capsys, monkeypatch):
    monkeypatch.setattr(heads_module, "judge_features", None)
    assert execute(["train", str(photos), "--threads", "1", "--out", str(run)]) == 0
    assert "already trained" in capsys.readouterr().out


def test_interrupted_after_the_heads_continues_there(run, photos, tmp_path, monkeypatch):
    partial = tmp_path / "partial"
    (partial / "heads").mkdir(parents=True)
    for file in (run / "heads").iterdir():
        shutil.copy(file, partial / "heads")
    monkeypatch.setattr(heads_module, "judge_features", None)  # would fail
    assert execute(["train", str(photos), "--threads", "1", "--out", str(partial)]) == 0
    assert (partial / "audit" / "labels.csv").read_bytes() == (run / "audit" / "labels.csv").read_bytes()


def test_predictions_of_command_and_python_agree(run, photos, tmp_path):
    out = tmp_path / "predicted.csv"
    assert execute(["predict", str(run), str(photos / "test"), "--out", str(out)]) == 0
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 18 and all(row["predicted_label"] in row["id"] for row in rows)
    predictor = labelsieve.load(run)
    first = np.asarray(Image.open(photos / "test" / "blue" / "blue0.jpg"))[None]
    assert predictor.classes[predictor.predict(first)[0]] == "blue"
    by_path = predictor.predict_proba([photos / "test" / "blue" / "blue0.jpg"])  # decoded by the rule of the command
    np.testing.assert_allclose(by_path, predictor.predict_proba(first), atol=0.01)
    with pytest.raises(ValueError, match=r"the shape \(70, 80, 3\) is that of one image; pass images\[None\]"):
        predictor.predict(first[0])
    assert execute(["predict", str(run), str(photos / "test" / "red" / "red1.jpg")]) == 0


def test_model_needs_no_extra_once_it_is_trained(run, photos, tmp_path, monkeypatch):
    monkeypatch.setattr(catalogue, "default_backbone", lambda kind: None)
    monkeypatch.setattr("labelsieve.features.backbones.find_spec", lambda name: None)
    moved = tmp_path / "elsewhere"
    shutil.copytree(run, moved)
    assert execute(["predict", str(moved), str(photos / "test"), "--out", str(tmp_path / "p.csv")]) == 0


def test_two_networks_are_exported_together_and_start_no_single_one(run, photos, tmp_path, capsys):
    assert execute(["export", str(run), "--out", str(tmp_path / "model.onnx")]) == 0
    assert "probabilities differ from labelsieve predict by at most" in capsys.readouterr().out
    assert execute(["export", str(run), "--format", "huggingface", "--out", str(tmp_path / "hub")]) == 2
    assert "train with --backbone lite2 for --format huggingface" in capsys.readouterr().err
    start = ["--init", str(run), "--model", "lite0", "--noise-rate", "0.2", "--out", str(tmp_path / "one")]
    assert execute(["train", str(photos), *start]) == 2
    assert "has another shape than that of this experiment" in capsys.readouterr().err


def test_moved_run_is_audited(run, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(run, moved)
    assert execute(["audit", str(moved), "--export", "corrected"]) == 0
    assert labels_of(moved / "audit") == labels_of(run / "audit")


def test_partly_reviewed_run_is_judged_by_the_labels_before(run, photos, tmp_path):
    """The next run judges the labels as they were given; decisions stay, through two reviews."""
    first = tmp_path / "first"
    shutil.copytree(run, first)
    suspects = [row for row in labels_of(first / "audit") if row["is_label_issue"] == "true"]
    for number, part in enumerate((suspects[:4], suspects[4:6])):
        source, file, out = (tmp_path / name for name in (("first", "1.csv", "1"), ("1", "2.csv", "2"))[number])
        for row in part:
            made = Decision(int(row["index"]), row["id"], "accept", row["suggested_label"], "now", "t")
            DecisionLog(decisions_path(source)).append(lambda past, made=made: [made])
        assert execute(["review", str(source), "--export", str(file)]) == 0
        command = ["train", str(photos), "--labels", str(file), "--threads", "1", "--out", str(out)]
        assert execute(command) == 0
    with (tmp_path / "2.csv").open(encoding="utf-8") as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    given = {row["id"]: row["given_label"] for row in labels_of(run / "audit")}
    assert {name: row["given_label"] for name, row in rows.items()} == given
    changed = {row["id"]: row["suggested_label"] for row in suspects[:6]}
    assert {name: row["label"] for name, row in rows.items()} == {**given, **changed}
    assert {name for name, row in rows.items() if row["decided"] == "true"} == set(changed)
    one, two = read_judgment(run), read_judgment(tmp_path / "2")
    np.testing.assert_array_equal(one["first/confidence"], two["first/confidence"])  # of the labels as given
    found = {row["id"] for row in labels_of(tmp_path / "2" / "audit") if row["is_label_issue"] == "true"}
    left = {row["id"] for row in suspects[6:]}
    assert found <= left and len(left - found) <= 1  # the second round learns from the decisions
    assert execute(["audit", str(tmp_path / "2"), "--out", str(tmp_path / "again")]) == 0
    assert labels_of(tmp_path / "again") == labels_of(tmp_path / "2" / "audit")


def test_features_of_a_file_give_the_same_audit(run, photos, tmp_path):
    file, out = tmp_path / "features.npz", tmp_path / "run"
    assert execute(["embed", str(photos), "--out", str(file)]) == 0
    command = ["train", str(photos), "--features", str(file), "--threads", "1", "--out", str(out)]
    assert execute(command) == 0
    expected, found = labels_of(run / "audit"), labels_of(out / "audit")
    assert [row["id"] for row in found] == [row["id"] for row in expected]
    assert [row["label_quality"] for row in found] == [row["label_quality"] for row in expected]


def test_requested_method_trains_on_features(photos, tmp_path, capsys):
    out = tmp_path / "run"
    command = ["train", str(photos), "--method", "mentornet-prop", "--noise-rate", "0.1", "--epochs", "2"]
    assert execute([*command, "--warmup", "1", "--threads", "1", "--out", str(out)]) == 0
    assert read_run(out).start["model"] == "mlp"
    assert "Without it, linear heads judge every label" in capsys.readouterr().out
    assert execute(["predict", str(out), str(photos / "test"), "--out", str(tmp_path / "p.csv")]) == 0


def test_plain_logistic_regression_has_no_heads(tmp_path, capsys):
    values = np.random.default_rng(0).normal(size=(90, 4)).astype(np.float32)
    np.savez(tmp_path / "table.npz", features=values, labels=(values[:, 0] > 0).astype(int))
    out = tmp_path / "run"
    command = ["train", str(tmp_path / "table.npz"), "--model", "linear", "--method", "default", "--test", "0.3"]
    assert execute([*command, "--out", str(out)]) == 0
    assert read_run(out).end["last"] < 10 and not (out / "heads").exists()
    assert execute([*command, "--dry-run", "--out", str(out)]) == 0
    assert "method:  logistic regression" in capsys.readouterr().out
    assert execute(["audit", str(out)]) == 0


def test_without_backbone_the_first_line_says_what_is_missing(photos, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(request_module, "default_backbone", lambda kind: None)
    assert execute(["train", str(photos), "--dry-run", "--size", "16", "--out", str(tmp_path / "run")]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("No pretrained backbone is installed") and "labelsieve[photos]" in first


def test_named_network_and_none_train_on_images(photos, tmp_path, capsys):
    for named in (["--model", "small"], ["--backbone", "none"]):
        assert execute(["train", str(photos), *named, "--size", "16", "--dry-run", "--out", str(tmp_path / "r")]) == 0
        assert "features" not in capsys.readouterr().out


def test_features_and_backbone_together_are_refused(photos, capsys):
    assert execute(["train", str(photos), "--features", "x.npy", "--backbone", "lite0"]) == 2
    assert "omit --backbone" in capsys.readouterr().err


def test_texts_are_trained_audited_and_predicted(tmp_path):
    greetings = ["good morning to you", "hello my friend", "welcome, nice to see you", "hi there, how are you"]
    orders = ["two tickets to Paris", "a table for four at eight", "book a room with a view", "order three pizzas"]
    kinds = ((greetings, "greeting"), (orders, "order"))
    rows = [(f"{text}, number {at}", label) for at in range(12) for texts, label in kinds for text in texts]
    wrong = {3, 20, 41}
    file = tmp_path / "texts.csv"
    with file.open("w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(["text", "label"])
        other = {"greeting": "order", "order": "greeting"}
        writer.writerows((text, other[label] if at in wrong else label) for at, (text, label) in enumerate(rows))
    out = tmp_path / "run"
    assert execute(["train", str(file), "--threads", "1", "--out", str(out)]) == 0
    found = labels_of(out / "audit")
    assert {int(row["index"]) for row in found if row["is_label_issue"] == "true"} == wrong
    assert found[0]["text"] == rows[int(found[0]["index"])][0]
    predictor = labelsieve.load(out)
    assert [predictor.classes[k] for k in predictor.predict(["hello and welcome", "order two rooms"])] == [
        "greeting",
        "order",
    ]
    (tmp_path / "new.csv").write_text("text\nhello my dear friend\n")
    assert execute(["predict", str(out), str(tmp_path / "new.csv"), "--out", str(tmp_path / "p.csv")]) == 0
    assert "greeting" in (tmp_path / "p.csv").read_text()


def test_a_class_that_the_heads_cannot_learn_keeps_its_labels(tmp_path, capsys):
    """Three samples of class 2 look like those of class 0: no head tells them apart."""
    random = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], [90, 90, 3])
    features = random.normal(size=(183, 10)).astype(np.float32)
    features[:, 0] += np.where(labels == 1, 8, 0)
    np.savez(tmp_path / "few.npz", images=np.zeros((183, 2, 2, 3), np.uint8), labels=labels)
    np.save(tmp_path / "features.npy", features)
    out = tmp_path / "run"
    command = ["train", str(tmp_path / "few.npz"), "--features", str(tmp_path / "features.npy"), "--threads", "1"]
    assert execute([*command, "--out", str(out)]) == 0
    said = "Most labels of 2 look wrong, and correcting them would leave almost no samples: the model has probably"
    assert capsys.readouterr().out.count(said) == 2  # after the stage, and in the verdict
    targets = np.load(out / "heads" / "targets.npy")
    assert (targets[labels == 2] == [0, 0, 1]).all() and (targets[labels == 0].argmax(1) == 0).all()
    assert execute(["audit", str(out), "--export", "corrected"]) == 0
    corrected = list(csv.DictReader((out / "audit" / "corrected.csv").read_text(encoding="utf-8").splitlines()))
    assert [row["label"] for row in corrected[-3:]] == ["2"] * 3
    assert [row["is_label_issue"] for row in labels_of(out / "audit") if row["given_label"] == "2"] == ["true"] * 3


@pytest.fixture
def clusters_of_features(tmp_path):
    """Return a command that trains on the features of two classes, a fifth of whose labels are wrong."""
    random = np.random.default_rng(0)
    true = np.arange(200) % 2
    features = random.normal(size=(200, 6)).astype(np.float32) + 4 * true[:, None]
    labels = np.where(np.arange(200) < 40, 1 - true, true)
    np.savez(tmp_path / "data.npz", images=np.zeros((200, 2, 2, 3), np.uint8), labels=labels)
    np.save(tmp_path / "features.npy", features)
    return ["train", str(tmp_path / "data.npz"), "--features", str(tmp_path / "features.npy"), "--threads", "1"]


def test_head_learns_the_given_labels_if_no_final_training_is_wanted(clusters_of_features, tmp_path, capsys):
    command = [*clusters_of_features, "--out", str(tmp_path / "run")]
    assert execute([*command, "--no-final"]) == 0
    shown = capsys.readouterr().out
    assert "fit the delivered head to the given labels" in shown and "true classes" not in shown
    assert "linear heads that were not trained on it" in shown and "that were not trained on them" in shown
    plain = [*clusters_of_features, "--model", "linear", "--method", "default", "--out", str(tmp_path / "plain")]
    assert execute(plain) == 0  # logistic regression on the given labels
    weights, expected = (load_file(tmp_path / name / "model.safetensors") for name in ("run", "plain"))
    assert weights.keys() == expected.keys() and all((weights[name] == expected[name]).all() for name in weights)
    labels = np.load(tmp_path / "data.npz")["labels"]
    assert execute([*command[:-1], str(tmp_path / "other")]) == 0
    assert (np.load(tmp_path / "other" / "heads" / "targets.npy").argmax(1) != labels).sum() == pytest.approx(40, abs=4)


@pytest.mark.parametrize("first", ["--final", "--no-final"])
def test_run_with_other_targets_is_refused_and_keeps_its_judgment(clusters_of_features, tmp_path, capsys, first):
    """Also if the judgment is damaged and the request is missing: the head says which targets it learned."""
    out = tmp_path / "run"
    command = [*clusters_of_features, "--out", str(out)]
    other, how = ("--no-final", "with") if first == "--final" else ("--final", "without")
    assert execute([*command, first]) == 0
    judged = (out / "heads" / "targets.npy").read_bytes()
    for damaged in (False, True):
        if damaged:
            (out / "heads" / "summary.json").write_text("")
            (out / "request.json").unlink()
        assert execute([*command, other]) == 2
        assert f"was trained {how} corrected labels; name another --out" in capsys.readouterr().err
        assert (out / "heads" / "targets.npy").read_bytes() == judged
    assert execute([*command, first]) == 0  # the labels are judged again
    assert "already trained" in capsys.readouterr().out
    assert (out / "heads" / "targets.npy").read_bytes() == judged


def test_settings_that_heads_do_not_have_are_named_and_hold_nothing_out(clusters_of_features, tmp_path, capsys):
    command = [*clusters_of_features, "--out", str(tmp_path / "run")]
    given = ["--valid", "0.2", "--sampler", "independent", "--lr", "0.2", "--augment", "flip"]
    assert execute([*command, *given]) == 0
    shown = capsys.readouterr()
    assert "warning: --lr, --valid, --sampler and --augment have no effect: linear heads" in shown.err
    assert "held out" not in shown.out and len(labels_of(tmp_path / "run" / "audit")) == 200
    for others in ([], ["--batch", "64", "--weight-decay", "0.1", "--normalise", "imagenet"]):
        assert execute([*command, *others]) == 0  # the same run
        assert "already trained" in capsys.readouterr().out


def test_augmented_table_is_refused_before_the_first_stage(tmp_path, capsys):
    values = np.random.default_rng(0).normal(size=(90, 4)).astype(np.float32)
    np.savez(tmp_path / "table.npz", features=values, labels=(values[:, 0] > 0).astype(int))
    out = tmp_path / "run"
    command = ["train", str(tmp_path / "table.npz"), "--augment", "flip", "--threads", "1", "--out", str(out)]
    assert execute(command) == 2
    assert "the data is a table of numbers; remove --augment" in capsys.readouterr().err and not out.exists()


def test_linear_model_of_photographs_is_one_on_their_features(photos, capsys, monkeypatch):
    assert execute(["train", str(photos), "--model", "linear", "--dry-run"]) == 0
    assert "judge every label with linear heads" in capsys.readouterr().out
    on_pixels = ["train", str(photos), "--model", "linear", "--backbone", "none", "--dry-run"]
    for extra in ([], ["--method", "default"], ["--method", "mentornet"]):
        assert execute([*on_pixels, *extra]) == 2
        assert "has none: add --backbone or --features" in capsys.readouterr().err
    assert execute([*on_pixels, "--noise-rate", "0"]) == 0  # a network without hidden layers, trained in batches


def test_linear_model_of_photographs_without_features_is_refused_in_one_line(photos, capsys, monkeypatch):
    command = ["train", str(photos), "--model", "linear", "--dry-run"]
    for extra, fix in (["--stream"], "omit --stream, or add"), (["--augment", "flip"], "omit --augment, or add"):
        assert execute([*command, *extra]) == 2
        shown = capsys.readouterr()
        assert f"has none: {fix} --backbone or --features" in shown.err and not shown.out
    monkeypatch.setattr(request_module, "default_backbone", lambda kind: None)
    for extra in [], ["--stream"]:
        assert execute([*command, *extra]) == 2
        shown = capsys.readouterr()
        assert "has none: add --backbone or --features" in shown.err and not shown.out


def test_streaming_says_that_it_uses_no_features(photos, capsys):
    assert execute(["train", str(photos), "--stream", "--dry-run"]) == 0
    assert "--stream trains networks on the images themselves, without pretrained" in capsys.readouterr().out


def test_weak_features_are_said_first_and_correct_nothing(tmp_path, capsys):
    random = np.random.default_rng(0)
    labels = np.arange(400) % 4
    np.savez(tmp_path / "weak.npz", features=random.normal(size=(400, 30)).astype(np.float32), labels=labels)
    out = tmp_path / "run"
    assert execute(["train", str(tmp_path / "weak.npz"), "--model", "linear", "--threads", "1", "--out", str(out)]) == 0
    assert "too weak to judge" in capsys.readouterr().out
    np.testing.assert_array_equal(np.load(out / "heads" / "targets.npy").argmax(1), labels)
    verdict = json.loads((out / "audit" / "summary.json").read_text())["verdict"]
    assert verdict.startswith("The model is too weak to judge")


def test_table_takes_the_better_of_linear_head_and_network(tmp_path, capsys):
    random = np.random.default_rng(1)
    values = random.uniform(-1, 1, (600, 2)).astype(np.float32)
    circle = (np.hypot(*values.T) < 0.7).astype(int)  # no line separates it
    np.savez(tmp_path / "circle.npz", features=values, labels=circle)
    command = ["train", str(tmp_path / "circle.npz"), "--epochs", "12", "--warmup", "6", "--threads", "1"]
    assert execute([*command, "--out", str(tmp_path / "run")]) == 0
    assert "network: mlp (best log-likelihood" in capsys.readouterr().out
    line = (values[:, 0] > 0).astype(int)
    np.savez(tmp_path / "line.npz", features=values, labels=line)
    command[1] = str(tmp_path / "line.npz")
    assert execute([*command, "--out", str(tmp_path / "run2")]) == 0
    assert "network: linear (best log-likelihood" in capsys.readouterr().out


def test_judgment_of_other_data_is_not_used(photos, tmp_path):
    out = tmp_path / "run"
    (out / "heads").mkdir(parents=True)
    (out / "heads" / "summary.json").write_text(json.dumps({"fingerprint": "of other data", "reasons": []}))
    (out / "heads" / "judgment.safetensors").write_bytes(b"")
    assert execute(["train", str(photos), "--threads", "1", "--out", str(out)]) == 0
    assert (read_judgment(out) or {})["first/confidence"].shape == (3 * PER_CLASS,)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ([], "the data or labels changed since"),
        (["--test", "0.2"], "it was trained with --test 0.0, not with --test 0.2"),
        (["--seed", "7"], "it was trained with --seed 0, not with --seed 7"),
    ],
)
def test_refused_command_changes_no_file_of_a_finished_run(run, photos, tmp_path, capsys, change, says):
    done, data = tmp_path / "run", tmp_path / "photos"
    shutil.copytree(run, done)
    shutil.copytree(photos, data)
    if not change:  # a label is corrected
        wrong = next((data / "train" / "blue").glob("*green*"))
        wrong.rename(data / "train" / "green" / wrong.name)
    before = {path: path.read_bytes() for path in done.rglob("*") if path.is_file()}
    assert execute(["train", str(data), "--threads", "1", "--out", str(done), *change]) == 2
    captured = capsys.readouterr()
    assert says in captured.err and captured.err.count("\n") == 1 and "stage" not in captured.out
    assert {path: path.read_bytes() for path in done.rglob("*") if path.is_file()} == before


def test_settings_without_effect_on_heads_are_named(photos, tmp_path, capsys):
    command = ["train", str(photos), "--out", str(tmp_path / "run"), "--dry-run"]
    assert execute([*command, "--epochs", "40", "--lr", "0.1"]) == 0
    assert "warning: --epochs and --lr have no effect: linear heads" in capsys.readouterr().err
    assert execute(command) == 0 and "warning" not in capsys.readouterr().err
    assert execute([*command, "--finetune", "--epochs", "4"]) == 0 and "warning" not in capsys.readouterr().err
