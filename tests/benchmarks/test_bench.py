"""python -m benchmarks.bench: figures on the CPU, and one-line errors."""

import json

import numpy as np
import pytest

from benchmarks.bench import main


def test_figures_are_measured_and_saved(tmp_path, capsys):
    out = tmp_path / "deep" / "bench.json"
    main(["--device", "cpu", "--methods", "default,mentornet-prop", "--epochs", "1", "--out", str(out)])
    found = json.loads(out.read_text())
    assert [row["way"] for row in found["epochs"]] == ["plain loop, fp32", "eager, fp32"]
    assert all(row["seconds"] > 0 for row in found["epochs"]) and found["floor"]["seconds_by_bytes"] > 0
    assert [(s["method"], s["classes"]) for s in found["steps"]][:2] == [("default", 10), ("mentornet-prop", 10)]
    assert {"device", "torch", "commit", "date"} <= set(found)
    assert "x first" in capsys.readouterr().out


def test_rows_of_numbers(tmp_path):
    random = np.random.default_rng(0)
    rows, labels = random.normal(size=(200, 6)).astype(np.float32), np.arange(200) % 4
    np.savez(tmp_path / "rows.npz", features=rows, labels=labels, test_features=rows[:40], test_labels=labels[:40])
    out = tmp_path / "bench.json"
    main([str(tmp_path / "rows.npz"), "--device", "cpu", "--batch", "32", "--methods", "", "--out", str(out)])
    assert json.loads(out.read_text())["model"] == "mlp"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--side", "two"], "--side takes numbers"),
        (["--methods", "nothing"], "unknown method 'nothing'"),
        (["--epochs", "0"], "--epochs and --side must be at least 1"),
        (["--fused-only", "--device", "cpu"], "--fused-only needs a GPU"),
        (["--out", "mine.txt"], "mine.txt"),
    ],
)
def test_unusable_options_are_one_line_errors(tmp_path, monkeypatch, capsys, arguments, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").write_text("my own work\n")
    with pytest.raises(SystemExit) as end:
        main(arguments)
    error = capsys.readouterr().err
    assert end.value.code == 2 and says in error and error.count("\n") == 1
    assert (tmp_path / "mine.txt").read_text() == "my own work\n"
