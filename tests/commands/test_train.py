"""labelsieve train: on folders, tables and published datasets, streamed or not, with the user's networks and labels."""

import csv
import shlex
import time

import numpy as np
import pytest
import torch

import labelsieve
from labelsieve import METHODS
from labelsieve.auto.forecast import forecast
from labelsieve.auto.request import make_request, with_threads
from labelsieve.cli import execute
from labelsieve.data import ReadOptions, load_data
from labelsieve.data.published import read_clothing1m
from labelsieve.runs.data import Shelf
from labelsieve.runs.execute import run as execute_run
from labelsieve.runs.read import read_run, read_samples
from labelsieve.runs.spec import Experiment
from tests.commands.conftest import QUICK, SMALL, picture
from tests.conftest import read_rows, save_blobs, without_resumes
from tests.data.builders import clothing
from tests.data.test_cifar import ten_python, write_folder


def train(*words):
    return execute(["train", *map(str, words)])


# Printed lines


def test_settings_are_printed_first_and_the_next_command_last(tmp_path, capsys):
    data = save_blobs(tmp_path / "data.npz", 150, test=40)
    for number, options in enumerate((["--method", "default"], ["--noise-rate", "0.1"])):
        out = tmp_path / f"my run {number}"
        assert train(data, *SMALL[:8], *options, "--threads", "1", "--out", out) == 0
        first, *_, report, last = capsys.readouterr().out.splitlines()
        assert first == f"data:    {data}: 150 samples of 4 classes, 40 test samples"
        assert report == f"report: {out / 'report.html'}"
        assert last == f"review the suspect labels: labelsieve review '{out}'"
        with (out / "audit" / "labels.csv").open(newline="") as file:
            assert len(list(csv.DictReader(file))) == 150
        assert (out / "report.html").exists()


def test_audit_and_report_can_be_left_out(tmp_path, capsys):
    data, out = save_blobs(tmp_path / "data.npz", 150), tmp_path / "my run"
    assert train(data, *SMALL, "--out", out) == 0  # with --no-report
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"audit the labels and write a report: labelsieve report '{out}'"
    assert not (out / "audit").exists() and not (out / "report.html").exists()
    assert execute(shlex.split(last.partition(": ")[2])[1:]) == 0
    assert (out / "audit" / "labels.csv").exists() and (out / "report.html").exists()


# Threads


def test_small_networks_get_one_thread_and_large_ones_all_cores(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("labelsieve.runs.execute.usable_cores", lambda: 3)
    data, brief = save_blobs(tmp_path / "data.npz", 150), ["--noise-rate", "0.2", "--device", "cpu", "--no-report"]
    for model, threads in (("small", 1), ("compact", 1), ("densenet-25-12", 3)):
        command = [data, "--model", model, *QUICK[:6], *brief, "--out", tmp_path / model]
        assert train(*command) == 0
        assert read_run(tmp_path / model).spec["threads"] == threads
        assert train(*command) == 0 and "already trained" in capsys.readouterr().out
    assert train(data, "--model", "small", *QUICK[:6], *brief, "--threads", "2", "--out", tmp_path / "two") == 0
    assert read_run(tmp_path / "two").spec["threads"] == 2


def test_more_threads_than_cores_are_accepted_and_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("labelsieve.commands.options.usable_cores", lambda: 2)
    data, out = save_blobs(tmp_path / "data.npz", 150), tmp_path / "run"
    command = [data, *SMALL, "--no-report", "--out", out]
    warning = "--threads 5: this machine has 2 usable cores; more threads than cores are slower\n"
    for threads, said in {2: "", 5: warning}.items():
        assert train(*command, "--threads", threads, "--dry-run") == 0
        assert capsys.readouterr().err == said
    assert train(*command, "--threads", 1025) == 2 and "at most 1,024" in capsys.readouterr().err


def test_runs_of_a_machine_with_more_cores_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)  # 64 threads would wait for each other
    data, out = save_blobs(tmp_path / "data.npz", 150), tmp_path / "run"
    assert train(data, *SMALL, "--no-report", "--threads", 64, "--out", out) == 0
    assert read_run(out).spec["threads"] == 64 and labelsieve.load(out).classes
    assert train(data, "--like", out, "--dry-run") == 0


