"""RunFolder: what it refuses, and how differences between runs are described."""

import json
import threading
from dataclasses import replace

import pytest

from labelsieve.errors import InputError
from labelsieve.runs.folder import RunFolder, as_option, differences
from labelsieve.runs.spec import Experiment

EXPERIMENT = Experiment(noise_rate=0.181, options=(("floor", 0.5),), valid=0.1)


def describe(data="a", **changed):
    old = {"experiment": EXPERIMENT.as_dict(), "data": "a"}
    new = {"experiment": replace(EXPERIMENT, **changed).as_dict(), "data": data}
    return [f"{as_option(name, was)}, {as_option(name, now)}" for name, was, now in differences(old, new)]


def test_most_informative_difference_comes_first_as_command_line_option():
    assert describe(noise_rate=0.15, options=(), valid=0.0) == [
        "with --noise-rate 0.181, with --noise-rate 0.15",
        "with --valid 0.1, with --valid 0.0",
        "with --set floor=0.5, without --set",
    ]
    assert describe(skip_bad=True, seed=3) == ["with --seed 0, with --seed 3", "without --skip-bad, with --skip-bad"]
    assert describe(criterion="ol", drop_last=True) == [
        "without --criterion, with --criterion ol",
        "without drop_last, with drop_last",
    ]
    assert not describe(workers=3) and not describe(scores=(2,))


def test_paths_do_not_distinguish_runs():
    old, new = ({"experiment": replace(EXPERIMENT, data=name).as_dict(), "data": "a"} for name in ("here", "there"))
    assert not differences(old, new)


def test_specification_is_written_once_and_other_settings_are_refused(tmp_path):
    with RunFolder(tmp_path / "run") as folder:
        folder.claim(EXPERIMENT, "a", {"torch": "2"}, "labelsieve train", "files")
    written = (tmp_path / "run" / "spec.json").read_bytes()
    head = json.loads(written)
    assert head == {
        "experiment": EXPERIMENT.as_dict(),
        "data": "a",
        "versions": {"torch": "2"},
        "source": "files",
        "command": "labelsieve train",
    }
    with RunFolder(tmp_path / "run") as folder:
        folder.claim(EXPERIMENT, "a", {"torch": "3"}, "another command", "other files")
        message = "holds another run: it was trained with --seed 0, not with --seed 1; name another --out"
        for refuse in (folder.refuse_other_settings, lambda other: folder.claim(other, "a", {})):
            with pytest.raises(InputError, match=message):
                refuse(replace(EXPERIMENT, seed=1))
        with pytest.raises(InputError, match=r"the data or labels changed since .* \(fingerprint a, now b\)"):
            folder.claim(EXPERIMENT, "b", {})
    assert (tmp_path / "run" / "spec.json").read_bytes() == written


def test_run_is_finished_only_from_the_same_files(tmp_path):
    with RunFolder(tmp_path) as folder:
        folder.claim(EXPERIMENT, "a", {}, "", "files")
        assert not folder.is_finished_from("files")
        folder.finish()
        assert folder.is_finished_from("files")
        assert not folder.is_finished_from("other files") and not folder.is_finished_from(None)


@pytest.mark.parametrize(
    "files", [["thesis.tex"], ["lock", "thesis.tex"], ["final/model.safetensors"], ["plain/notes.txt"]]
)
def test_folder_with_other_files_is_refused_and_left_alone(tmp_path, files):
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match=r"contains other files \(.*\); name another --out"), RunFolder(tmp_path):
        pass
    assert sorted(tmp_path.rglob("*")) == before


def test_folder_with_stages_of_an_interrupted_run_is_accepted(tmp_path):
    for name in ("plain/1/lock", "network/1/lock", "lock", "corrected.npy", "request.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    with RunFolder(tmp_path):
        pass


def test_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match=r"thesis\.txt is a file, not a folder; name another --out"):
        RunFolder(tmp_path / "thesis.txt").refuse_other_files()


def test_folder_is_entered_once_at_a_time(tmp_path):
    with RunFolder(tmp_path), pytest.raises(InputError, match="already in use by this process"), RunFolder(tmp_path):
        pass
    with RunFolder(tmp_path):  # released
        assert (tmp_path / "lock").read_text().isdigit()
    assert (tmp_path / "lock").read_text() == ""


def test_leftover_temporary_files_are_deleted(tmp_path):
    (tmp_path / "spec.json").touch()
    (tmp_path / ".model.safetensors.123.tmp").touch()
    with RunFolder(tmp_path):
        assert not list(tmp_path.glob(".*.tmp"))


def test_scores_that_were_not_saved_are_refused(tmp_path):
    with RunFolder(tmp_path) as folder:
        folder.write("scores-2.safetensors", b"")
        folder.require_scores((2, 9), epochs_done=4)
        with pytest.raises(InputError, match="is past epoch 3 and has no scores of it"):
            folder.require_scores((2, 3), epochs_done=4)


def test_threads_exclude_each_other(tmp_path):
    """File locks do not exclude other threads of the same process."""
    entered, leave, errors = threading.Event(), threading.Event(), []

    def hold():
        with RunFolder(tmp_path):
            entered.set()
            leave.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait()
    try:
        with RunFolder(tmp_path):
            pass
    except InputError as error:
        errors.append(str(error))
    finally:
        leave.set()
        thread.join()
    assert len(errors) == 1 and "already in use" in errors[0]
