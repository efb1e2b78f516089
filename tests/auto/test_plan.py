"""The plan of an automatic training: judges, the delivered training, and the list of stages."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelsieve.auto.plan import (
    LEARNING_RATES,
    TRAINING,
    Candidate,
    Found,
    Request,
    final_training,
    in_folds,
    plain_judges,
    plan,
)
from labelsieve.auto.request import make_request
from labelsieve.auto.train import stage_progress
from labelsieve.cli import execute
from labelsieve.runs.data import Shelf, held_out
from labelsieve.runs.read import STAGE_FOLDERS
from labelsieve.runs.spec import OPEN_SETTINGS, Experiment, experiment_for
from tests.auto.conftest import QUICK
from tests.conftest import save_blobs

RUN = Path("runs/auto")


def candidate(**settings):
    training = Experiment(data="photos", **settings)
    return Candidate(training, plain_judges(training))


@given(st.integers(50, 10_000), st.integers(0, 3))
def test_every_sample_is_held_out_by_one_of_five_folds(samples, seed):
    folds = [held_out(samples, each.valid, seed, each.fold) for each in in_folds(Experiment(data="photos"))]
    assert (np.sort(np.concatenate([held for _, held in folds])) == np.arange(samples)).all()
    for kept, held in folds:
        assert len(kept) + len(held) == samples and not {*kept.tolist()} & {*held.tolist()}
        assert abs(len(held) - samples / 5) < 5


def test_plain_judges_are_short_and_use_every_label():
    judges = plain_judges(Experiment(data="photos", epochs=30, warmup=10, valid=0.3, scores=(1,)))
    assert [judge.fold for judge in judges] == [0, 1, 2, 3, 4] and {judge.valid for judge in judges} == {0.2}
    settings = {(judge.method, judge.noise_rate, judge.options, judge.epochs, judge.drops) for judge in judges}
    assert settings == {("default", 0.0, (), 10, (0.5, 0.75))}
    assert {(judge.choose, judge.scores) for judge in judges} == {("last", ())}
    both = plain_judges(Experiment(data="photos"), LEARNING_RATES)
    assert [(judge.lr, judge.fold) for judge in both] == [(lr, fold) for lr in LEARNING_RATES for fold in range(5)]


def test_selecting_judges_get_what_the_plain_ones_found():
    request = Request((candidate(epochs=30, warmup=10),))
    stages = {stage.name: stage for stage in plan(request, RUN, Found(lr=0.05, rate=0.2, method="mentornet"))}
    selecting = stages["selecting judges"].experiments
    assert [judge.fold for judge in selecting] == [0, 1, 2, 3, 4] and {judge.valid for judge in selecting} == {0.2}
    settings = {(judge.method, judge.noise_rate, judge.lr, judge.epochs, judge.warmup) for judge in selecting}
    assert settings == {("mentornet", 0.2, 0.05, 30, 10)}
    assert dict(selecting[0].options) == {"align": True, "floor": 0.5}


def test_second_round_learns_corrected_labels_without_the_fifth_that_it_judges():
    training = candidate(epochs=30, warmup=10).training
    second = next(stage for stage in plan(Request((candidate(epochs=30, warmup=10),)), RUN) if stage.folder == "second")
    assert second.experiments == in_folds(final_training(training, RUN / "second" / "corrected.npy"))
    assert {(e.method, e.epochs, e.valid) for e in second.experiments} == {("default", 30, 0.2)}


def test_final_training_uses_all_samples_with_corrected_labels():
    given = Experiment(criterion="all", options=(("lam", 2),), noise_rate=0.3, valid=0.2, scores=(1,), seed=7)
    final = final_training(given, Path("corrected.npy"))
    assert final == Experiment(method="default", corrected="corrected.npy", choose="last", seed=7)


def test_stages_depend_on_what_was_requested():
    every = (candidate(valid=0.1),)
    names = ["plain judges", "selecting judges", "second round", "training"]
    found = Found(rate=0.2)
    final, named, refused = (
        plan(request, RUN, found) for request in (Request(every), Request(every, "sl"), Request(every, final=False))
    )
    assert [[stage.name for stage in stages] for stages in (final, named, refused)] == [names] * 3
    delivered = [stages[-1].experiments[0] for stages in (final, named, refused)]
    assert delivered[0] == final_training(every[0].training, RUN / "corrected.npy")
    assert delivered[1] == replace(every[0].training, noise_rate=0.2)
    selecting = replace(delivered[2], valid=0.2, choose="last")
    assert delivered[2].valid == 0.1 and selecting == refused[1].experiments[0]
    alone = Candidate(every[0].training, ())
    assert [stage.name for stage in plan(Request((alone,)), RUN)] == ["training"]
    assert [stage.name for stage in plan(Request((alone, alone)), RUN)] == ["network", "training"]


def test_plan_does_not_depend_on_the_number_of_samples(tmp_path):
    """There is no size from which on labels are judged in another way."""
    plans = []
    for samples in (200, 2999, 3000, 4000):
        data = str(save_blobs(tmp_path / f"{samples}.npz", samples))
        options = {"noise_is_unknown": True, "method": None, "final": True, "shelf": Shelf()}
        request = make_request(experiment_for(data, model="auto"), OPEN_SETTINGS, **options)
        stages = plan(request, RUN)
        plans.append([(s.name, [replace(e, data="", batch=1) for e in s.experiments]) for s in stages])
    assert plans == [plans[0]] * 4


@st.composite
def requests(draw):
    known = draw(st.booleans())
    epochs = draw(st.integers(2, 60))
    settings = {"epochs": epochs, "warmup": draw(st.integers(0, epochs - 1)), "seed": draw(st.integers(0, 3))}
    settings |= {"valid": draw(st.sampled_from([0.0, 0.1, 0.3])), "lr": draw(st.sampled_from(LEARNING_RATES))}
    rates = draw(st.sampled_from([(), LEARNING_RATES]))
    every = [Experiment(data="photos", model=name, **settings) for name in ("small", "compact")]
    candidates = [Candidate(each, () if known else plain_judges(each, rates)) for each in every]
    method = draw(st.sampled_from([None, "sl", "co-teaching"]))
    return Request(tuple(candidates[: draw(st.integers(1, 2))]), method, draw(st.booleans()))


@st.composite
def findings(draw, request):
    network = draw(st.sampled_from([None, *range(len(request.candidates))]))
    rate = draw(st.floats(0, 0.9))
    return Found(network, draw(st.sampled_from([None, *LEARNING_RATES])), rate=rate)


@given(st.data())
def test_properties_of_every_plan(data):
    request = data.draw(requests())
    found = data.draw(findings(request))
    stages = plan(request, RUN, found)
    folders = [folder for stage in stages for folder in stage.folders(RUN)]
    assert len(set(folders)) == len(folders) == sum(len(stage.experiments) for stage in stages)
    places = [(*STAGE_FOLDERS, TRAINING).index(stage.folder) for stage in stages]
    assert places == sorted(set(places)) and "training" in [stage.name for stage in stages]
    for stage in stages:
        if stage.name != "training":
            assert {experiment.valid for experiment in stage.experiments} == {0.2}
            assert len({(e.model, e.lr, e.fold) for e in stage.experiments}) == len(stage.experiments)
    delivered = stages[-1].experiments[0]
    assert stages[-1].folders(RUN) == [RUN]
    if request.noise_is_unknown:
        final = request.final and request.method is None
        assert (delivered.corrected == str(RUN / "corrected.npy")) is final
        assert delivered.noise_rate == (0.0 if final else found.rate)
        assert not final or delivered.valid == 0
    if found.network is not None:
        assert delivered.model == request.candidates[found.network].training.model


@given(st.data())
def test_progress_counts_the_epochs_of_all_stages(data):
    stages = plan(data.draw(requests()), RUN)
    total = sum(stage.epochs for stage in stages)
    for stage in stages:
        for number, _ in enumerate(stage.experiments):
            progress = stage_progress(stages, stage, number)
            assert progress.earlier + progress.all_epochs + progress.later == total
            several = len(stages) > 1
            assert (
                progress.part.startswith(f"stage {stages.index(stage) + 1} of {len(stages)}, {stage.name}") is several
            )


@pytest.mark.parametrize(
    ("channels", "options"),
    [(1, QUICK), (3, QUICK[2:]), (1, [*QUICK, "--valid", "0.2"]), (1, [*QUICK, "--method", "sl"])],
)
def test_dry_run_lists_the_stages_of_the_plan(tmp_path, capsys, channels, options):
    data = save_blobs(tmp_path / "data.npz", 300, wrong=0.2, channels=channels)
    assert execute(["train", str(data), *options, "--out", str(tmp_path / "run"), "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = lines[lines.index("stages:") + 1 : next(i for i, line in enumerate(lines) if line.startswith("cost:"))]
    settings = dict(zip((name.strip("-") for name in options[::2]), options[1::2], strict=True))
    kinds = {"epochs": int, "warmup": int, "batch": int, "threads": int, "lr": float, "valid": float}
    given = {"model": "auto"} | {name: kinds.get(name, str)(value) for name, value in settings.items()}
    request = make_request(
        experiment_for(str(data), **given),
        [name for name in OPEN_SETTINGS if name not in given],
        noise_is_unknown=True,
        method=given.get("method"),
        final=True,
        shelf=Shelf(),
    )
    stages = plan(request, tmp_path / "run")
    assert len(shown) == len(stages) == 4 + (channels == 3)
    for number, (line, stage) in enumerate(zip(shown, stages, strict=True), 1):
        assert line.split(maxsplit=1)[0] == f"{number}." and line.split(maxsplit=1)[1].startswith(f"{stage.name} ")
        assert line.endswith(f"  {stage.purpose} ({stage})")
    assert f"{sum(stage.epochs for stage in stages)} epochs of " in lines[-2] and not (tmp_path / "run").exists()