def test_all_stages_of_a_network_have_its_threads(tmp_path, monkeypatch):
    """On a table, the perceptron gets one thread; linear heads get all cores, and use them if they are large."""
    random = np.random.default_rng(0)
    labels = random.integers(3, size=300)
    np.savez(tmp_path / "t.npz", features=random.normal(size=(300, 4)) + 2 * np.eye(4)[labels], labels=labels)
    monkeypatch.setattr("labelsieve.runs.execute.usable_cores", lambda: 3)
    experiment, shelf = Experiment(data=str(tmp_path / "t.npz"), model="auto", epochs=4, warmup=1), Shelf()
    request = make_request(experiment, [], noise_is_unknown=True, method=None, final=True, shelf=shelf)
    linear, perceptron = with_threads(request, shelf).candidates
    assert linear.training.threads == 3 and perceptron.training.threads == 1
    assert {judge.threads for judge in perceptron.judges} == {1} and len(perceptron.judges) >= 5


def test_description_of_a_training(tmp_path, capsys):
    data = save_blobs(tmp_path / "data.npz", 150, test=40)
    assert train(data, *SMALL, "--out", tmp_path / "run") == 0
    _, method, network, *lines = capsys.readouterr().out.splitlines()
    assert method == "method:  mentornet-prop, noise rate 20%, warm-up of 1 epoch"
    assert network.startswith("network: small, ") and lines[0].startswith("epoch 1/2: loss ")
    assert f"trained: {tmp_path / 'run'} (model of epoch 2)" in lines


