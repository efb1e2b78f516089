"""Reading run folders: runs of older versions, neglected classes, folders that are no runs."""

from dataclasses import replace

import pytest

from labelsieve.errors import InputError
from labelsieve.report.words import training_warnings
from labelsieve.runs.read import (
    audit_folder,
    by_method,
    finished_runs,
    is_separate_audit,
    neglected_classes,
    not_a_run,
    read_progress,
    read_run,
)
from tests.made_runs import make_audit, make_run


@pytest.mark.parametrize(
    ("kept", "neglected"),
    [([0.6, 0.22, 0.9, 0.0], ["Dress (22%)"]), ([0.6, 0.55, 0.65, 0.0], []), ([0.0, 0.6, 0.6, 0.0], ["Coat (0%)"])],
)
def test_neglected_classes_are_named(tmp_path, kept, neglected):
    epochs = [{"kept": [1.0, 1.0, 1.0, 0.0]}, {"kept": kept}]  # the last class has no samples
    run = replace(read_run(make_run(tmp_path / "run")), classes=["Coat", "Dress", "Bag", "Shirt"], epochs=epochs)
    assert run.spec["noise_rate"] == 0.4 and neglected_classes(run) == neglected
    warnings = training_warnings(run)
    assert len(warnings) == len(neglected) and all(neglected[0] in warning for warning in warnings)


def test_stages_of_automatic_runs_are_not_listed(tmp_path):
    runs = [make_run(tmp_path / name) for name in ("a", "b")]
    for stage in ("network/1", "plain/1", "selecting/1", "second/1"):
        make_run(runs[0] / stage)
    make_run(tmp_path / "unfinished", done=False)
    assert finished_runs(tmp_path) == runs


def test_runs_are_grouped_by_method_and_sorted_by_seed(tmp_path):
    runs = [read_run(make_run(tmp_path / str(seed), method="sl", seed=seed)) for seed in (2, 0, 1)]
    other = read_run(make_run(tmp_path / "other", method="co-teaching", criterion="all"))
    groups = by_method([*runs, other])
    assert list(groups) == ["sl", "co-teaching (all)"] and [run.spec["seed"] for run in groups["sl"]] == [0, 1, 2]


def test_unfinished_run_has_no_end(tmp_path):
    run = read_progress(make_run(tmp_path / "run", done=False))
    assert run.end == {} and len(run.epochs) == 6 and run.series("epoch") == [1, 2, 3, 4, 5, 6]
    with pytest.raises(InputError, match="is not a finished run"):
        read_run(tmp_path / "run")


def test_folders_that_are_no_runs_are_named(tmp_path):
    assert "there is no folder" in str(not_a_run(tmp_path / "gone"))
    assert "neither a run (it has no spec.json) nor an audit" in str(not_a_run(tmp_path))
    with pytest.raises(InputError, match="there is no folder"):
        read_run(tmp_path / "gone")
    with pytest.raises(InputError, match=r"it has no spec\.json"):
        read_progress(tmp_path)


def test_audit_lies_in_the_run_or_alone(tmp_path):
    run = make_run(tmp_path / "run")
    make_audit(run, shown=3)
    assert audit_folder(run) == run / "audit" and not is_separate_audit(run)
    with pytest.raises(InputError, match="is the audit of a run; name the run instead: run"):
        is_separate_audit(run / "audit")
    alone = make_audit(tmp_path / "files", shown=3)
    assert is_separate_audit(alone) and audit_folder(alone) == alone
