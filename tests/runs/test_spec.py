"""Experiment: names, saved specifications, and settings that suit data and network."""

import json
from dataclasses import replace

import pytest

from labelsieve.errors import InputError
from labelsieve.runs.spec import (
    Experiment,
    experiment_for,
    experiment_from,
    parse_options,
    suited_to_network,
    with_defaults,
)


def test_saved_specification_gives_the_same_experiment():
    experiment = Experiment(method="sl", options=(("beta", 1.0),), drops=(0.3,), seed=4, data="photos")
    saved = json.loads(json.dumps(experiment.as_dict()))
    assert experiment_from(saved) == experiment and experiment_from({**saved, "of another version": 1}) == experiment
    del saved["fold"], saved["sampler"]  # fields that were introduced later
    assert experiment_from(with_defaults(saved)) == experiment


def test_name_depends_on_everything_that_changes_the_result():
    experiment = Experiment()
    assert experiment.name() == replace(experiment, cache="c", workers=3, scores=(2,)).name()
    others = [{"seed": 1}, {"threads": 2}, {"options": (("lam", 0.5),)}, {"fold": 1}, {"data": "photos"}]
    assert len({experiment.name(), *(replace(experiment, **changed).name() for changed in others)}) == 6


def test_settings_suit_the_network_where_the_user_gives_none():
    given = Experiment(data="photos", model="auto", valid=0.1)
    every = suited_to_network(given, "small", ["epochs", "warmup", "batch", "lr"], 1500)
    assert (every.epochs, every.warmup, every.batch, every.lr) == (30, 10, 32, 0.02)
    some = suited_to_network(replace(given, epochs=9, warmup=4), "small", ["warmup", "lr"], 1500)
    assert (some.epochs, some.warmup, some.batch, some.lr) == (9, 3, 128, 0.02)
    batches = [suited_to_network(given, "small", ["batch"], samples).batch for samples in (300, 3000, 6000, 50_000)]
    assert batches == [32, 64, 128, 128]
    assert suited_to_network(given, "densenet-25-12", ["lr", "batch"], 1500) == given
    fashion = Experiment(data="fashion")
    assert suited_to_network(fashion, "small", ["lr", "epochs", "batch"], 6000) == fashion


def test_settings_suit_the_embedded_data():
    embedded = experiment_for("fashion", epochs=None, lr=0.1)
    assert (embedded.model, embedded.epochs, embedded.warmup, embedded.lr) == ("small", 20, 10, 0.1)
    assert experiment_for("photos", epochs=40).warmup == 10


def test_options_are_parsed():
    assert parse_options(["lam=2", "update=stack", "align=True", "floor=0.5"]) == (
        ("align", True),
        ("floor", 0.5),
        ("lam", 2),
        ("update", "stack"),
    )
    for texts, message in ((["lam"], "name=value"), (["=2"], "name=value"), (["a=1", "a=1"], "given twice")):
        with pytest.raises(InputError, match=message):
            parse_options(texts)
