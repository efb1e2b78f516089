"""The command line, in this process and as a real one."""

import json
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import labelsieve
from labelsieve import METHODS
from labelsieve.cli import execute
from labelsieve.runs.folder import differences, typed_as
from labelsieve.runs.read import read_run, read_samples
from labelsieve.runs.spec import Experiment
from tests.conftest import blobs

QUICK = ["--epochs", "2", "--warmup", "1", "--lr", "0.02", "--batch", "32", "--threads", "1", "--model", "small"]


def command(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "labelsieve.cli", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def finish(process, timeout=120):
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


@pytest.fixture
def data(tmp_path):
    train, test = blobs(150, 0), blobs(40, 1)
    arrays = {
        "images": train.images[:, 0].numpy(),
        "labels": train.labels.numpy(),
        "test_images": test.images[:, 0].numpy(),
        "test_labels": test.labels.numpy(),
        "classes": np.array(train.classes),
    }
    np.savez(tmp_path / "data.npz", **arrays)
    return tmp_path / "data.npz"


@pytest.fixture
def run(data, tmp_path):
    out = tmp_path / "run"
    assert execute(["train", str(data), "--noise", "pair", "--rate", "0.3", *QUICK, "--out", str(out)]) == 0
    return out


def test_training_leaves_a_whole_run_folder(run):
    assert sorted(p.name for p in run.iterdir()) == [
        "done",
        "lock",
        "model.safetensors",
        "record.jsonl",
        "samples.safetensors",
        "spec.json",
        "tables.safetensors",
    ]
    start, *epochs, end = [json.loads(line) for line in (run / "record.jsonl").read_text().splitlines()]
    assert [start["event"], *[e["event"] for e in epochs], end["event"]] == ["start", "epoch", "epoch", "end"]
    realised = np.array(start["noise"]["realised"])
    assert realised.sum() == 150 and 1 - np.trace(realised) / 150 == pytest.approx(start["noise"]["realised_rate"])
    assert {"train_loss", "test_error", "precision", "kept", "lr", "seconds"} <= epochs[0].keys()
    assert end["last"] == epochs[-1]["test_error"]
    tables = read_run(run).tables
    assert tables["last/penalty"].shape == (1, 4, 4) and (tables["noise"] == realised).all()
    spec = json.loads((run / "spec.json").read_text())
    assert spec["experiment"]["method"] == "mentornet-prop" and spec["versions"]["torch"]


def test_training_with_a_method_or_rate_says_how_to_get_the_suspects(data, tmp_path, capsys):
    for number, more in enumerate((["--method", "default"], ["--noise-rate", "0.2"])):
        out = tmp_path / f"my run {number}"
        assert execute(["train", str(data), *more, *QUICK, "--out", str(out)]) == 0
        last = capsys.readouterr().out.splitlines()[-1]
        assert last == f"suspects and page: labelsieve report '{out}'"
        assert execute(shlex.split(last)[4:]) == 0
        assert (out / "audit" / "labels.csv").exists() and (out / "report.html").exists()


def test_a_finished_run_is_not_run_again(run, data, capsys):
    before = {path.name: path.stat().st_mtime_ns for path in run.iterdir() if path.name != "lock"}
    assert execute(["train", str(data), "--noise", "pair", "--rate", "0.3", *QUICK, "--out", str(run)]) == 0
    assert "already trained" in capsys.readouterr().out
    assert {path.name: path.stat().st_mtime_ns for path in run.iterdir() if path.name != "lock"} == before


def test_the_delivered_model_predicts(run, data, tmp_path, capsys):
    model = labelsieve.load(run)
    with np.load(data) as file:
        images, labels = file["test_images"], file["test_labels"]
    probs = model.predict_proba(images)
    assert probs.shape == (40, 4) and np.allclose(probs.sum(1), 1, atol=1e-5)
    assert 100 * (model.predict(images) != labels).mean() == pytest.approx(read_run(run).end["last"])
    np.save(tmp_path / "images.npy", images)
    assert execute(["predict", str(run), str(tmp_path / "images.npy"), "--out", str(tmp_path / "p.csv")]) == 0
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert lines[0] == "id,predicted_label,confidence" and len(lines) == 41
    assert lines[1].split(",")[1] == model.classes[model.predict(images)[0]]
    capsys.readouterr()
    assert execute(["predict", str(run), str(data)]) == 0
    assert capsys.readouterr().out.count("\n") == 191  # the training and the test set


def test_a_file_of_ones_own_is_not_written_over(run, data, tmp_path, capsys):
    mine = tmp_path / "mine.csv"
    commands = [["predict", str(run), str(data), "--out"], ["noise", str(data), "--out"], ["report", str(run), "--out"]]
    for writing in commands:
        for text in ("find,label\n1,bone\n", "\nid,predicted_label,confidence\n"):
            mine.write_text(text)
            assert execute([*writing, str(mine)]) == 2
            error = capsys.readouterr().err
            assert f"{mine} is there already" in error and "name another file" in error and error.count("\n") == 1
            assert mine.read_text() == text
        assert execute([*writing, str(tmp_path)]) == 2
        assert f"{tmp_path} is a folder; name a file in it" in capsys.readouterr().err
        mine.write_text("")
        assert execute([*writing, str(mine)]) == 0  # nothing is lost of an empty one
        assert execute([*writing, str(mine)]) == 0  # nor of what it wrote itself
    np.save(tmp_path / "mine.npy", np.zeros(3))
    assert execute(["noise", str(data), "--out", str(tmp_path / "mine.npy")]) == 2
    assert np.load(tmp_path / "mine.npy").shape == (3,)


def test_noise_is_written_and_laid_over(data, tmp_path, capsys):
    labels, out = tmp_path / "labels.csv", tmp_path / "run"
    assert execute(["noise", str(data), "--kind", "symmetry", "--rate", "0.3", "--out", str(labels)]) == 0
    said = capsys.readouterr().out
    arguments = ["train", str(data), "--labels", str(labels), "--noise-rate", "0.3", *QUICK, "--out", str(out)]
    assert execute(arguments) == 0
    laid, own = read_samples(out)["label"], np.load(data)["labels"]
    assert f"{100 * (laid != own).mean():.2f}% changed" in said and (laid != own).any()
    start = json.loads((out / "record.jsonl").read_text().splitlines()[0])
    assert "noise" not in start  # one's own labels are not held to be the truth


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_on_the_embedded_data(method, tmp_path, capsys):
    out = tmp_path / "run"
    noisy = ["--noise", "pair", "--rate", "0.4", "--epochs", "3", "--warmup", "1", "--threads", "1"]
    assert execute(["train", "--method", method, *noisy, "--out", str(out)]) == 0
    done = read_run(out)
    assert done.end["last"] < 70 and len(done.epochs) % 3 == 0
    assert labelsieve.load(out).classes[0] == "T-shirt/top"


def test_a_run_starts_from_the_model_of_another(run, data, tmp_path, capsys):
    out = tmp_path / "second"
    arguments = ["train", str(data), "--noise", "pair", "--rate", "0.3", *QUICK, "--init", str(run), "--out", str(out)]
    arguments[arguments.index("--lr") + 1] = "1e-12"
    assert execute(arguments) == 0
    assert read_run(out).epochs[0]["test_error"] == read_run(run).end["last"]
    assert execute(["train", str(data), "--noise-rate", "0.3", *QUICK[:-1], "densenet-25-12", "--init", str(run)]) == 2
    assert "give the same --model" in capsys.readouterr().err
    assert (
        execute(["train", str(data), "--method", "co-teaching", "--noise-rate", "0.3", *QUICK, "--init", str(run)]) == 2
    )
    assert "networks that differ" in capsys.readouterr().err


def test_dry_run_says_what_it_would_do_and_writes_nothing(data, tmp_path, capsys):
    out = tmp_path / "run"
    assert execute(["train", str(data), "--noise-rate", "0.1", *QUICK, "--out", str(out), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "150 samples of 4 classes, 40 for the test\n" in said and "about" in said and not out.exists()
    assert execute(["train", str(data), "--noise-rate", "0.1", *QUICK, "--test", "0.2", "--dry-run"]) == 0
    assert "40 for the test (the data's own; --test has no effect)" in capsys.readouterr().out


def test_methods_are_listed(capsys):
    assert execute(["methods"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in METHODS) and "lam=1.0" in said and "update=stack" in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["trian"], "did you mean train?"),
        ([], "see labelsieve --help"),
        (["train", "--mehod", "default"], "labelsieve train has no --mehod; did you mean --method?"),
        (["demo", "--batch", "3"], "labelsieve demo has no --batch; "),
        (["train", "--no-final", "--method"], "Missing value for argument '--method'"),
        (["train", "--method", "mentornett"], "did you mean mentornet?"),
        (["train", "--criterion", "oll"], "did you mean ol?"),
        (["train", "--criterion", "foo"], "unknown criterion 'foo': there are: all, margin, ol, pl"),
        (["train", "--model", "smal"], "did you mean small?"),
        (["figure", "x"], "NUMBER wants a whole number, not 'x'; see labelsieve figure --help"),
        (["figure", "--seeds", "2", "1.5"], "NUMBER wants a whole number, not '1.5'; see labelsieve figure --help"),
        (["audit", "runs/nope"], "there is no folder runs/nope; name one that labelsieve train"),
        (["compare", "--methods", ",", "--noise-rate", "0.2"], "--methods names no method; write such as default,"),
        (["table", "2", "--methods", ","], "--methods names nothing; leave it out to have all"),
        (["noise", "--rate", "1.2", "--out", "a.csv"], "noise rate must be in [0, 1], got 1.2"),
        (["train", "--noise", "piar", "--rate", "0.4"], "did you mean pair?"),
        (["train", "--noise-rate", "1.5"], "noise rate must be in [0, 1), got 1.5"),
        (["train", "--noise-rate", "-0.1"], "noise rate must be in [0, 1)"),
        (["train", "--noise-rate", "nan"], "noise rate must be in [0, 1)"),
        (["train", "--noise-rate", "40%"], "--noise-rate"),
        (["train", "--rate", "0.4"], "say --noise too"),
        (["train", "--noise", "pair"], "say --rate"),
        (["train", "--noise", "pair", "--rate", "0.4", "--noise-map", "1:2"], "goes with asymmetric noise"),
        (["train", "--epochs", "3", "--warmup", "3"], "leaves none of 3 to select samples in"),
        (["train", "--lam", "2", "--set", "lam=0.5"], "the option lam is given twice"),
        (["train", "--set", "lam=abc"], "option lam cannot be 'abc'"),
        (["train", "--threads", "0"], "threads must be at least 1"),
        (["train", "--precision", "bf16", "--device", "cpu"], "bf16 needs a GPU"),
        (["demo", "--noise", "foo"], "unknown noise 'foo'"),
        (["methods", "selfi"], "did you mean selfie?"),
        (["train", "--noise", "pair", "--rate", "1.2", "--noise-rate", "0.4"], "noise rate must be in [0, 1]"),
        (["train", "--epochs", "0"], "epochs must be at least 1"),
        (["train", "--epochs", "1.5"], "--epochs"),
        (["train", "--batch", "-1"], "batch must be at least 1"),
        (["train", "--lr", "nan"], "lr must be a number above 0"),
        (["train", "--weight-decay", "-1"], "weight decay must be a number from 0 on"),
        (["train", "--lam", "-1"], "lam must be a number of at least 0"),
        (["train", "--seed", "-1"], "seed must be at least 0"),
        (["train", "--valid", "1"], "valid must be in [0, 1)"),
        (["train", "--test", "20"], "test must be in [0, 1), got 20; 0.2 is a fifth"),
        (["train", "--precision", "fp8"], "precision must be fp32 or bf16"),
        (["train", "--device", "tpu"], "try --device cpu"),
        (["train", "--set", "lam"], "an option is name=value"),
        (["train", "--set", "bta=0.3"], "has no option 'bta'; it has: floor, align, lam, update, compensate"),
        (["train", "gone.npz", "--noise-rate", "0.1"], "cannot read gone.npz"),
        (["train", "fashionn", "--noise-rate", "0.1"], "one of: fashion"),
        (["train", "--labels", "gone.csv", "--noise-rate", "0.1"], "cannot read gone.csv"),
        (["train", "--noise", "gone.npy", "--noise-rate", "0.1"], "cannot read gone.npy"),
        (["train", "--noise", "asymmetric", "--rate", "0.4", "--noise-map", "1-2", "--noise-rate", "0.1"], "9:1,2:0"),
        (["predict", "nowhere", "fashion"], "no model at nowhere"),
        (["demo", "--methods", "default,nothing"], "unknown method 'nothing'"),
        (["demo", "--seeds", "0"], "seeds must be at least 1"),
        (["compare", "--rate", "0.2"], "say --noise too"),
        (["compare"], "say --noise-rate"),
        (["compare", "--noise", "T.npy"], "write labels with `labelsieve noise` first"),
        (["compare", "--noise", "asymmetric", "--rate", "0.2"], "not asymmetric; write labels"),
        (["train", "--noise", "T.csv", "--rate", "0.2"], "T.csv says itself how many labels become wrong"),
        (["compare", "--noise", "pair", "--rate", "0.2", "--methods", "selfi"], "unknown method 'selfi'"),
        (["bench", "--side", "two"], "--side takes numbers"),
        (["bench", "--methods", "nothing"], "unknown method 'nothing'"),
        (["bench", "--epochs", "0"], "--epochs and --side must be at least 1"),
        (["noise", "--out", "gone/labels.csv"], "cannot write gone/labels.csv"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert execute(arguments) == 2
    error = capsys.readouterr().err
    assert says in error and error.startswith("error: ") and error.count("\n") == 1 and len(error) < 400
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("typed", "path"),
    [
        ("train Fotos 2026/ --skip-bad", "'Fotos 2026/'"),
        ("check Fotos 2026", "'Fotos 2026'"),
        ("predict runs/mine --device cpu Fotos 2026/im Mai", "'Fotos 2026/im Mai'"),
        ("train Fotos 26", None),
        ("train " + " ".join(["a" * 200] * 2000), None),
        ("train Fotos --skipbad 2026", None),
    ],
)
def test_a_path_with_blanks_wants_quotes(typed, path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Fotos 2026" / "im Mai").mkdir(parents=True)
    assert execute(typed.split()) == 2
    error = capsys.readouterr().err
    assert ("put quotes" in error) is (path is not None)
    assert path is None or error == f"error: put quotes around a path with blanks: {path}\n"


def test_a_noise_rate_is_a_number_or_auto(data, capsys):
    assert execute(["train", str(data), "--noise-rate", "half"]) == 2
    assert capsys.readouterr().err == "error: --noise-rate is a number from 0 to 1, or auto, got 'half'\n"


def test_a_folder_of_another_run_is_not_touched(run, data, capsys):
    before = (run / "record.jsonl").read_bytes()
    assert execute(["train", str(data), "--noise", "pair", "--rate", "0.2", *QUICK, "--out", str(run)]) == 2
    error = capsys.readouterr().err
    assert "is another run: it was trained with --rate 0.3, not with --rate 0.2; name another --out" in error
    assert (run / "record.jsonl").read_bytes() == before


def test_the_most_telling_difference_between_runs_is_told_in_the_words_that_people_type():
    old = Experiment(noise_rate=0.181, options=(("floor", 0.5),), valid=0.1)

    def told(data="a", **changed):
        new = {"experiment": replace(old, **changed).as_dict(), "data": data}
        was = {"experiment": old.as_dict(), "data": "a"}
        return [f"{typed_as(name, a)}, {typed_as(name, b)}" for name, a, b in differences(was, new)]

    assert told(noise_rate=0.15, options=(), valid=0.0) == [
        "with --noise-rate 0.181, with --noise-rate 0.15",
        "with --valid 0.1, with --valid 0.0",
        "with --set floor=0.5, without --set",
    ]
    assert told(skip_bad=True, seed=3) == ["with --seed 0, with --seed 3", "without --skip-bad, with --skip-bad"]
    assert told(criterion="ol", drop_last=True) == [
        "without --criterion, with --criterion ol",
        "without drop_last, with drop_last",
    ]
    assert told(data="b") == ["on data and labels of fingerprint a, on data and labels of fingerprint b"]
    assert told(data="/elsewhere") and not told(workers=3)


def test_data_that_changed_is_noticed(run, data, capsys):
    with np.load(data) as file:
        arrays = dict(file)
    arrays["images"][0, 0, 0] ^= 1
    np.savez(data, **arrays)
    assert execute(["train", str(data), "--noise", "pair", "--rate", "0.3", *QUICK, "--out", str(run)]) == 2
    assert "is another run: it was trained on data and labels of fingerprint" in capsys.readouterr().err


def test_a_folder_with_other_files_is_not_touched(tmp_path, data, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    assert execute(["train", str(data), "--noise-rate", "0.1", *QUICK, "--out", str(tmp_path / "out")]) == 2
    assert "holds other files (thesis.tex)" in capsys.readouterr().err


def test_a_refused_folder_stays_as_it_was(tmp_path, data):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    assert execute(["train", str(data), "--noise-rate", "0.1", *QUICK, "--out", str(tmp_path / "out")]) == 2
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["notes.txt"]


def test_moved_data_is_the_same_data(run, data, capsys):
    moved = data.rename(data.with_name("moved.npz"))
    assert execute(["train", str(moved), "--noise", "pair", "--rate", "0.3", *QUICK, "--out", str(run)]) == 0
    assert "already trained" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"images": np.zeros((150, 3, 20, 24), np.uint8)}, "channels first"),
        ({"test_images": np.zeros((40, 9, 8), np.uint8)}, "the test images are (1, 9, 8)"),
        ({"test_labels": None}, "has no 'test_labels'"),
    ],
)
def test_images_that_do_not_fit_are_refused(data, change, says, tmp_path, capsys):
    with np.load(data) as file:
        arrays = {**file, **change}
    np.savez(data, **{key: value for key, value in arrays.items() if value is not None})
    assert execute(["train", str(data), "--noise-rate", "0.1", *QUICK, "--out", str(tmp_path / "run")]) == 2
    assert says in capsys.readouterr().err


def test_images_too_small_for_the_network_are_refused(tmp_path, capsys):
    np.savez(tmp_path / "tiny.npz", images=np.zeros((9, 1, 1), np.uint8), labels=np.arange(9) % 3)
    command = ["train", str(tmp_path / "tiny.npz"), "--noise-rate", "0.1", "--model", "densenet-25-12"]
    assert execute([*command, "--out", str(tmp_path / "run")]) == 2
    assert "densenet-25-12 cannot take images of 1 x 1 pixels" in capsys.readouterr().err


def test_what_was_understood_is_said_first(run, data, capsys, tmp_path):
    arguments = ["train", str(data), "--noise-rate", "0.1", *QUICK, "--out", str(tmp_path / "other")]
    assert execute(arguments) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("data: ") and "150 samples of 4 classes" in said[0]
    assert "told that 10% of the labels are wrong; warm-up of 1 epochs" in said[1]
    assert "the model of epoch 2" in "".join(said)


def test_a_damaged_model_is_refused(run, capsys):
    (run / "model.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00{}      ")
    assert execute(["predict", str(run), "fashion"]) == 2
    assert "is not a model of labelsieve, or it is damaged" in capsys.readouterr().err


def test_images_of_another_size_are_refused(run, tmp_path, capsys):
    assert execute(["predict", str(run), "fashion"]) == 2
    assert "trained on images of 8 x 8 pixels with 1 channels, got 28 x 28 with 1" in capsys.readouterr().err
    (tmp_path / "rows.csv").write_text("a,b,label\n1,2,x\n3,4,y\n")
    assert execute(["predict", str(run), str(tmp_path / "rows.csv")]) == 2
    said = "the model was trained on images of 8 x 8 pixels, these are rows of 2 numbers"
    assert said in capsys.readouterr().err
    import labelsieve

    with pytest.raises(ValueError, match="got 9 x 9 with 1; one image alone"):
        labelsieve.load(run).predict(np.zeros((2, 9, 9), np.uint8))


def test_divergence_is_one_line_and_exit_code_3(data, tmp_path, capsys):
    arguments = ["train", str(data), "--noise-rate", "0.1", *QUICK, "--out", str(tmp_path / "run")]
    arguments[arguments.index("--lr") + 1] = "1e30"
    assert execute(arguments) == 3
    error = capsys.readouterr().err
    assert "training diverged" in error and "Lower --lr" in error and error.count("\n") == 1


def test_compare_makes_a_table_of_ones_own_data(data, tmp_path, capsys):
    out = tmp_path / "compare"
    small = ["--model", "small", "--epochs", "3", "--warmup", "1", "--device", "cpu"]
    command = ["compare", str(data), "--methods", "default,mentornet-prop", "--noise", "pair", "--rate", "0.3"]
    assert execute([*command, "--seeds", "2", "--out", str(out), *small]) == 0
    said = capsys.readouterr().out
    assert "4 runs: default, mentornet-prop; 30% pair noise; 2 seeds" in said
    assert "mentornet-prop minus default" in said and (out / "table.md").read_text().count("| 2 |") == 2
    assert (out / "pair-0.3.png").stat().st_size > 10_000
    assert len(list(out.glob("*/done"))) == 4


def test_bench_measures_and_writes(tmp_path, capsys):
    out = tmp_path / "deep" / "bench.json"
    command = ["bench", "--device", "cpu", "--methods", "default,mentornet-prop", "--epochs", "1", "--out", str(out)]
    assert execute(command) == 0
    found = json.loads(out.read_text())
    assert [row["way"] for row in found["epochs"]] == ["plain loop, fp32", "eager, fp32"]
    assert all(row["seconds"] > found["floor"]["seconds_by_bytes"] > 0 for row in found["epochs"])
    assert [(s["method"], s["classes"]) for s in found["steps"]][:2] == [("default", 10), ("mentornet-prop", 10)]
    assert {"device", "torch", "commit", "date"} <= set(found)
    assert "x plain" in capsys.readouterr().out


def test_a_bug_is_one_line_and_a_log(monkeypatch, capsys):
    import labelsieve.sweep.compare

    monkeypatch.setattr(labelsieve.sweep.compare, "compare", None)
    assert execute(["demo"]) == 1
    error = capsys.readouterr().err
    assert "a bug in labelsieve (TypeError) at " in error and error.count("\n") == 1
    assert re.search(r"/labelsieve/cli.py:\d+: 'NoneType' object is not callable; please report it with", error)
    log = Path(error.split()[-1])
    assert "'NoneType' object is not callable" in log.read_text()
    log.unlink()


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ("undefined_name", "(NameError) at {file}:{line}: name 'undefined_name' is not defined; please report it"),
        ("torch.zeros(2) @ torch.zeros(3)", "(RuntimeError) at {file}:{line}: inconsistent tensor size, expected"),
    ],
)
def test_an_error_in_a_changed_method_names_its_line(broken, says, monkeypatch, tmp_path, capsys):
    """A line that somebody has added to the package, the innermost of the package's own."""
    from labelsieve import errors, methods

    place = tmp_path / "labelsieve" / "methods.py"
    place.parent.mkdir()
    place.write_text(f"import torch\n\n\ndef gce(p, criterion=None):\n    return {broken}\n")
    scope = {}
    exec(compile(place.read_text(), place, "exec"), scope)
    monkeypatch.setattr(errors, "PACKAGE", str(place.parent))
    monkeypatch.setattr(errors, "NOT_ONES_OWN", (*errors.NOT_ONES_OWN, str(place.parent), str(Path(__file__).parent)))
    monkeypatch.setitem(methods.METHODS, "gce", scope["gce"])
    assert execute(["train", "--method", "gce", "--noise-rate", "0.1", "--out", str(tmp_path / "run")]) == 1
    error = capsys.readouterr().err
    assert "a bug in labelsieve " + says.format(file=place, line=5) in error and error.count("\n") == 1
    Path(error.split()[-1]).unlink()


