"""Settings as files, and those of earlier runs: round trips, precedence, errors, and folders of strangers."""

import json
import shlex
from argparse import ArgumentParser
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from labelsieve import config
from labelsieve.cli import execute, parse
from labelsieve.commands import compare, train
from labelsieve.errors import InputError
from labelsieve.runs.execute import run
from labelsieve.runs.read import read_run
from labelsieve.runs.spec import Experiment
from tests.commands.conftest import SMALL
from tests.conftest import save_blobs


def parser_of(command):
    parser = ArgumentParser("labelsieve", allow_abbrev=False)
    command.add_arguments(parser)
    return parser


PHASES = [Phase.explicit, Phase.generate]  # shrinking would take minutes
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


def values_of(action):
    """Return a strategy for the values of an option."""
    if isinstance(action.default, bool):
        return st.just(not action.default)
    if isinstance(action.default, list):
        return st.lists(TEXTS, min_size=1)
    kinds = {"integer": st.integers(0, 10**17), "number": st.floats(min_value=0), "Path": TEXTS.map(Path)}
    return kinds.get(getattr(action.type, "__name__", ""), TEXTS)


@pytest.mark.parametrize("command", [train, compare])
@settings(max_examples=25, deadline=None, phases=PHASES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_setting_survives_a_file(command, tmp_path, data):
    parser = parser_of(command)
    actions = data.draw(st.lists(st.sampled_from(config._actions(parser)), unique_by=lambda a: a.dest))
    chosen = {action.dest: data.draw(values_of(action), action.dest) for action in actions}
    file = tmp_path / "run.toml"
    file.unlink(missing_ok=True)
    config.save_settings(file, config.by_key(parser, chosen))
    assert config.read_settings(file, parser) == chosen
    assert file.read_text().startswith(config.HEADER)


@settings(max_examples=25, deadline=None, phases=PHASES)
@given(data=st.data())
def test_words_of_settings_are_parsed_to_the_same_settings(data):
    parser = parser_of(train)
    actions = data.draw(st.lists(st.sampled_from(config._actions(parser)), unique_by=lambda a: a.dest))
    plain = st.text("abc é/.=", min_size=1).filter(lambda text: text.strip())
    chosen = {"data": "here"}
    for action in actions:
        values = values_of(action)
        if values is TEXTS:
            values = plain
        elif isinstance(action.default, list):
            values = st.lists(plain, min_size=1)
        elif getattr(action.type, "__name__", "") == "Path":
            values = plain.map(Path)
        chosen[action.dest] = data.draw(values, action.dest)
    options = parser.parse_args(config.command_words(parser, chosen))
    changed = config.changed_settings(parser, options, config.defaults_of(parser))
    assert changed == {name: v for name, v in chosen.items() if name == "data" or v != parser.get_default(name)}


def parsed(typed):
    return parse(shlex.split(typed))[1]


def test_the_command_line_wins_over_the_file_and_the_file_over_the_defaults(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(
        'data = "mine.npz"\nepochs = 7\nlr = 1\nnoise-rate = 0.25\nfinal = false\nskip-bad = true\nout = "runs/x"\n'
        'set = ["lam=0.5", "align=true"]\n'
    )
    options = parsed(f"train --config {file}")
    assert (options.data, options.epochs, options.lr, options.noise_rate) == ("mine.npz", 7, 1.0, "0.25")
    assert options.final is False and options.skip_bad is True and options.out == Path("runs/x")
    assert options.set == ["lam=0.5", "align=true"] and options.seed == 0
    options = parsed(f"train other.npz --config {file} --epochs 3 --final --noise-rate auto --set lam=2")
    assert (options.data, options.epochs, options.final, options.noise_rate) == ("other.npz", 3, True, "auto")
    assert options.set == ["align=true", "lam=2"]
    words = "--out runs/x --set align=true --set lam=2 --noise-rate auto --skip-bad --epochs 3 --lr 1.0"
    assert options.command_line == f"labelsieve train other.npz {words}"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("epoch = 3", "unknown key 'epoch': did you mean epochs?"),
        ("dry-run = true", "unknown key 'dry-run'"),
        ("[epochs]\nvalue = 3", "epochs must be an integer, got {'value': 3}"),
        ("epochs = 3.0", "epochs must be an integer, got 3.0"),
        ("epochs = true", "epochs must be an integer, got True"),
        ('epochs = "3"', "epochs must be an integer, got 3"),
        ('lr = "high"', "lr must be a number, got high"),
        ("method = 3", "method must be a text in quotes, got 3"),
        ("final = 1", "final must be true or false, got 1"),
        ('set = "lam=1"', "set must be a list of texts, got lam=1"),
        ("set = [1]", "set must be a list of texts, got [1]"),
        ("epochs = ", "is not valid TOML: Invalid value"),
        ("epochs = 3\nepochs = 4", "is not valid TOML: Cannot overwrite a value"),
        ("warmup = 9\nepochs = 3", "leaves none of 3 for sample selection"),
    ],
)
def test_wrong_files_are_one_line_that_names_file_and_key(content, reason, tmp_path, capsys):
    file = tmp_path / "run.toml"
    file.write_text(content)
    assert execute(["train", "x.npz", "--config", str(file)]) == 2
    error = capsys.readouterr().err
    assert reason in error and error.count("\n") == 1 and (str(file) in error or "warm-up" in error)