def test_dry_run_prints_the_cost_and_writes_nothing(tmp_path, capsys):
    data, out = save_blobs(tmp_path / "data.npz", 150, test=40), tmp_path / "run"
    assert train(data, *SMALL, "--out", out, "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "150 samples of 4 classes, 40 test samples\n" in shown and "2 epochs of 5 steps at " in shown
    assert "cost:    about " in shown and "starting, reading and judging" in shown and not out.exists()
    assert train(data, *SMALL, "--test", "0.2", "--dry-run") == 0
    assert "40 test samples (from the data; --test is ignored)" in capsys.readouterr().out


def test_forecast_includes_what_the_command_did_before(tmp_path, monkeypatch):
    """Importing and reading took an hour here, so they will in the training, and judging about as long."""
    data = save_blobs(tmp_path / "data.npz", 150)
    experiment, shelf = Experiment(data=str(data), model="small", epochs=2, warmup=1, noise_rate=0.2), Shelf()
    request = make_request(experiment, [], noise_is_unknown=False, method=None, final=True, shelf=shelf)
    monkeypatch.setattr("labelsieve.auto.forecast.seconds_per_step", lambda prepared: 10.0)
    assert "about 2.0 h" in forecast(request, tmp_path, shelf, time.perf_counter() - 3600)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_on_the_embedded_data(method, tmp_path):
    out = tmp_path / "run"
    noise = ["--noise", "pair", "--rate", "0.4", "--epochs", "3", "--warmup", "1", "--threads", "1"]
    assert train("--method", method, *noise, "--out", out) == 0
    done = read_run(out)
    assert done.end["last"] < 70 and len(done.epochs) % 3 == 0
    assert labelsieve.load(out).classes[0] == "T-shirt/top"


# Data


def test_table_of_paths(folder, tmp_path):
    table, run = tmp_path / "fruit.csv", tmp_path / "run"
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label"])
        writer.writerows((p.relative_to(tmp_path), p.parent.name) for p in sorted((folder / "train").rglob("*.png")))
    assert train(table, "--test", "0.2", *SMALL, "--out", run) == 0
    assert read_rows(run)[0]["samples"] == 48 and "test_error" in read_rows(run)[1]


def test_parquet_table_with_image_bytes(folder, tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    files = sorted((folder / "train").rglob("*.png"))
    images = [{"bytes": file.read_bytes(), "path": file.name} for file in files]
    pq.write_table(pa.table({"image": images, "label": [f.parent.name for f in files]}), tmp_path / "fruit.parquet")
    assert train(tmp_path / "fruit.parquet", *SMALL, "--out", tmp_path / "run") == 0
    assert read_rows(tmp_path / "run")[0]["samples"] == 60


def test_table_of_numbers(tmp_path):
    random = np.random.default_rng(0)
    labels = random.integers(3, size=200)
    values = random.normal(size=(200, 4)) + 3 * np.eye(3, 4)[labels]
    table, run = tmp_path / "iris.csv", tmp_path / "run"
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["a", "b", "c", "d", "species"])
        writer.writerows([*row, f"kind {label}"] for row, label in zip(values, labels, strict=True))
    options = ["--label-column", "species", "--test", "0.25", *QUICK, "--epochs", "12", "--lr", "0.05"]
    assert train(table, *options, "--out", run) == 0
    assert read_rows(run)[0]["model"] == "mlp" and read_rows(run)[-1]["last"] < 15
    predicted = labelsieve.load(run).predict(values.astype(np.float32))
    assert (predicted == labels).mean() > 0.85


def test_published_cifar_with_labels_of_cifar_n(tmp_path, capsys):
    folder = tmp_path / "cifar-10-batches-py"
    write_folder(folder, ten_python())
    labels = load_data(str(folder)).train.labels.numpy()
    torch.save({"clean_label": labels, "worse_label": (labels + 1) % 10}, tmp_path / "CIFAR-10_human.pt")
    assert train(folder, "--labels", f"{tmp_path / 'CIFAR-10_human.pt'}:worst", *SMALL, "--out", tmp_path / "run") == 0
    start = read_rows(tmp_path / "run")[0]
    assert start["classes"] == 10 and start["noise"]["realised_rate"] == 1
    assert execute(["check", str(folder)]) == 0
    assert "not the published CIFAR-10" in capsys.readouterr().out
    assert train(folder, "--labels", f"{tmp_path / 'CIFAR-10_human.pt'}:bad", *SMALL) == 2
    assert "clean" in capsys.readouterr().err


def test_protocol_of_clothing1m(tmp_path):
    """Windows of larger training images, statistics of ImageNet, a clean validation set that chooses the epoch."""
    root = tmp_path / "clothing"
    clothing(root)
    for split in read_clothing1m(root)[:3]:
        for index, name in enumerate(split.names):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            picture(index % 3, index, 40).save(root / name)
    sets = load_data(str(root), ReadOptions(size=28, window=28, normalise="imagenet"))
    assert sets.train.images.shape[2:] == (32, 32) and sets.test.images.shape[2:] == (28, 28)
    assert len(sets.valid) and sets.train.normalise == sets.test.normalise == "imagenet"
    options = ["--augment", "window28,flip", "--normalise", "imagenet", *SMALL, "--method", "default", "--batch", "2"]
    assert train(root, *options, "--out", tmp_path / "run") == 0
    assert {"valid_error", "test_error"} <= set(read_rows(tmp_path / "run")[1])


def write_image(path):
    path.parent.mkdir(parents=True)
    picture(0, 0).save(path)


BAD = {
    "data": [lambda path: path.mkdir(), lambda path: write_image(path / "cat" / "1.png")],
    "data.csv": [
        lambda path: path.write_text("path,colour\na.png,red\n"),
        lambda path: path.write_text(""),
        lambda path: path.write_text("a,label\n1,x\n2\n3,y\n"),
    ],
    "data.parquet": [lambda path: path.write_bytes(b"PAR1 but not really")],
    "data.npz": [lambda path: path.write_bytes(b"PK\x03\x04 cut")],
    "data.tar.gz": [lambda path: path.write_bytes(b"\x1f\x8b cut")],
}


@pytest.mark.parametrize(("name", "number"), [(name, n) for name, cases in BAD.items() for n, _ in enumerate(cases)])
def test_bad_data_is_one_line_and_leaves_nothing_behind(name, number, tmp_path, capsys):
    BAD[name][number](tmp_path / name)
    before = sorted(tmp_path.rglob("*"))
    assert train(tmp_path / name, "--noise-rate", "0.2", "--device", "cpu", "--out", tmp_path / "run") == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and "data" in error and len(error) <= 420
    assert sorted(tmp_path.rglob("*")) == before


def test_skipped_files_do_not_change_the_training(folder, tmp_path, capsys):
    assert train(folder, *SMALL, "--skip-bad", "--out", tmp_path / "without") == 0
    (folder / "train" / "apple" / "005a.png").write_bytes(b"not an image")
    (folder / "train" / "plum" / "000a.png").touch()
    capsys.readouterr()
    assert train(folder, *SMALL, "--out", tmp_path / "refused") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "005a.png" in error and "--skip-bad" in error and "labelsieve check" in error
    assert not (tmp_path / "refused").exists()
    assert train(folder, *SMALL, "--skip-bad", "--out", tmp_path / "skipped") == 0
    shown = capsys.readouterr().out
    assert shown.count("skipped: ") == 1
    assert "skipped: 2 unusable files or rows, first: train/apple/005a.png: " in shown
    assert read_rows(tmp_path / "skipped") == read_rows(tmp_path / "without")


def test_skipped_rows_are_printed_once_before_the_probes(tmp_path, capsys):
    random = np.random.default_rng(0)
    rows = [f"{v:.3f},{k}" for k in (0, 1) for v in random.normal(k, 0.2, 160)]
    (tmp_path / "t.csv").write_text("\n".join(["x,label", *rows, "?,1"]) + "\n")
    for options in (["--dry-run"], ["--out", tmp_path / "run"]):
        assert train(tmp_path / "t.csv", "--skip-bad", *QUICK[:6], "--threads", "1", *options) == 0
        shown = capsys.readouterr().out
        assert shown.startswith("skipped: 1 unusable file or row: t.csv:322: column 'x' contains '?'")
        assert shown.count("skipped: ") == 1


def test_label_file_applies_by_name_before_a_test_set_is_drawn(folder, tmp_path, capsys):
    data, noisy = folder / "train", tmp_path / "noisy.csv"
    assert execute(["noise", str(data), "--kind", "pair", "--rate", "0.4", "--out", str(noisy)]) == 0
    header, *lines = noisy.read_text().splitlines()
    noisy.write_text("\n".join([header, *reversed(lines)]) + "\n")
    options = ["--labels", noisy, "--test", "0.2", *SMALL]
    assert train(data, *options, "--out", tmp_path / "run") == 0
    start = read_rows(tmp_path / "run")[0]
    assert start["samples"] == 48 and "noise" not in start  # the names of the folders do not count as the truth
    written = [["apple", "pear", "plum"].index(line.rsplit(",", 1)[1]) for line in lines]
    assert read_samples(tmp_path / "run")["label"].tolist() == written
    noisy.write_text("\n".join([header, *lines[:-1], "59,other.png,plum"]) + "\n")
    capsys.readouterr()
    assert train(data, *options, "--out", tmp_path / "other") == 2
    assert "has no label for" in capsys.readouterr().err


# Streaming, augmentation and networks


def test_streamed_training_does_not_depend_on_workers_or_cache(folder, tmp_path):
    rows = []
    options = {"0": ["--workers", "0"], "3": ["--workers", "3"], "cached": ["--cache", tmp_path / "cache"]}
    for name, more in options.items():
        assert train(folder, "--stream", *SMALL, *more, "--out", tmp_path / name) == 0
        rows.append(read_rows(tmp_path / name))
    assert rows[0] == rows[1] == rows[2] and rows[0][0]["samples"] == 60
    assert execute(["predict", str(tmp_path / "3"), str(folder / "test"), "--out", str(tmp_path / "p.csv")]) == 0


class Interrupter:
    """A watcher that interrupts a training after some epochs."""

    def __init__(self, epochs):
        self.left = epochs

    def step(self, done, total):
        pass

    def epoch(self, row):
        self.left -= 1
        if self.left == 0:
            raise InterruptedError


def test_resumed_streamed_run_uses_the_same_batches(folder, tmp_path):
    settings = {"model": "small", "epochs": 4, "warmup": 1, "batch": 16, "lr": 0.02, "noise_rate": 0.2, "stream": True}
    whole, pieces = (Experiment(data=str(folder), augment="crop2,flip", workers=n, **settings) for n in (0, 3))
    execute_run(whole, tmp_path / "whole")
    with pytest.raises(InterruptedError):
        execute_run(pieces, tmp_path / "pieces", Interrupter(2))
    execute_run(pieces, tmp_path / "pieces")
    events = [row["event"] for row in read_rows(tmp_path / "pieces")]
    assert events == ["start", "epoch", "epoch", "resume", "epoch", "epoch", "end"]
    assert without_resumes(tmp_path / "pieces") == read_rows(tmp_path / "whole")
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "pieces"))
    assert one == two


