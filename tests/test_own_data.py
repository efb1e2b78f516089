"""A person's own data from the command line: folders and tables are checked, trained on and predicted."""

import csv
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from labelsieve.cli import execute
from labelsieve.data import ReadOptions, load_data
from labelsieve.runs.read import read_samples

QUICK = ["--epochs", "2", "--warmup", "1", "--batch", "32", "--noise-rate", "0.2", "--device", "cpu", "--threads", "1"]


def picture(number, index, side=16):
    """A grey square with a bright bar whose place is the class."""
    pixels = np.random.default_rng(index).integers(0, 100, (side, side, 3)).astype(np.uint8)
    pixels[4 * number : 4 * number + 3] = 250
    return Image.fromarray(pixels)


@pytest.fixture
def folder(tmp_path):
    """Three classes of twenty images, with a test split."""
    for split, count in (("train", 20), ("test", 5)):
        for number, name in enumerate(("apple", "pear", "plum")):
            place = tmp_path / "fruit" / split / name
            place.mkdir(parents=True)
            for index in range(count):
                picture(number, 1000 * len(split) + 100 * number + index).save(place / f"{index:03}.png")
    return tmp_path / "fruit"


def record(run):
    rows = [json.loads(line) for line in (run / "record.jsonl").read_text().splitlines()]
    return [{key: row[key] for key in row if key != "seconds"} for row in rows]


def test_a_folder_trains_and_predicts(folder, tmp_path, capsys):
    run, table = tmp_path / "run", tmp_path / "predictions.csv"
    assert execute(["train", str(folder), "--model", "small", *QUICK, "--out", str(run)]) == 0
    start = record(run)[0]
    assert (start["samples"], start["classes"], start["model"]) == (60, 3, "small")
    assert execute(["predict", str(run), str(folder / "test"), "--out", str(table)]) == 0
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert len(rows) == 15 and rows[0]["id"].endswith("000.png")
    assert {row["predicted_label"] for row in rows} <= {"apple", "pear", "plum"}
    assert "differently from their label" in capsys.readouterr().out


def test_a_table_of_paths_trains(folder, tmp_path):
    table = tmp_path / "fruit.csv"
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label"])
        writer.writerows((p.relative_to(tmp_path), p.parent.name) for p in sorted((folder / "train").rglob("*.png")))
    run = tmp_path / "run"
    assert execute(["train", str(table), "--model", "small", "--test", "0.2", *QUICK, "--out", str(run)]) == 0
    assert record(run)[0]["samples"] == 48 and "test_error" in record(run)[1]


def test_a_parquet_table_with_image_bytes_trains(folder, tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    files = sorted((folder / "train").rglob("*.png"))
    images = [{"bytes": file.read_bytes(), "path": file.name} for file in files]
    pq.write_table(pa.table({"image": images, "label": [f.parent.name for f in files]}), tmp_path / "fruit.parquet")
    run = tmp_path / "run"
    assert execute(["train", str(tmp_path / "fruit.parquet"), "--model", "small", *QUICK, "--out", str(run)]) == 0
    assert record(run)[0]["samples"] == 60


def test_a_numeric_table_trains_and_predicts(tmp_path):
    random = np.random.default_rng(0)
    labels = random.integers(3, size=200)
    values = random.normal(size=(200, 4)) + 3 * np.eye(3, 4)[labels]
    table = tmp_path / "iris.csv"
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["a", "b", "c", "d", "species"])
        writer.writerows([*row, f"kind {label}"] for row, label in zip(values, labels, strict=True))
    run = tmp_path / "run"
    command = [
        "train",
        str(table),
        "--label-column",
        "species",
        "--test",
        "0.25",
        *QUICK,
        "--epochs",
        "12",
        "--lr",
        "0.05",
    ]
    assert execute([*command, "--out", str(run)]) == 0
    assert record(run)[0]["model"] == "mlp" and record(run)[-1]["last"] < 15
    assert execute(["noise", str(table), "--label-column", "species", "--out", str(tmp_path / "noisy.csv")]) == 0
    import labelsieve

    predicted = labelsieve.load(run).predict(values.astype(np.float32))
    assert (predicted == labels).mean() > 0.85