def test_files_that_cannot_be_read_or_replaced(tmp_path, capsys):
    assert execute(["train", "--config", str(tmp_path / "gone.toml")]) == 2
    assert f"cannot read {tmp_path / 'gone.toml'}: No such file" in capsys.readouterr().err
    (tmp_path / "latin.toml").write_bytes(b'data = "\xe9"')
    assert execute(["train", "--config", str(tmp_path / "latin.toml")]) == 2
    assert "is not valid TOML" in capsys.readouterr().err
    (tmp_path / "mine.toml").write_text("title = 1\n")
    assert execute(["train", "--save-config", str(tmp_path / "mine.toml")]) == 2
    assert "was not written by labelsieve" in capsys.readouterr().err
    assert execute(["train", "--method", "nothing", "--save-config", str(tmp_path / "new.toml")]) == 2
    assert not (tmp_path / "new.toml").exists()  # wrong settings are not saved
    for data in ("a.npz", "a.npz"):
        config.save_settings(tmp_path / "same.toml", {"data": data})
    before = (tmp_path / "same.toml").read_bytes()
    with pytest.raises(InputError, match=r"same\.toml contains other settings"):
        config.save_settings(tmp_path / "same.toml", {"data": "b.npz"})
    assert (tmp_path / "same.toml").read_bytes() == before
    with pytest.raises(InputError, match="not valid Unicode"):
        config.save_settings(tmp_path / "x.toml", {"data": "\udce9"})
    (tmp_path / "link.toml").symlink_to("target.toml")
    config.save_settings(tmp_path / "link.toml", {"data": "a.npz"})
    assert (tmp_path / "link.toml").is_symlink() and (tmp_path / "target.toml").read_bytes() == before


@pytest.fixture
def trained(tmp_path, capsys):
    """Train a run whose settings are saved; return data, file and run."""
    data, file, first = save_blobs(tmp_path / "data.npz", 150), tmp_path / "run.toml", tmp_path / "first"
    words = [str(data), *SMALL, "--set", "lam=0.5", "--seed", "3", "--out", str(first)]
    assert execute(["train", *words, "--save-config", str(file)]) == 0
    assert f"settings: {file}\n" in capsys.readouterr().err
    return data, file, first


def test_a_saved_file_and_an_earlier_run_repeat_a_training_bit_for_bit(trained, tmp_path, capsys):
    _, file, first = trained
    assert execute(["train", "--config", str(file), "--out", str(tmp_path / "second")]) == 0
    assert execute(["train", "--like", str(first), "--out", str(tmp_path / "third")]) == 0
    for name in ("second", "third"):
        assert read_run(tmp_path / name).spec == read_run(first).spec
        assert (tmp_path / name / "model.safetensors").read_bytes() == (first / "model.safetensors").read_bytes()
        command = json.loads((tmp_path / name / "spec.json").read_text())["command"]
        assert "--config" not in command and "--like" not in command  # it resumes the run without these files
        assert execute(shlex.split(command)[1:]) == 0 and "already trained" in capsys.readouterr().out
    assert execute(["train", "--like", str(first), "--seed", "4", "--out", str(tmp_path / "fourth")]) == 0
    assert read_run(tmp_path / "fourth").spec == read_run(first).spec | {"seed": 4}


def test_runs_of_a_sweep_are_repeated_from_their_specification(tmp_path):
    data = save_blobs(tmp_path / "data.npz", 150)
    experiment = Experiment(
        data=str(data), model="small", epochs=2, warmup=1, batch=32, noise_rate=0.2, options=(("lam", 0.5),)
    )
    run(experiment, tmp_path / "swept")
    like = ["train", "--like", str(tmp_path / "swept"), "--threads", "1", "--no-report"]
    assert execute([*like, "--device", "cpu", "--out", str(tmp_path / "again")]) == 0
    assert read_run(tmp_path / "again").spec == read_run(tmp_path / "swept").spec


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"labels": "/etc/passwd"}, "--labels /etc/passwd, which is not taken from a folder"),
        ({"init": "../other"}, "--init ../other, which is not taken"),
        ({"model": "evil.code:run"}, "--model evil.code:run, which is not taken"),
        ({"backbone": "hf:name"}, "--backbone hf:name, which is not taken"),
        ({"noise": "T.npy"}, "--noise T.npy, which is not taken"),
        ({"fold": 1, "valid": 0.2}, "trained with fold, for which there is no option"),
        ({"epochs": "many"}, "epochs cannot be"),
        ({"threads": 10**9}, "threads must be at most"),
    ],
)
@pytest.mark.parametrize("by_command", [True, False])
def test_folders_of_strangers_name_no_files_and_no_code(by_command, change, reason, trained, tmp_path, capsys):
    path = trained[2] / "spec.json"
    head = json.loads(path.read_text())
    head["experiment"] |= change
    words = [word for name, value in change.items() for word in (f"--{name}", str(value))]
    head["command"] = shlex.join([*shlex.split(head["command"]), *words]) if by_command and "fold" not in change else ""
    path.write_text(json.dumps(head))
    (trained[2] / "done").unlink()  # the seal, which a stranger can leave out or write anew
    capsys.readouterr()
    assert execute(["train", "--like", str(trained[2]), "--out", str(tmp_path / "new")]) == 2
    error = capsys.readouterr().err
    assert reason in error and error.count("\n") == 1 and not (tmp_path / "new").exists()


def test_a_path_of_a_run_can_be_given_again(trained, tmp_path):
    data, _, first = trained
    path = first / "spec.json"
    head = json.loads(path.read_text())
    head["command"] += " --weights gone.pth --cache /tmp/elsewhere"
    path.write_text(json.dumps(head))
    (first / "done").unlink()
    options = parsed(f"train --like {first} --weights mine.pth")
    assert options.weights == "mine.pth" and options.cache is None and options.out is None and options.data == str(data)


def test_folders_without_a_run_are_one_line(tmp_path, capsys):
    assert execute(["train", "--like", str(tmp_path / "gone")]) == 2
    assert execute(["train", "--like", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 2 and error.count("is not a run folder") == 2 and "damaged" not in error