def test_augmentation_changes_the_training_and_is_repeatable(folder, tmp_path):
    options = {"plain": [], "one": ["--augment", "crop2,flip"], "two": ["--augment", "crop2,flip"]}
    for name, more in options.items():
        assert train(folder, *SMALL, *more, "--out", tmp_path / name) == 0
    plain, one, two = (read_rows(tmp_path / name)[1:] for name in options)
    assert one == two != plain


def test_windows_with_held_out_samples_and_a_drawn_test_set(folder, tmp_path):
    options = ["--augment", "window12,flip", *SMALL]
    splits = ["--valid", "0.2", "--test", "0.2", "--method", "lccn"]
    assert train(folder / "train", *options, *splits, "--out", tmp_path / "run") == 0
    assert {"valid_error", "test_error"} <= set(read_rows(tmp_path / "run")[1])
    assert train(folder / "train", *options, "--stream", "--dry-run") == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--augment", "flip"], "--augment applies to images"), (["--cache", "c"], "--cache stores streamed images")],
)
def test_options_that_do_not_apply_to_the_data_are_refused(options, message, tmp_path, capsys):
    np.savez(tmp_path / "rows.npz", features=np.random.default_rng(0).normal(size=(40, 3)), labels=np.arange(40) % 2)
    assert train(tmp_path / "rows.npz", *options, *QUICK, "--out", tmp_path / "run") == 2
    assert message in capsys.readouterr().err


