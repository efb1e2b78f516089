"""Every script of examples/ runs as a process of its own, in an empty folder, and shows a gain."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import LONG_WAIT

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))


def run_example(name: str, folder: Path) -> str:
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LONG_WAIT)
    assert done.returncode == 0, done.stderr
    assert list(folder.iterdir()) == []  # an example leaves nothing behind
    return done.stdout


def percentages(output: str, *names: str) -> list[float]:
    """Return the percentages at the end of the lines that begin with these names."""
    return [float(re.search(rf"^ *{re.escape(name)} .*?([\d.]+)%$", output, re.M)[1]) for name in names]


@pytest.mark.parametrize(
    ("name", "plain", "ours", "gain"),
    [
        ("plain_loop", "default", "mentornet-prop", 10),
        ("lightning_module", "cross-entropy", "mentornet-prop", 10),
        ("huggingface_text", "cross-entropy", "mentornet-prop", 2),
        ("sklearn_table", "same network, plain", "SieveClassifier", 3),
        ("audit_probabilities", "all samples", "without the suspects", 0.5),
        ("audit_features", "confidence of logistic regression", "label_quality", 2),
    ],
)
def test_an_example_shows_a_gain(name, plain, ours, gain, tmp_path):
    before, after = percentages(run_example(name, tmp_path), plain, ours)
    assert after >= before + gain


def test_the_review_of_photographs_corrects_most_labels(tmp_path):
    output = run_example("photographs", tmp_path)
    before, after = map(int, re.search(r"wrong labels: (\d+) before, (\d+) after", output).groups())
    errors = [float(error) for error in re.findall(r"test error: ([\d.]+)%", output)]
    assert before == 75 and after < 25
    assert len(errors) == 2 and errors[1] < errors[0]


def test_examples_are_short_and_listed():
    listed = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(SCRIPTS) >= 6
    for path in SCRIPTS:
        code = path.read_text(encoding="utf-8")
        assert 30 <= code.count("\n") <= 80
        assert ast.get_docstring(ast.parse(code)).splitlines()[0].endswith(".")
        assert f"]({path.name})" in listed and f"](examples/{path.name})" in readme, path.name
