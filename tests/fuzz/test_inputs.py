"""Bad tables, images, arrays and options: a right result, or one line with exit code 2."""

import io
import os
import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.fuzz.confined import Confined, check_bounds, quietly, run_confined
from tests.fuzz.damage import NUMBERS, _damaged
from tests.fuzz.record import note
from tests.fuzz.seeds import place

EXAMPLES = int(os.environ.get("LABELSIEVE_FUZZ", "0"))
LIMITS = settings(
    max_examples=EXAMPLES or 40, derandomize=not EXAMPLES, suppress_health_check=list(HealthCheck), database=None
)
QUICK = ("--noise-rate", "0.2", "--epochs", "1", "--warmup", "0", "--threads", "1", "--dry-run")
NUMBERS_AS_TEXT = st.sampled_from(
    [
        "0",
        "-1",
        "1",
        "2",
        "3",
        "1_000",
        "１２",
        "²",
        "nan",
        "inf",
        "-inf",
        "1e400",
        "0x10",
        "",
        " 5 ",
        "10" * 60,
        "٣",
        "1e3",
    ]
)
CELLS = st.one_of(
    NUMBERS_AS_TEXT, st.text(max_size=8), st.sampled_from(['"', ",", "\x00", "\n", "=1+1", "a", "b", "0.5", "-", "--5"])
)
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
BYTE_DAMAGES = st.tuples(st.sampled_from(["flip", "cut", "zeros", "append", "empty"]), NUMBERS, NUMBERS)


@pytest.fixture(autouse=True, scope="module")
def imported():
    """Import what the commands need, once, before the processes that run them are forked."""
    for argv in (
        ["check", str(place() / "data.npz")],
        ["train", str(place() / "data.npz"), *QUICK, "--out", str(place() / "never")],
    ):
        assert quietly(argv)[0] == 0


def check(what: str, argv: list[str]) -> Confined:
    """Run a command with bounded time and memory; it must end well, or with one line and exit code 2 or 4."""
    found = run_confined(argv)
    check_bounds(found, str(argv))
    assert found.code in (0, 2, 4), f"{argv}: {found.errors}"
    assert found.code == 0 or sum(line.startswith("error: ") for line in found.errors.splitlines()) == 1, found.errors
    note(
        f"bad {what}",
        commands=1,
        refused=found.code != 0,
        most_cpu_seconds=found.seconds,
        most_megabytes=found.megabytes,
    )
    return found


@LIMITS
@given(header=st.lists(CELLS, min_size=1, max_size=4), rows=st.lists(st.lists(CELLS, max_size=4), max_size=6))
def test_tables(header, rows):
    file = place() / "table.csv"
    good = [["1", "2", "a"], ["3", "4", "b"], ["5", "6", "a"], ["7", "8", "b"]]
    lines = [["x", "y", "label"] if len(header) == 3 else [*header, "label"], *good, *rows]
    file.write_text("\n".join(",".join(line) for line in lines), encoding="utf-8", errors="surrogatepass")
    check("tables", ["check", str(file)])
    check("tables", ["train", str(file), *QUICK, "--out", str(place() / "never")])


@LIMITS
@given(damage=BYTE_DAMAGES, kind=st.sampled_from(["table.csv", "images.npz", "labels.npy"]))
def test_damaged_files(kind, damage):
    content = io.BytesIO()
    random_state = np.random.default_rng(0)
    images = random_state.integers(0, 255, (20, 8, 8), dtype=np.uint8)
    if kind == "table.csv":
        content.write(b"x,y,label\n" + b"1,2,a\n3,4,b\n" * 5)
    elif kind == "images.npz":
        np.savez(content, images=images, labels=np.arange(20) % 2)
    else:
        np.save(content, np.arange(20) % 2)
    file = place() / f"damaged-{kind}"
    file.write_bytes(_damaged(damage[0], bytearray(content.getvalue()), *damage[1:]))
    if kind == "labels.npy":
        np.savez(place() / "whole.npz", images=images, labels=np.arange(20) % 2)
        check(
            "arrays and tables",
            ["train", str(place() / "whole.npz"), "--labels", str(file), *QUICK, "--out", str(place() / "never")],
        )
    else:
        check("arrays and tables", ["check", str(file)])
        check("arrays and tables", ["train", str(file), *QUICK, "--out", str(place() / "never")])


@LIMITS
@given(
    damages=st.lists(BYTE_DAMAGES, min_size=1, max_size=3),
    format=st.sampled_from(FORMATS),
)
def test_damaged_images(damages, format):
    folder = place() / "images"
    for number in range(8):
        content = io.BytesIO()
        pixels = np.frombuffer(random.Random(number).randbytes(16 * 16 * 3), np.uint8).reshape(16, 16, 3)
        Image.fromarray(pixels).save(content, format)
        data = content.getvalue()
        for kind, at, value in damages if number == 3 else ():
            data = _damaged(kind, bytearray(data), at, value)
        file = folder / "ab"[number % 2] / f"{number}.{format.lower()}"
        file.parent.mkdir(parents=True, exist_ok=True)
        for old in file.parent.glob(f"{number}.*"):
            old.unlink()
        file.write_bytes(data)
    check("images", ["check", str(folder)])
    check("images", ["train", str(folder), "--backbone", "none", "--model", "small", "--skip-bad", *QUICK])


OPTIONS = (
    *("--epochs", "--warmup", "--batch", "--lr", "--seed", "--threads", "--workers", "--size", "--test", "--valid"),
    *("--noise-rate", "--rate", "--weight-decay", "--lam", "--scores", "--noise-map", "--noise", "--method", "--model"),
    *("--criterion", "--set", "--device", "--precision", "--augment", "--normalise", "--sampler", "--forward"),
    *("--labels", "--features", "--weights", "--init", "--backbone", "--label-column", "--image-column"),
)
VALUES = st.one_of(
    NUMBERS_AS_TEXT,
    st.sampled_from(["x" * 5000, "meta", "../..", "/", "/dev/null", "pair", "linear", "mlp", "a=b", "lam=x", "a:b"]),
    st.text(st.characters(blacklist_categories=["Cs"]), max_size=12),
    st.integers(-(10**20), 10**20).map(str),
)


@LIMITS
@given(given=st.lists(st.tuples(st.sampled_from(OPTIONS), VALUES), max_size=3))
def test_options(given):
    np.savez(
        place() / "small.npz",
        images=np.random.default_rng(0).integers(0, 255, (20, 8, 8), dtype=np.uint8),
        labels=np.arange(20) % 2,
    )
    words = [word for pair in given for word in pair]
    rate = [] if "--noise-rate" in words else ["--noise-rate", "0.2"]
    check("options", ["train", str(place() / "small.npz"), *rate, *words, "--dry-run", "--out", str(place() / "never")])


def test_one_hundred_thousand_columns_in_linear_time():
    """Quadratic time would be minutes; the limit is far above what a busy machine needs."""
    file = place() / "wide.csv"
    names = [f"c{number}" for number in range(100_000)]
    file.write_text(",".join([*names, "label"]) + "\n" + "".join(f"{'1,' * 100_000}{k % 2}\n" for k in range(4)))
    assert check("tables", ["check", str(file)]).seconds < 10