def test_an_error_in_ones_own_network_is_not_called_a_bug_of_ours(tmp_path, monkeypatch, capsys):
    code = """
    from torch import nn


    class Mine(nn.Module):
        def __init__(self, shape, num_classes):
            super().__init__()
            self.linear = nn.Linear(shape[0] * shape[1] * shape[2], num_classes)

        def forward(self, x):
            if len(x) > 10:
                raise KeyError("colour")
            return self.linear(x.flatten(1))
    """
    (tmp_path / "mine_raises.py").write_text(textwrap.dedent(code))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    command = ["train", "--model", "mine_raises:Mine", "--noise-rate", "0.1", "--epochs", "1", "--warmup", "0"]
    assert execute([*command, "--device", "cpu", "--out", "run"]) == 1
    error = capsys.readouterr().err
    assert f"{tmp_path}/mine_raises.py:12 raised KeyError: 'colour'; the whole traceback is in " in error
    assert error.count("\n") == 1
    Path(error.split()[-1]).unlink()


@pytest.mark.parametrize(
    ("command", "usage"),
    [
        ("train", "[DATA]"),
        ("compare", "[DATA]"),
        ("bench", "[DATA]"),
        ("noise", "[DATA]"),
        ("methods", "[NAME]"),
        ("audit", "[RUN]"),
        ("check", "DATA"),
        ("predict", "RUN DATA"),
    ],
)
def test_usage_says_what_may_be_left_out(command, usage, capsys):
    with pytest.raises(SystemExit):
        execute([command, "--help"])
    assert f" {usage}" in capsys.readouterr().out.splitlines()[0]


