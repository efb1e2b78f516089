"""The smaller commands: methods, noise, check and compare, as users call them."""

import csv
import subprocess
import sys

import numpy as np

from labelsieve import METHODS
from labelsieve.cli import execute
from labelsieve.runs.read import read_samples
from tests.commands.conftest import QUICK
from tests.conftest import LONG_WAIT, read_rows, save_blobs


def test_methods_are_listed_with_their_options(capsys):
    assert execute(["methods"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in METHODS) and "lam=1.0" in shown and "update=stack" in shown


def test_page_of_a_method_is_shown(capsys):
    assert execute(["methods", "selfie"]) == 0
    assert capsys.readouterr().out.startswith("# selfie\n")


def test_noisy_labels_are_written_and_used(tmp_path, capsys):
    data, labels, run = save_blobs(tmp_path / "data.npz", 150), tmp_path / "labels.csv", tmp_path / "run"
    assert execute(["noise", str(data), "--kind", "symmetry", "--rate", "0.3", "--out", str(labels)]) == 0
    shown = capsys.readouterr().out
    assert execute(["train", str(data), "--labels", str(labels), *QUICK, "--model", "small", "--out", str(run)]) == 0
    noisy, original = read_samples(run)["label"], np.load(data)["labels"]
    assert f"{100 * (noisy != original).mean():.2f}% changed" in shown and (noisy != original).any()
    assert "noise" not in read_rows(run)[0]  # the labels of the user's data do not count as the truth


def test_noisy_labels_of_texts_need_no_backbone(tmp_path):
    table, labels = tmp_path / "texts.csv", tmp_path / "labels.csv"
    rows = [("how are you", "a"), ("where is it", "b")] * 20
    table.write_text("question,topic\n" + "".join(f"{text},{topic}\n" for text, topic in rows))
    command = ["noise", str(table), "--text-column", "question", "--label-column", "topic", "--rate", "0.3", "--exact"]
    assert execute([*command, "--out", str(labels)]) == 0
    written = [line.split(",")[-1] for line in labels.read_text().splitlines()[1:]]
    assert sum(new != old for new, (_, old) in zip(written, rows, strict=True)) == 12


def test_check_escapes_names(folder):
    (folder / "train" / "apple" / "b\x1bad\n.png").write_bytes(b"x")
    command = [sys.executable, "-m", "labelsieve", "check", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG_WAIT)
    assert done.returncode == 2 and "Traceback" not in done.stderr and done.stderr.count("\n") == 1
    assert "\x1b" not in done.stdout and "b\\x1bad\\n.png" in done.stdout


def test_compare_writes_table_and_picture(tmp_path, capsys):
    data, out = save_blobs(tmp_path / "data.npz", 150, test=40), tmp_path / "compare"
    command = ["compare", str(data), "--methods", "default,mentornet-prop", "--noise", "pair", "--rate", "0.3"]
    short = ["--model", "small", "--epochs", "3", "--warmup", "1", "--device", "cpu", "--seeds", "2"]
    assert execute([*command, *short, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "mentornet-prop minus default" in shown and (out / "table.md").read_text().count("| 2 |") == 2
    assert (out / "pair-0.3.png").stat().st_size > 10_000 and len(list(out.glob("*/done"))) == 4


def test_compare_with_a_table_and_its_own_labels(tmp_path, capsys):
    random = np.random.default_rng(0)
    labels = random.integers(3, size=240)
    values = random.normal(size=(240, 3)) + 3 * np.eye(3)[labels]
    with (tmp_path / "mine.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["a", "b", "c", "label"], *([*v, k] for v, k in zip(values, labels, strict=True))])
    short = ["--epochs", "2", "--warmup", "1", "--batch", "32", "--seeds", "2", "--device", "cpu"]
    command = ["compare", str(tmp_path / "mine.csv"), "--methods", "default,mentornet", *short, "--noise-rate", "0.1"]
    assert execute([*command, "--test", "0.2", "--out", str(tmp_path / "given")]) == 0
    assert "original labels" in capsys.readouterr().out and (tmp_path / "given" / "given-0.png").exists()
    assert execute([*command, "--out", str(tmp_path / "none")]) == 2
    assert "draw one with --test 0.2" in capsys.readouterr().err
