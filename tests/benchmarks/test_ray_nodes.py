"""The benchmark of a Ray cluster: it notices a changed file, and the docs say what its record says."""

import json
from pathlib import Path

import pytest

from benchmarks.ray_nodes import COMPARED, LIMIT, METHODS, RECORD, SEEDS, compare_folders

PAGE = Path(__file__).parents[2] / "docs" / "sweeps.md"


def write_sweep(root, seconds):
    for number in range(len(METHODS) * SEEDS):
        folder = root / f"run-{number}"
        folder.mkdir(parents=True)
        for name in (*COMPARED, "done"):
            (folder / name).write_text(json.dumps({"name": name, "seconds": seconds}))
    return root


@pytest.mark.parametrize("changed", [None, *COMPARED])
def test_changed_files_are_noticed(changed, tmp_path):
    one, other = write_sweep(tmp_path / "one", 1), write_sweep(tmp_path / "other", 1)
    (one / "run-3" / "record.jsonl").write_text('{"name": "record.jsonl", "seconds": 2}')  # durations may differ
    if changed:
        (other / "run-3" / changed).write_text('{"name": "another", "seconds": 1}')
    assert compare_folders(one, other)["different"] == ([f"run-3/{changed}"] if changed else [])


def test_docs_say_what_the_record_says():
    record = json.loads(RECORD.read_text())
    killed, compared = record["killed"], record["compared"]
    assert compared["different"] == [] and compared["runs"] == len(METHODS) * SEEDS
    assert killed["runs finished before"] < compared["runs"] and killed["processes killed"] > 1
    assert all(each["as promised"] and each["seconds"] < LIMIT for each in record["nobody answers"].values())
    assert f"all {compared['files']} files of {compared['runs']} runs" in PAGE.read_text(encoding="utf-8")
