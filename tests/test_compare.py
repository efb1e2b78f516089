"""compare: methods as they are named, and what is shown of them."""

import numpy as np
import pytest

from labelsieve.cli import execute
from labelsieve.errors import InputError
from labelsieve.experiments.compare import Named, expanded, named


def test_a_method_with_a_criterion_and_options():
    assert named("sl") == Named("sl", None, ())
    assert (
        named("co-teaching:all") == Named("co-teaching", "all", ())
        and str(named("co-teaching:all")) == "co-teaching (all)"
    )
    both = named("mentornet:all:lam=0.5:align=true")
    assert both == Named("mentornet", "all", (("align", True), ("lam", 0.5)))
    assert str(both) == "mentornet (all, align True, lam 0.5)"
    with pytest.raises(InputError, match="names two criteria, ol and all"):
        named("mentornet:ol:all")
    with pytest.raises(InputError, match="the option lam is given twice"):
        named("mentornet-prop:lam=1:lam=2")


def test_methods_are_named_with_commas_and_count_once():
    assert expanded("sl, sl-prop,sl") == ["sl", "sl-prop"]
    assert expanded("all")[-1] == "co-teaching:all"


def compared(tmp_path, methods, *more):
    images = np.random.default_rng(0).integers(0, 255, size=(60, 8, 8), dtype=np.uint8)
    labels = np.arange(60) % 3
    np.savez(tmp_path / "mine.npz", images=images, labels=labels, test_images=images[:12], test_labels=labels[:12])
    short = ["--epochs", "2", "--warmup", "1", "--model", "small", "--seeds", "1", "--noise", "pair", "--rate", "0.3"]
    return execute(
        ["compare", str(tmp_path / "mine.npz"), "--methods", methods, *short, "--out", str(tmp_path / "out"), *more]
    )


def test_one_method_with_different_options_side_by_side(tmp_path, capsys):
    assert compared(tmp_path, "mentornet-prop,mentornet-prop:lam=0.5,mentornet-prop") == 0
    said = capsys.readouterr().out
    assert said.startswith("2 runs: mentornet-prop, mentornet-prop:lam=0.5; 30% pair noise; seed 0")
    assert "mentornet-prop (lam 0.5) minus mentornet-prop, last test error seed by seed:" in said
    table = (tmp_path / "out" / "table.md").read_text().splitlines()
    assert [line.split(" | ")[0] for line in table[2:]] == ["| mentornet-prop", "| mentornet-prop (lam 0.5)"]


@pytest.mark.parametrize(
    ("methods", "says"),
    [("mentornet:lam=0.5", "mentornet has no option 'lam'"), ("mentornet-prop:lam=", "option lam cannot be ''")],
)
def test_options_that_a_method_does_not_have_are_refused(tmp_path, capsys, methods, says):
    assert compared(tmp_path, methods) == 2
    assert says in capsys.readouterr().err and not (tmp_path / "out").exists()