def test_skipping_bad_files_is_training_without_them(folder, tmp_path, capsys):
    train = ["train", str(folder), "--model", "small", *QUICK]
    assert execute([*train, "--skip-bad", "--out", str(tmp_path / "without")]) == 0
    (folder / "train" / "apple" / "005a.png").write_bytes(b"not an image")
    (folder / "train" / "plum" / "000a.png").touch()
    capsys.readouterr()
    assert execute([*train, "--out", str(tmp_path / "refused")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "005a.png" in error and "--skip-bad" in error and "labelsieve check" in error
    assert not (tmp_path / "refused").exists()
    assert execute([*train, "--skip-bad", "--out", str(tmp_path / "skipped")]) == 0
    said = capsys.readouterr().out
    assert said.count("skipped: ") == 1
    assert "skipped: 2 unusable files or rows, first: train/apple/005a.png: " in said
    assert record(tmp_path / "skipped") == record(tmp_path / "without")


def test_what_is_skipped_is_said_once_before_the_probes(tmp_path, capsys):
    random = np.random.default_rng(0)
    rows = [f"{v:.3f},{k}" for k in (0, 1) for v in random.normal(k, 0.2, 160)]
    (tmp_path / "t.csv").write_text("\n".join(["x,label", *rows, "?,1"]) + "\n")
    train = ["train", str(tmp_path / "t.csv"), "--skip-bad", *QUICK[:6], *QUICK[8:]]
    for more in (["--dry-run"], ["--out", str(tmp_path / "run")]):
        assert execute([*train, *more]) == 0
        said = capsys.readouterr().out
        assert said.startswith("skipped: 1 unusable file or row: t.csv:322: column 'x' contains '?'")
        assert said.count("skipped: ") == 1


def test_a_single_picture_is_classified(folder, tmp_path, capsys):
    run, one = str(tmp_path / "run"), folder / "test" / "pear" / "002.png"
    assert execute(["train", str(folder), "--model", "small", *QUICK, "--out", run]) == 0
    assert execute(["predict", run, str(one.parent), "--out", str(tmp_path / "all.csv")]) == 0
    capsys.readouterr()
    assert execute(["predict", run, str(one)]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header == "id,predicted_label,confidence" and len(lines) == 1
    assert lines[0] in (tmp_path / "all.csv").read_text().splitlines()
    one.write_bytes(b"nothing")
    assert execute(["predict", run, str(one)]) == 2
    assert f"cannot read {one}: " in capsys.readouterr().err


@pytest.mark.parametrize("name", ["nothing-here", "README.md"])
def test_what_is_no_data_is_one_line(name, capsys):
    assert execute(["train", name, "--noise-rate", "0.1"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_check_in_a_process_of_its_own(folder):
    (folder / "train" / "apple" / "b\x1bad\n.png").write_bytes(b"x")
    done = subprocess.run([sys.executable, "-m", "labelsieve", "check", str(folder)], capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr and done.stderr.count("\n") == 1
    assert "\x1b" not in done.stdout and "b\\x1bad\\n.png" in done.stdout


def test_streaming_trains_alike_with_any_number_of_workers_a_cache_and_after_a_cut(folder, tmp_path):
    train = ["train", str(folder), "--model", "small", "--stream", *QUICK]
    rows = []
    for name, more in {
        "none": ["--workers", "0"],
        "one": ["--workers", "1"],
        "three": ["--workers", "3"],
        "cached": ["--cache", str(tmp_path / "cache")],
    }.items():
        assert execute([*train, *more, "--out", str(tmp_path / name)]) == 0
        rows.append(record(tmp_path / name))
    assert rows[0] == rows[1] == rows[2] == rows[3] and rows[0][0]["samples"] == 60
    assert execute(["predict", str(tmp_path / "one"), str(folder / "test"), "--out", str(tmp_path / "p.csv")]) == 0


def test_augmentation_changes_the_training_and_is_repeatable(folder, tmp_path):
    train = ["train", str(folder), "--model", "small", *QUICK]
    for name, more in {"plain": [], "one": ["--augment", "crop2,flip"], "two": ["--augment", "crop2,flip"]}.items():
        assert execute([*train, *more, "--out", str(tmp_path / name)]) == 0
    assert record(tmp_path / "one")[1:] == record(tmp_path / "two")[1:] != record(tmp_path / "plain")[1:]


def test_a_network_of_ones_own_and_pretrained_weights(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n\ndef net(shape, num_classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(768, num_classes))\n"
    )
    assert execute(["train", str(folder), "--model", "mine:net", *QUICK, "--out", "run"]) == 0
    assert execute(["predict", "run", str(folder / "test"), "--out", "p.csv"]) == 2
    assert "--model mine:net" in capsys.readouterr().err
    assert execute(["predict", "run", str(folder / "test"), "--model", "mine:net", "--out", "p.csv"]) == 0
    weights = ["--weights", str(tmp_path / "run" / "model.safetensors"), "--model", "mine:net"]
    assert execute(["train", str(folder), *weights, *QUICK, "--out", "again"]) == 0
    assert record(tmp_path / "again")[1]["train_loss"] < record(tmp_path / "run")[1]["train_loss"]


def test_cifar_as_published_trains_under_the_labels_of_cifar_n(tmp_path, capsys):
    from tests.data.test_cifar import ten_python, write_folder

    folder = tmp_path / "cifar-10-batches-py"
    write_folder(folder, ten_python())
    train = load_data(str(folder)).train
    human = {"clean_label": train.labels.numpy(), "worse_label": (train.labels.numpy() + 1) % 10}
    torch.save(human, tmp_path / "CIFAR-10_human.pt")
    labels = ["--labels", f"{tmp_path / 'CIFAR-10_human.pt'}:worst"]
    small = ["--model", "small", *QUICK]
    assert execute(["train", str(folder), *labels, *small, "--out", str(tmp_path / "run")]) == 0
    start = record(tmp_path / "run")[0]
    assert start["classes"] == 10 and start["noise"]["realised_rate"] == 1
    assert execute(["check", str(folder)]) == 0
    assert "not the published CIFAR-10" in capsys.readouterr().out
    assert execute(["train", str(folder), "--labels", f"{tmp_path / 'CIFAR-10_human.pt'}:bad", *small]) == 2
    assert "clean" in capsys.readouterr().err


def test_the_protocol_of_clothing1m(tmp_path):
    """Windows out of larger training images, ImageNet's colours, a clean validation set that chooses the epoch."""
    from labelsieve.data.published import read_clothing1m
    from tests.data.builders import clothing

    root = tmp_path / "clothing"
    clothing(root)
    for split in read_clothing1m(root)[:3]:
        for index, name in enumerate(split.names):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            picture(index % 3, index, 40).save(root / name)
    sets = load_data(str(root), ReadOptions(size=28, window=28, normalise="imagenet"))
    assert sets.train.images.shape[2:] == (32, 32) and sets.test.images.shape[2:] == (28, 28)
    assert len(sets.valid) and sets.train.normalise == sets.test.normalise == "imagenet"
    command = ["train", str(root), "--model", "small", "--augment", "window28,flip", "--normalise", "imagenet", *QUICK]
    assert execute([*command, "--method", "default", "--batch", "2", "--out", str(tmp_path / "run")]) == 0
    rows = record(tmp_path / "run")
    assert "valid_error" in rows[1] and "test_error" in rows[1]


BAD = {
    "empty folder": lambda root: (root / "data").mkdir(),
    "a folder of one class": lambda root: picture_at(root / "data" / "cat" / "1.png"),
    "a table without labels": lambda root: (root / "data").write_text("path,colour\na.png,red\n"),
    "an empty table": lambda root: (root / "data").write_text(""),
    "a table with a ragged row": lambda root: (root / "data").write_text("a,label\n1,x\n2\n3,y\n"),
    "no Parquet": lambda root: (root / "data").write_bytes(b"PAR1 but not really"),
    "no arrays": lambda root: (root / "data").write_bytes(b"PK\x03\x04 cut"),
    "no archive": lambda root: (root / "data").write_bytes(b"\x1f\x8b cut"),
}
SUFFIXES = {"table": ".csv", "Parquet": ".parquet", "arrays": ".npz", "archive": ".tar.gz"}


def picture_at(path):
    path.parent.mkdir(parents=True)
    picture(0, 0).save(path)


@pytest.mark.parametrize("case", BAD)
def test_bad_data_is_one_line_and_leaves_nothing_behind(case, tmp_path):
    BAD[case](tmp_path)
    data = tmp_path / "data"
    suffix = next((suffix for word, suffix in SUFFIXES.items() if word in case), "")
    data = data.rename(tmp_path / f"data{suffix}")
    before = sorted(tmp_path.rglob("*"))
    out = tmp_path / "run"
    command = ["train", str(data), "--noise-rate", "0.2", "--device", "cpu", "--out", str(out)]
    done = subprocess.run([sys.executable, "-m", "labelsieve", *command], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and "data" in done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr) <= 420
    assert sorted(tmp_path.rglob("*")) == before


def test_predicting_needs_no_labels(folder, tmp_path, capsys):
    run = tmp_path / "run"
    assert execute(["train", str(folder), "--model", "small", *QUICK, "--out", str(run)]) == 0
    plain = tmp_path / "new"
    plain.mkdir()
    for number in range(3):
        picture(number, number).save(plain / f"{number}.png")
    (plain / "broken.png").write_bytes(b"x")
    capsys.readouterr()
    assert execute(["predict", str(run), str(plain), "--out", str(tmp_path / "p.csv")]) == 0
    assert "1 unusable file or row: broken.png: " in capsys.readouterr().err
    (plain / "list.csv").write_text("path\n2.png\n0.png\n")
    assert execute(["predict", str(run), str(plain / "list.csv"), "--out", str(tmp_path / "q.csv")]) == 0
    one, two = (
        {r["id"]: r["predicted_label"] for r in csv.DictReader((tmp_path / name).read_text().splitlines())}
        for name in ("p.csv", "q.csv")
    )
    assert list(two) == ["2.png", "0.png"] and len(one) == 3 and all(one[name] == two[name] for name in two)
    assert execute(["predict", str(run), str(folder), "--out", str(tmp_path / "all.csv")]) == 0
    assert len((tmp_path / "all.csv").read_text().splitlines()) == 76  # training and test


def test_columns_are_matched_by_name(tmp_path, capsys):
    random = np.random.default_rng(0)
    labels = random.integers(2, size=120)
    values = random.normal(size=(120, 2)) + 4 * labels[:, None] * [1, -1]

    def write(name, columns):
        rows = [[{"a": v[0], "b": v[1], "label": k}[c] for c in columns] for v, k in zip(values, labels, strict=True)]
        with (tmp_path / name).open("w", newline="") as file:
            csv.writer(file).writerows([columns, *rows])
        return str(tmp_path / name)

    run, out = str(tmp_path / "run"), tmp_path / "out.csv"
    train = ["train", write("a.csv", ["a", "b", "label"]), *QUICK, "--epochs", "8", "--lr", "0.05", "--out", run]
    assert execute(train) == 0
    tables = []
    for name, columns in {"b.csv": ["b", "label", "a"], "c.csv": ["b", "a"], "a.csv": ["a", "b", "label"]}.items():
        assert execute(["predict", run, write(name, columns), "--out", str(out)]) == 0
        tables.append([row["predicted_label"] for row in csv.DictReader(out.read_text().splitlines())])
    assert tables[0] == tables[1] == tables[2] and len(set(tables[0])) == 2
    assert execute(["predict", run, write("d.csv", ["a", "label"]), "--out", str(out)]) == 2
    assert "no column 'b'" in capsys.readouterr().err


def test_labels_are_laid_over_by_name_before_a_test_set_is_drawn(folder, tmp_path, capsys):
    data, noisy = str(folder / "train"), tmp_path / "noisy.csv"
    assert execute(["noise", data, "--kind", "pair", "--rate", "0.4", "--out", str(noisy)]) == 0
    header, *lines = noisy.read_text().splitlines()
    noisy.write_text("\n".join([header, *reversed(lines)]) + "\n")
    train = ["train", data, "--labels", str(noisy), "--model", "small", "--test", "0.2", *QUICK]
    assert execute([*train, "--out", str(tmp_path / "run")]) == 0
    start = record(tmp_path / "run")[0]
    assert start["samples"] == 48 and "noise" not in start  # the folders' names are not held to be the truth
    laid = [["apple", "pear", "plum"].index(line.rsplit(",", 1)[1]) for line in lines]
    assert read_samples(tmp_path / "run")["label"].tolist() == laid
    noisy.write_text("\n".join([header, *lines[:-1], "59,other.png,plum"]) + "\n")
    capsys.readouterr()
    assert execute([*train, "--out", str(tmp_path / "other")]) == 2
    assert "has no label for" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "reason"),
    [(["--augment", "flip"], "--augment applies to images"), (["--cache", "c"], "--cache stores streamed images")],
)
def test_options_that_do_not_fit_the_data_are_refused(more, reason, tmp_path, capsys):
    np.savez(tmp_path / "rows.npz", features=np.random.default_rng(0).normal(size=(40, 3)), labels=np.arange(40) % 2)
    assert execute(["train", str(tmp_path / "rows.npz"), *more, *QUICK, "--out", str(tmp_path / "run")]) == 2
    assert reason in capsys.readouterr().err


def test_windows_with_a_held_out_split_and_a_drawn_test_set(folder, tmp_path):
    train = ["train", str(folder / "train"), "--model", "small", "--augment", "window12,flip", *QUICK]
    assert execute([*train, "--valid", "0.2", "--test", "0.2", "--method", "lccn", "--out", str(tmp_path / "run")]) == 0
    assert {"valid_error", "test_error"} <= set(record(tmp_path / "run")[1])
    assert execute([*train, "--stream", "--dry-run"]) == 0


class BreakOff:
    """A watcher that stops a training after so many epochs."""

    def __init__(self, epochs):
        self.left = epochs

    def step(self, done, total):
        pass

    def epoch(self, row):
        self.left -= 1
        if self.left == 0:
            raise InterruptedError


def test_a_streamed_run_that_was_cut_goes_on_with_the_same_batches(folder, tmp_path):
    from labelsieve.runs.execute import run
    from labelsieve.runs.spec import Experiment

    settings = {"model": "small", "epochs": 4, "warmup": 1, "batch": 16, "lr": 0.02, "noise_rate": 0.2, "stream": True}
    whole, pieces = (Experiment(data=str(folder), augment="crop2,flip", workers=n, **settings) for n in (0, 3))
    assert whole.name() == pieces.name()  # how many threads decode is beside the point
    run(whole, tmp_path / "whole")
    with pytest.raises(InterruptedError):
        run(pieces, tmp_path / "pieces", BreakOff(2))
    run(pieces, tmp_path / "pieces")
    rows = record(tmp_path / "pieces")
    assert [row["event"] for row in rows] == ["start", "epoch", "epoch", "resume", "epoch", "epoch", "end"]
    assert [row for row in rows if row["event"] != "resume"] == record(tmp_path / "whole")
    model = "model.safetensors"
    assert (tmp_path / "pieces" / model).read_bytes() == (tmp_path / "whole" / model).read_bytes()


def test_compare_takes_a_table_and_given_labels(tmp_path, capsys):
    random = np.random.default_rng(0)
    labels = random.integers(3, size=240)
    values = random.normal(size=(240, 3)) + 3 * np.eye(3)[labels]
    with (tmp_path / "mine.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["a", "b", "c", "label"], *([*v, k] for v, k in zip(values, labels, strict=True))])
    short = ["--epochs", "2", "--warmup", "1", "--batch", "32", "--seeds", "2", "--device", "cpu"]
    command = ["compare", str(tmp_path / "mine.csv"), "--methods", "default,mentornet", *short]
    assert execute([*command, "--test", "0.2", "--noise-rate", "0.1", "--out", str(tmp_path / "given")]) == 0
    assert "original labels" in capsys.readouterr().out and (tmp_path / "given" / "given-0.png").exists()
    assert execute([*command, "--noise-rate", "0.1", "--out", str(tmp_path / "none")]) == 2
    assert "draw one with --test 0.2" in capsys.readouterr().err


def test_dropout_of_ones_own_network_can_be_repeated(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dropping.py").write_text(
        "from torch import nn\n\ndef net(shape, num_classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Sequential(nn.Dropout(0.5)), nn.Linear(768, num_classes))\n"
    )
    for name in ("one", "two"):
        torch.manual_seed(len(name) + ord(name[0]))  # the process's own generator plays no part
        assert execute(["train", str(folder), "--model", "dropping:net", *QUICK, "--out", name]) == 0
    assert record(tmp_path / "one") == record(tmp_path / "two")
