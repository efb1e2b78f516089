"""The command line: commands and options, help without heavy imports, errors as one line and an exit code."""

import json
import pkgutil
import shlex
import subprocess
import sys
import warnings

import pytest

import labelsieve.commands
from labelsieve.cli import execute, main
from labelsieve.commands import COMMANDS
from labelsieve.commands.paper import PAPER
from labelsieve.errors import DamagedFile
from tests.conftest import LONG_WAIT, save_blobs

QUICK = [
    *("--epochs", "2", "--warmup", "1", "--lr", "0.02", "--batch", "32"),
    *("--threads", "1", "--model", "small", "--no-report"),
]


def test_every_command_is_a_module_of_its_name_or_one_of_the_paper():
    modules = {module.name for module in pkgutil.iter_modules(labelsieve.commands.__path__)}
    assert modules - {"options", "paper"} == set(COMMANDS) - set(PAPER)


def test_help_lists_every_command(capsys):
    with pytest.raises(SystemExit) as ended:
        execute(["--help"])
    assert ended.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    for name, summary in COMMANDS.items():
        assert f"  {name:10}{summary}" in lines


def test_version_is_printed(capsys):
    with pytest.raises(SystemExit):
        execute(["--version"])
    assert capsys.readouterr().out == f"labelsieve {labelsieve.__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command(command, capsys):
    with pytest.raises(SystemExit) as ended:
        execute([command, "--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0 and shown.startswith(f"usage: labelsieve {command} ")
    assert COMMANDS[command].split(".")[0] in " ".join(shown.split()) and "--help" in shown


@pytest.mark.parametrize(
    ("command", "arguments"),
    [("train", "[DATA]"), ("methods", "[NAME]"), ("audit", "[RUN]"), ("check", "DATA"), ("predict", "RUN DATA")],
)
def test_usage_names_arguments_and_which_are_optional(command, arguments, capsys):
    with pytest.raises(SystemExit):
        execute([command, "--help"])
    assert capsys.readouterr().out.splitlines()[0] == f"usage: labelsieve {command} {arguments} [OPTIONS]"


def test_help_and_import_need_no_heavy_library():
    """torch alone takes seconds to import."""
    script = """
import sys
import labelsieve
from labelsieve.cli import COMMANDS, execute

for arguments in (["--help"], *([name, "--help"] for name in COMMANDS)):
    try:
        execute(arguments)
    except SystemExit:
        pass
    heavy = {"torch", "numpy", "matplotlib", "safetensors", "rich", "PIL", "jinja2"} & set(sys.modules)
    if heavy:
        sys.exit(f"{arguments} imported {heavy}")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LONG_WAIT)
    assert done.returncode == 0, done.stderr
    assert "--noise-rate" in done.stdout


WRONG = [  # command lines, and what their error says
    ("trian", "did you mean train?"),
    ("", "name a command; see --help"),
    ("--bogus", "unrecognized arguments: --bogus; see labelsieve --help"),
    (
        "train --mehod default",
        "labelsieve train has no option --mehod; did you mean --method? See labelsieve train",
    ),
    ("train --epoch 3", "labelsieve train has no option --epoch; did you mean --epochs?"),  # no abbreviations
    ("train --xyzzy=3", "labelsieve train has no option --xyzzy; see labelsieve train --help"),
    ("demo --batch 3", "labelsieve demo has no option --batch; see labelsieve demo --help"),
    ("train --no-final --method", "argument --method: expected one argument; see labelsieve train --help"),
    ("train x --epochs five", "argument --epochs: 'five' is not an integer; see labelsieve train --help"),
    ("train x --epochs=1.5", "argument --epochs: '1.5' is not an integer; see labelsieve train --help"),
    ("train x --lr high", "argument --lr: 'high' is not a number; see labelsieve train --help"),
    ("figure --seeds 2 1.5", "argument NUMBER: '1.5' is not an integer; see labelsieve figure --help"),
    ("check", "the following arguments are required: DATA; see labelsieve check --help"),
    ("noise", "the following arguments are required: --out"),
    ("train my photos/ --skip-bad", "unexpected argument 'photos/'; put quotes around a path with spaces"),
    ("predict runs/mine --device cpu my photos/of May", "unexpected argument 'photos/of'; put quotes around"),
    ("train photos --skipbad 2026", "did you mean --skip-bad?"),
    ("train --method mentornett", "did you mean mentornet?"),
    ("train --criterion oll", "did you mean ol?"),
    ("train --criterion foo", "unknown criterion 'foo': choose from all, margin, ol, pl"),
    ("train --model smal", "did you mean small?"),
    ("train --noise piar --rate 0.4", "did you mean pair?"),
    ("train --noise-rate 1.5", "noise rate must be in [0, 1), got 1.5"),
    ("train --noise-rate -0.1", "noise rate must be in [0, 1)"),
    ("train --noise-rate nan", "noise rate must be in [0, 1)"),
    ("train --noise-rate 40%", "--noise-rate must be a number from 0 to 1, or auto, got '40%'"),
    ("train --rate 0.4", "give --noise as well, or --noise-rate for existing noise"),
    ("train --noise pair", "give --rate, the rate of the added pair noise"),
    ("train --noise pair --rate 0.4 --noise-map 1:2", "--noise-map requires asymmetric noise, not pair"),
    ("train --noise pair --rate 1.2 --noise-rate 0.4", "noise rate must be in [0, 1], got 1.2"),
    ("train --noise T.csv --rate 0.2", "the matrix T.csv determines the noise rate; remove --rate"),
    ("train --noise gone.npy --noise-rate 0.1", "cannot read gone.npy"),
    ("train --noise asymmetric --rate 0.4 --noise-map 1-2 --noise-rate 0.1", "9:1,2:0"),
    ("train --epochs 3 --warmup 3", "leaves none of 3 for sample selection"),
    ("train --lam 2 --set lam=0.5", "the option lam is given twice"),
    ("train --set lam=abc", "option lam cannot be 'abc'"),
    ("train --set lam", "write an option as name=value, got 'lam'"),
    ("train --set bta=0.3", "has no option 'bta'; its options: floor, align, lam, update, compensate"),
    ("train --lam -1", "lam must be a number of at least 0"),
    ("train --threads 0", "threads must be at least 1"),
    ("train --epochs 0", "epochs must be at least 1"),
    ("train --batch -1", "batch must be at least 1"),
    ("train --lr nan", "lr must be a number above 0"),
    ("train --weight-decay -1", "weight decay must be at least 0"),
    ("train --seed -1", "seed must be at least 0"),
    ("train --valid 1", "valid must be in [0, 1)"),
    ("train --test 20", "test must be in [0, 1), got 20; 0.2 is a fifth"),
    ("train --precision fp8", "precision must be fp32 or bf16"),
    ("train --precision bf16 --device cpu", "bf16 needs a GPU"),
    ("train --device tpu", "try --device cpu"),
    ("train --scores x", "--scores takes epochs separated by commas"),
    ("train gone.npz --noise-rate 0.1", "cannot read gone.npz"),
    ("train fashionn --noise-rate 0.1", "one of: fashion"),
    ("train --labels gone.csv --noise-rate 0.1", "cannot read gone.csv"),
    ("predict nowhere fashion", "no model at nowhere"),
    ("audit runs/nope", "there is no folder runs/nope; name a folder that labelsieve train"),
    ("audit", "name the run to audit: labelsieve audit RUN"),
    ("audit x --export foo", "unknown export 'foo': choose from cleanlab"),
    ("report", "name the run to report: labelsieve report RUN"),
    ("methods selfi", "did you mean selfie?"),
    ("noise --rate 1.2 --out a.csv", "noise rate must be in [0, 1], got 1.2"),
    ("noise --out gone/labels.csv", "cannot write gone/labels.csv"),
    ("demo --noise foo", "unknown noise 'foo'"),
    ("demo --methods default,nothing", "unknown method 'nothing'"),
    ("demo --seeds 0", "seeds must be at least 1"),
    ("compare", "give --noise pair --rate 0.4 to add noise, or --noise-rate"),
    ("compare --rate 0.2", "give --noise as well"),
    ("compare --noise T.npy", "write labels with `labelsieve noise`"),
    ("compare --noise asymmetric --rate 0.2", "not asymmetric; write labels"),
    ("compare --noise pair --rate 0.2 --methods selfi", "unknown method 'selfi'"),
    ("compare --methods , --noise-rate 0.2", "--methods is empty"),
    ("table 2 --methods ,", "--methods is empty; leave it out to keep all cells"),
]
NEED_TORCH = {  # the others are refused before torch is imported, which takes seconds
    *("train --model smal", "train --device tpu", "train --set lam=abc", "train --lam -1"),
    *("train gone.npz --noise-rate 0.1", "train fashionn --noise-rate 0.1", "train --labels gone.csv --noise-rate 0.1"),
    *("train --noise gone.npy --noise-rate 0.1", "train --noise pair --rate 0.4 --noise-map 1:2"),
    "train --noise asymmetric --rate 0.4 --noise-map 1-2 --noise-rate 0.1",
    *("predict nowhere fashion", "audit runs/nope", "noise --out gone/labels.csv", "table 2 --methods ,"),
}
WITHOUT_TORCH = """
import json, shlex, sys
from labelsieve.cli import execute

class Found(BaseException):
    pass

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise Found

sys.meta_path.insert(0, Finder())
for typed in json.load(sys.stdin):
    try:
        code = execute(shlex.split(typed))
    except Found:
        code = None
    print(json.dumps([typed, code]), file=sys.stderr)
"""


@pytest.mark.parametrize(("typed", "message"), WRONG)
def test_bad_input_is_one_line_and_exit_code_2(typed, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert execute(shlex.split(typed)) == 2
    error = capsys.readouterr().err
    assert message in error and error.startswith("error: ") and error.count("\n") == 1 and len(error) < 400
    assert not list(tmp_path.iterdir())


def test_most_bad_input_is_refused_before_torch_is_imported(tmp_path):
    """In a process that cannot import torch, every wrong command line but a few ends with its error."""
    typed = json.dumps(["methods", "methods selfie", *(line for line, _ in WRONG)])
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH],
        input=typed,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LONG_WAIT,
    )
    codes = dict(json.loads(line) for line in done.stderr.splitlines() if line.startswith("["))
    expected = {line: None if line in NEED_TORCH else 2 for line, _ in WRONG}
    assert codes == {"methods": 0, "methods selfie": 0} | expected


@pytest.mark.parametrize("name", ["nothing-here", "notes.md"])
def test_path_without_data_is_one_line(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.md").write_text("# Notes\n")
    assert execute(["train", name, "--noise-rate", "0.1"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_control_characters_in_errors_are_escaped(capsys):
    assert execute(["train", "a\x1b[2J\nb"]) == 2
    error = capsys.readouterr().err
    assert "\x1b" not in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("typed", "function", "message"),
    [
        ("check x", "labelsieve.data.check.check", "stopped by Ctrl-C"),
        ("predict run x", "labelsieve.predict.load", "stopped by Ctrl-C"),
        (
            "train --noise-rate auto",
            "labelsieve.auto.request.make_request",
            "stopped by Ctrl-C; run the same command again to resume",
        ),
        (
            "table small",
            "labelsieve.paper.reproduce.reproduce",
            "stopped by Ctrl-C; run the same command again to resume",
        ),
    ],
)
def test_only_resumable_commands_say_so_when_stopped(typed, function, message, tmp_path, monkeypatch, capsys):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(function, stop)
    assert execute(typed.split()) == 130
    assert capsys.readouterr().err == f"error: {message}\n"


def test_threads_fall_asleep_while_they_wait_unless_the_user_decides(monkeypatch):
    """On busy cores, threads that wait actively slow each other down a hundredfold."""
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    script = f"import atexit, os, labelsieve.cli; atexit.register(lambda: print(*map(os.environ.get, {names}))); "
    script += "labelsieve.cli.main(['methods'])"
    for given, expected in (((None, None), "PASSIVE 2000"), (("ACTIVE", None), "ACTIVE None"), ((None, "7"), "None 7")):
        for name, value in zip(names, given, strict=True):
            monkeypatch.delenv(name, raising=False)
            if value is not None:
                monkeypatch.setenv(name, value)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LONG_WAIT)
        assert done.stdout.splitlines()[-1] == expected


def test_damaged_files_are_warned_about_in_one_line(monkeypatch):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    with pytest.raises(SystemExit):
        main(["methods"])
    assert warnings.formatwarning("x is damaged", DamagedFile, "y.py", 7) == "warning: x is damaged\n"
    assert warnings.formatwarning("slow", UserWarning, "y.py", 7).startswith("y.py:7: UserWarning: slow\n")


def test_closed_pipe_is_no_error():
    command = [sys.executable, "-m", "labelsieve", "methods"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    process.wait(LONG_WAIT)
    assert process.stderr.read() == ""
    process.stderr.close()


def test_existing_files_of_the_user_are_not_overwritten(tmp_path, capsys):
    data, run, mine = save_blobs(tmp_path / "data.npz", 150), tmp_path / "run", tmp_path / "mine.csv"
    assert execute(["train", str(data), "--noise", "pair", "--rate", "0.3", *QUICK, "--out", str(run)]) == 0
    commands = [["predict", str(run), str(data), "--out"], ["noise", str(data), "--out"], ["report", str(run), "--out"]]
    for command in commands:
        for text in ("find,label\n1,bone\n", "\nid,predicted_label,confidence\n"):
            mine.write_text(text)
            capsys.readouterr()
            assert execute([*command, str(mine)]) == 2
            error = capsys.readouterr().err
            assert f"{mine} exists and was not written by labelsieve; name another file" in error
            assert error.count("\n") == 1 and mine.read_text() == text
        assert execute([*command, str(tmp_path)]) == 2
        assert f"{tmp_path} is a folder; name a file in it" in capsys.readouterr().err
        mine.write_text("")
        assert execute([*command, str(mine)]) == 0  # an empty file may be replaced
        assert execute([*command, str(mine)]) == 0  # and one that labelsieve wrote
