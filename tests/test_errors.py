"""Errors: suggestions, and unexpected errors in one line with a log."""

import re
import textwrap
from pathlib import Path

import pytest

from labelsieve import errors
from labelsieve.cli import execute
from labelsieve.errors import InputError, LabelsieveError, first_line, nearest


def test_suggestions():
    assert nearest("mentornett", ["mentornet", "sl"]) == "did you mean mentornet?"
    assert nearest("x", ["sl", "gce"]) == "choose from gce, sl"


def test_input_errors_are_value_errors():
    assert issubclass(InputError, ValueError) and InputError.exit_code == 2 and LabelsieveError.exit_code == 1


def test_bug_is_one_line_and_a_log(monkeypatch, capsys):
    import labelsieve.sweep.compare

    monkeypatch.setattr(labelsieve.sweep.compare, "compare", None)
    assert execute(["demo"]) == 1
    error = capsys.readouterr().err
    assert "a bug in labelsieve (TypeError) at " in error and error.count("\n") == 1
    assert re.search(r"/commands/demo.py:\d+: 'NoneType' object is not callable; please report it with", error)
    log = Path(error.split()[-1])
    assert "'NoneType' object is not callable" in log.read_text()
    log.unlink()


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("undefined_name", "(NameError) at {file}:{line}: name 'undefined_name' is not defined; please report it"),
        ("torch.zeros(2) @ torch.zeros(3)", "(RuntimeError) at {file}:{line}: inconsistent tensor size, expected"),
    ],
)
def test_error_in_a_changed_method_names_its_line(broken, message, monkeypatch, tmp_path, capsys):
    """The innermost line of the package is named, here one that was added to it."""
    from labelsieve import methods

    place = tmp_path / "labelsieve" / "methods.py"
    place.parent.mkdir()
    place.write_text(f"import torch\n\n\ndef gce(p, criterion=None):\n    return {broken}\n")
    scope = {}
    exec(compile(place.read_text(), place, "exec"), scope)
    ignored = (*errors._NOT_USER_CODE, str(place.parent), str(Path(__file__).parent))
    monkeypatch.setattr(errors, "_PACKAGE", str(place.parent))
    monkeypatch.setattr(errors, "_NOT_USER_CODE", ignored)
    monkeypatch.setitem(methods.METHODS, "gce", scope["gce"])
    assert execute(["train", "--method", "gce", "--noise-rate", "0.1", "--out", str(tmp_path / "run")]) == 1
    error = capsys.readouterr().err
    assert "a bug in labelsieve " + message.format(file=place, line=5) in error and error.count("\n") == 1
    Path(error.split()[-1]).unlink()


def test_error_in_the_network_of_the_user_is_not_called_a_bug(tmp_path, monkeypatch, capsys):
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
    assert f"{tmp_path}/mine_raises.py:12 raised KeyError: 'colour'; see the traceback in " in error
    assert error.count("\n") == 1
    Path(error.split()[-1]).unlink()


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError("disk full\nat block 7"), "disk full"),
        (ValueError("\n  late\nmore"), "late"),
        (KeyError(), "KeyError"),
        (RuntimeError(" \n "), "RuntimeError"),
        (ValueError("x" * 300), "x" * 200),
    ],
)
def test_first_line_of_an_error(error, line):
    assert first_line(error) == line
