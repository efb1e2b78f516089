"""The plan of an automatic training: probes, judges, the choice of method and noise rate, and the list of stages."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelsieve.audit.estimate import Interval
from labelsieve.audit.held_out import HeldOutNoise
from labelsieve.auto.plan import (
    LEARNING_RATES,
    STAGES,
    Candidate,
    Found,
    Request,
    choose_training,
    final_training,
    plain_judges,
    plan,
    probe_of,
    second_probes,
    share_held_out,
    with_probes,
)
from labelsieve.auto.train import make_request, stage_progress
from labelsieve.cli import execute
from labelsieve.runs.data import Shelf
from labelsieve.runs.execute import training_of
from labelsieve.runs.spec import OPEN_SETTINGS, Experiment, experiment_for
from tests.auto.conftest import QUICK
from tests.conftest import save_blobs

RUN = Path("runs/auto")


def held_out_noise(rate, uniform=0.0):
    return HeldOutNoise(Interval(rate, rate / 2, min(2 * rate, 1.0)), uniform, np.eye(3), 1.0)


@pytest.mark.parametrize(("epochs", "warmup"), [(20, 10), (100, 25), (30, 7), (3, 1), (28, 14), (50, 19)])
def test_probe_equals_the_training_until_the_end_of_the_warmup(epochs, warmup):
    training = Experiment(epochs=epochs, warmup=warmup, valid=0.1)
    probe = probe_of(training)
    assert warmup < probe.epochs <= epochs and probe.seed == training.seed and probe.valid == training.valid
    rates, real = (training_of(each).lr_at for each in (probe, training))
    assert [rates(epoch) for epoch in range(probe.epochs)] == [real(epoch) for epoch in range(probe.epochs)]


@pytest.mark.parametrize(
    ("rate", "uniform", "method", "reason"),
    [
        (0.4, 0.05, "mentornet-prop", "certain classes"),
        (0.4, 0.35, "mentornet", "from all classes equally"),
        (0.01, 0.0, "mentornet-prop", "certain classes"),
    ],
)
def test_method_and_rate_follow_the_estimate(rate, uniform, method, reason):
    chosen = choose_training(Experiment(), held_out_noise(rate, uniform), None, ["network: small"])
    assert (chosen.experiment.method, chosen.experiment.noise_rate) == (method, rate)
    assert chosen.reasons[0] == "network: small" and f"noise rate: {100 * rate:.1f}%" in chosen.reasons[1]
    assert chosen.reasons[2].startswith(f"method: {method}") and reason in chosen.reasons[2]
    requested = choose_training(Experiment(options=(("beta", 1.0),)), held_out_noise(rate, uniform), "sl")
    assert requested.experiment == Experiment(method="sl", noise_rate=rate, options=(("beta", 1.0),))
    assert requested.reasons[1] == "method: sl (requested)"


def test_share_held_out_depends_on_the_number_of_samples():
    assert [share_held_out(n) for n in (500, 3000, 4000, 6000, 50_000)] == [0.2, 0.2, 0.15, 0.1, 0.1]


def test_few_samples_are_held_out_in_turn_and_all_used_for_training():
    given = Experiment(data="photos", seed=3)
    training, probes = with_probes(given, 1500)
    assert training == given and [probe.fold for probe in probes] == [0, 1, 2, 3, 4]
    assert {replace(probe, fold=0, valid=0.0) for probe in probes} == {probe_of(given)} and probes[0].valid == 0.2
    _, both = with_probes(given, 1500, (0.02, 0.05))
    assert [(probe.lr, probe.fold) for probe in both] == [(lr, fold) for lr in (0.02, 0.05) for fold in range(5)]
    training, probes = with_probes(given, 3000, (0.02, 0.05))
    assert training == replace(given, valid=0.2) and probes == [replace(probe_of(given), valid=0.2)]
    own_share = replace(given, valid=0.3)
    assert with_probes(own_share, 500) == (own_share, [probe_of(own_share)])


def test_second_probes_get_the_estimate_if_it_is_low():
    training, probes = with_probes(Experiment(data="photos"), 1500)
    again = second_probes(training, probes, 0.1004)
    assert [probe.noise_rate for probe in again] == [0.1] * 5 and [probe.fold for probe in again] == [0, 1, 2, 3, 4]
    assert {(probe.epochs, probe.drops, probe.choose) for probe in again} == {(training.epochs, training.drops, "last")}
    assert second_probes(training, probes, 0.3) == second_probes(training, probes[:1], 0.0) == ()
    others = [replace(probe, lr=0.05) for probe in probes]
    found = second_probes(replace(training, lr=0.05), [*probes, *others], 0.1)
    assert found == tuple(replace(probe, lr=0.05) for probe in again)


def test_plain_judges_are_short_and_use_every_label():
    training, probes = with_probes(Experiment(data="photos", epochs=30, warmup=10), 1500)
    judges = plain_judges(training, probes)
    assert [judge.fold for judge in judges] == [0, 1, 2, 3, 4] and {judge.valid for judge in judges} == {0.2}
    settings = {(judge.method, judge.noise_rate, judge.options, judge.epochs, judge.drops) for judge in judges}
    assert settings == {("default", 0.0, (), 10, (0.5, 0.75))}
    assert plain_judges(training, [replace(probes[0], valid=0.1)]) == judges


def test_final_training_uses_all_samples_with_corrected_labels():
    selecting = Experiment(criterion="all", options=(("lam", 2),), noise_rate=0.3, valid=0.2, scores=(1,), seed=7)
    final = final_training(selecting, Path("corrected.npy"))
    assert final == Experiment(method="default", corrected="corrected.npy", choose="last", seed=7)


def test_stages_of_a_run_that_holds_samples_out_itself():
    training, probes = with_probes(Experiment(data="photos", epochs=30, warmup=10), 4000)
    request = Request((Candidate(training, probes),))
    stages = {stage.name: stage for stage in plan(request, RUN)}
    assert list(stages) == ["probe", "training", "judges", "long judges", "final"]
    assert str(stages["judges"]) == "1 training of 10 epochs" and len(stages["judges"].experiments) == 5
    assert stages["long judges"].epochs == 30 and {e.epochs for e in stages["long judges"].experiments} == {30}
    assert [stage.name for stage in plan(request, RUN, Found(judged=True))] == ["probe", "training", "judges", "final"]


def test_stages_depend_on_what_was_requested():
    training, probes = with_probes(Experiment(data="photos"), 1500)
    candidates = (Candidate(training, probes),)
    names = [stage.name for stage in plan(Request(candidates), RUN)]
    assert names == ["probe", "second probe", "training", "judges", "final"]
    high = Found(noise=held_out_noise(0.4))
    assert "second probe" not in [stage.name for stage in plan(Request(candidates), RUN, high)]
    for request in (
        Request((Candidate(training, probes),), "sl"),
        Request((Candidate(training, probes),), final=False),
    ):
        assert [stage.name for stage in plan(request, RUN)] == names[:-1]
    alone = Candidate(training, ())
    assert [stage.name for stage in plan(Request((alone,)), RUN)] == ["training"]
    assert [stage.name for stage in plan(Request((alone, alone)), RUN)] == ["network", "training"]


@st.composite
def requests(draw):
    known = draw(st.booleans())
    samples = draw(st.integers(300, 9000))
    epochs = draw(st.integers(2, 60))
    settings = {"epochs": epochs, "warmup": draw(st.integers(0, epochs - 1)), "seed": draw(st.integers(0, 3))}
    settings |= {"valid": draw(st.sampled_from([0.0, 0.1, 0.3])), "lr": draw(st.sampled_from(LEARNING_RATES))}
    rates = draw(st.sampled_from([(), LEARNING_RATES]))
    every = [Experiment(data="photos", model=name, **settings) for name in ("small", "compact")]
    candidates = [Candidate(each, ()) if known else with_probes(each, samples, rates) for each in every]
    method = draw(st.sampled_from([None, "sl", "co-teaching"]))
    return Request(tuple(candidates[: draw(st.integers(1, 2))]), method, draw(st.booleans()))


@st.composite
def findings(draw, request):
    network = draw(st.sampled_from([None, *range(len(request.candidates))]))
    rate = draw(st.one_of(st.none(), st.floats(0, 0.9)))
    noise = None if rate is None else held_out_noise(rate, draw(st.floats(0, 1)))
    lr = None if noise is None else draw(st.sampled_from([None, *LEARNING_RATES]))
    return Found(network, lr, noise, draw(st.booleans()))


@given(st.data())
def test_properties_of_every_plan(data):
    request = data.draw(requests())
    found = data.draw(findings(request))
    stages = plan(request, RUN, found)
    folders = [folder for stage in stages for folder in stage.folders(RUN)]
    assert len(set(folders)) == len(folders) == sum(len(stage.experiments) for stage in stages)
    places = [STAGES.index(stage.name) for stage in stages]
    assert places == sorted(set(places)) and "training" in [stage.name for stage in stages]
    for stage in stages:
        if stage.name not in ("training", "final"):
            assert all(0 < experiment.valid < 1 for experiment in stage.experiments)
            assert len({(e.model, e.lr, e.fold) for e in stage.experiments}) == len(stage.experiments)
    training = next(stage for stage in stages if stage.name == "training").experiments[0]
    if request.noise_is_unknown and found.noise is not None:
        assert training.noise_rate == round(found.noise.rate.estimate, 3)
        assert request.method is None or training.method == request.method
    if found.network is not None:
        assert training.model == request.candidates[found.network].training.model
    final = [stage for stage in stages if stage.name == "final"]
    assert bool(final) is (request.noise_is_unknown and request.final and request.method is None)
    assert not final or final[0].experiments[0].valid == 0


@given(st.data())
def test_progress_counts_the_epochs_of_all_stages(data):
    stages = plan(data.draw(requests()), RUN)
    total = sum(stage.epochs for stage in stages)
    for stage in stages:
        for number, _ in enumerate(stage.experiments[: stage.expected]):
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
    assert len(shown) == len(stages) > 3
    for number, (line, stage) in enumerate(zip(shown, stages, strict=True), 1):
        assert line.split(maxsplit=1)[0] == f"{number}." and line.split(maxsplit=1)[1].startswith(f"{stage.name} ")
        assert f"  {stage.purpose} ({stage}" in line and stage.condition in line
    assert f"{sum(stage.epochs for stage in stages)} epochs of " in lines[-2] and not (tmp_path / "run").exists()