def test_help_imports_nothing_heavy():
    """torch alone takes seconds; what --help imports must stay light."""
    script = (
        "import sys; from labelsieve.cli import execute\n"
        "try: execute(['train', '--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'matplotlib', 'safetensors'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "--noise-rate" in done.stdout


def long_run(data, out, *more):
    arguments = ["train", data, "--noise", "pair", "--rate", "0.3", *QUICK, "--out", out, *more]
    return command(*arguments)


def wait_for_epochs(path, epochs, process):
    for _ in range(1200):
        if path.exists() and path.read_bytes().count(b'"event": "epoch"') >= epochs:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    raise AssertionError("the run did not get there in time")


def comparable(run):
    rows = [json.loads(line) for line in (run / "record.jsonl").read_text().splitlines()]
    return [{key: row[key] for key in row if key != "seconds"} for row in rows if row["event"] != "resume"]


def resumed(run):
    rows = [json.loads(line) for line in (run / "record.jsonl").read_text().splitlines()]
    return sum(row["event"] == "resume" for row in rows)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", "x", "--epochs", "five"], "--epochs wants a whole number, not 'five'"),
        (["train", "x", "--epochs=1.5"], "--epochs wants a whole number, not '1.5'"),
        (["train", "x", "--seed", "q"], "--seed wants a whole number, not 'q'"),
        (["train", "x", "--lr", "high"], "--lr wants a number, not 'high'"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named(words, says, capsys):
    assert execute(words) == 2
    assert capsys.readouterr().err == f"error: {says}; see labelsieve train --help\n"


def test_kill_minus_9_and_resume_ends_in_the_same_bits(data, tmp_path):
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    more = ("--epochs", "60", "--warmup", "20", "--valid", "0.2", "--model", "densenet-25-12")
    more = (*more[:-1], "small")
    code, _, error = finish(long_run(data, whole, *more))
    assert code == 0, error
    for epochs in (1, 17, 23, 48):
        process = long_run(data, pieces, *more)
        wait_for_epochs(pieces / "record.jsonl", epochs, process)
        process.kill()
        process.communicate()
        assert not (pieces / "done").exists()
    code, out, error = finish(long_run(data, pieces, *more))
    assert code == 0, error
    assert "epoch 60/60" in out and "epoch 1/60" not in out
    assert comparable(pieces) == comparable(whole)
    assert resumed(whole) == 0
    assert 3 <= resumed(pieces) <= 4  # the first kill may have come before the first checkpoint
    for name in ("tables.safetensors", "samples.safetensors", "model.safetensors"):
        assert (pieces / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.parametrize(
    ("typed", "place", "says"),
    [
        ("check x", "check.check", "stopped by Ctrl-C"),
        ("predict run x", "classify.classify", "stopped by Ctrl-C"),
        ("train x", "asked.from_options", "stopped by Ctrl-C; the same command goes on"),
        ("table small", "reproduce.reproduce", "stopped by Ctrl-C; the same command goes on"),
    ],
)
def test_only_what_goes_on_says_so_when_it_is_stopped(typed, place, says, monkeypatch, capsys):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"labelsieve.experiments.{place}", stopped)
    assert execute(typed.split()) == 130
    assert capsys.readouterr().err == f"error: {says}\n"


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_a_signal_ends_a_real_run_whole(data, tmp_path, number, name):
    out = tmp_path / "run"
    process = long_run(data, out, "--epochs", "5000")
    wait_for_epochs(out / "record.jsonl", 2, process)
    process.send_signal(number)
    code, _, error = finish(process, timeout=20)
    assert code == 128 + number
    assert error.startswith(f"error: stopped by {name}") and error.count("\n") == 1
    assert (out / "checkpoints").exists() and not (out / "done").exists()


def test_a_run_folder_in_use_is_refused(data, tmp_path):
    out = tmp_path / "run"
    process = long_run(data, out, "--epochs", "5000")
    wait_for_epochs(out / "record.jsonl", 1, process)
    code, _, error = finish(long_run(data, out, "--epochs", "5000"))
    process.kill()
    process.communicate()
    assert code == 2 and f"in use by process {process.pid}" in error and error.count("\n") == 1


def test_a_full_disk_is_said_and_survived(data, tmp_path, monkeypatch, capsys):
    import errno

    out = tmp_path / "run"
    arguments = ["train", str(data), "--noise", "pair", "--rate", "0.3", *QUICK, "--out", str(out)]
    replace, calls = Path.replace, []

    def full(self, target):
        calls.append(target)
        if len(calls) == 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", full)
    assert execute(arguments) == 4
    assert "the disk is full" in capsys.readouterr().err
    assert not list(out.rglob("*.tmp"))
    assert execute(arguments) == 0
    assert len(read_run(out).epochs) == 2


def test_output_into_a_closed_pipe_is_no_error():
    process = command("methods")
    process.stdout.close()
    process.wait(60)
    assert process.stderr.read() == ""
    process.stderr.close()


def test_a_method_without_a_page_is_told_of_by_its_recipe(monkeypatch, capsys):
    def quota(p, criterion=None, *, part=0.5):
        """Keeps a quota."""

    monkeypatch.setitem(METHODS, "quota", quota)
    assert execute(["methods", "quota"]) == 0
    assert capsys.readouterr().out.splitlines() == ["quota           Keeps a quota.", f"{'':16}options: part=0.5"]