NETWORK = "from torch import nn\n\ndef net(shape, num_classes):\n    return nn.Sequential(nn.Flatten(), {})\n"


def test_network_of_the_user_and_pretrained_weights(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(NETWORK.format("nn.Linear(768, num_classes)"))
    assert train(folder, "--model", "mine:net", *QUICK, "--out", "run") == 0
    predict = ["predict", "run", str(folder / "test"), "--out", "p.csv"]
    assert execute(predict) == 2
    assert "--model mine:net" in capsys.readouterr().err
    assert execute([*predict, "--model", "mine:net"]) == 0
    weights = ["--weights", tmp_path / "run" / "model.safetensors", "--model", "mine:net"]
    assert train(folder, *weights, *QUICK, "--out", "again") == 0
    assert read_rows(tmp_path / "again")[1]["train_loss"] < read_rows(tmp_path / "run")[1]["train_loss"]


def test_dropout_of_the_network_of_the_user_is_repeatable(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    layers = "nn.Sequential(nn.Dropout(0.5)), nn.Linear(768, num_classes)"
    (tmp_path / "dropping.py").write_text(NETWORK.format(layers))
    for seed, name in enumerate(("one", "two")):
        torch.manual_seed(seed)  # the global generator must not matter
        assert train(folder, "--model", "dropping:net", *QUICK, "--out", name) == 0
    assert read_rows(tmp_path / "one") == read_rows(tmp_path / "two")


def test_name_of_embedded_data_that_is_a_folder_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    for command in (["train", "photos"], ["check", "photos"], ["embed", "photos", "--out", "x.npz"]):
        assert execute(command) == 2
        assert "write ./photos for the folder" in capsys.readouterr().err
