"""The files around the package agree: version, changelog, citation, workflow, and instructions to install extras."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import labelsieve

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))


def test_one_version_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert PROJECT["version"] == labelsieve.__version__ == citation["version"]
    first = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)[1]
    assert first in (labelsieve.__version__, "Unreleased")


def test_the_changelog_is_short_lines_in_the_usual_groups():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^### (.*)$", text, re.M)) <= {"Added", "Changed", "Fixed", "Removed"}
    for line in text.splitlines():
        assert len(line) <= 200 and (not line or line.startswith(("#", "- ")) or "## " not in line), line


def test_the_workflow_tries_every_supported_python_and_the_oldest_torch():
    tried = WORKFLOW["jobs"]["versions"]["strategy"]["matrix"]["include"]
    supported = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert {row["python"] for row in tried} == set(supported)
    for page in ("README.md", "docs/quickstart.md"):
        assert f"Python {supported[0]} to {supported[-1]}." in (ROOT / page).read_text(encoding="utf-8")
    (oldest,) = (re.search(r">=([\d.]+)", line)[1] for line in PROJECT["dependencies"] if line.startswith("torch"))
    assert f"{oldest}.*" in {row["torch"] for row in tried}
    pinned = re.search(r"^torch==(\d+\.\d+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M)[1]
    assert f"{pinned}.*" in {row["torch"] for row in tried}


def test_extras_that_messages_and_docs_name_exist():
    """In the docs, extras are installed from a clone; messages are read where labelsieve is installed already."""
    named = set()
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "labelsieve").rglob("*.py")]:
        text = path.read_text(encoding="utf-8")
        named |= {extra for group in re.findall(r"(?:'\.|labelsieve)\[([a-z,]+)\]", text) for extra in group.split(",")}
    assert {"photos", "text"} <= named <= set(PROJECT["optional-dependencies"])


@pytest.mark.parametrize("target", ["kept", "kept.tar"])
def test_records_of_finished_runs_are_kept_without_models(tmp_path, target):
    for run, files in {"a1": ("spec.json", "record.jsonl", "done", "model.safetensors"), "b2": ("spec.json",)}.items():
        (tmp_path / "runs" / run).mkdir(parents=True)
        for name in files:
            (tmp_path / "runs" / run / name).write_text(f"{run} {name}")
    tool = [sys.executable, ROOT / "tools" / "keep_records.py", "runs", target]
    done = subprocess.run(tool, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == f"1 records in {target}\n"
    if target.endswith(".tar"):
        subprocess.run(["tar", "-xf", target, "--one-top-level=kept"], cwd=tmp_path, check=True)
    kept = {str(path.relative_to(tmp_path / "kept")): path.read_text() for path in (tmp_path / "kept").glob("*/*")}
    assert kept == {f"a1/{name}": f"a1 {name}" for name in ("spec.json", "record.jsonl", "done")}
