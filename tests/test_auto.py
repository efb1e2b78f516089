"""The noise rate found in the data: the estimate from held-out labels, the probe, the choice, a run that is cut."""

import json
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labelsieve.audit import held_out as unseen_module
from labelsieve.audit.estimate import Interval, Noise
from labelsieve.audit.findings import findings_of, verdict
from labelsieve.audit.guesses import guesses_from_run, guesses_of
from labelsieve.audit.held_out import Unseen, dense, label_likelihood, tempered, unseen_noise
from labelsieve.auto import judge as judging
from labelsieve.auto import train as single
from labelsieve.auto import train as train_auto
from labelsieve.auto.audit import findings_in, selects, told_to
from labelsieve.auto.judge import (
    held_out_guesses,
    held_out_noise,
    judges,
    noise_among,
    plain_guesses,
    second_opinion,
    seen_by,
)
from labelsieve.auto.plan import (
    FREE,
    cautious,
    choice,
    longer,
    plain_probes,
    planned_trainings,
    probe_of,
    says_one_class,
    second_look,
    several,
    share_held_out,
    suited,
    usual_plain_probes,
)
from labelsieve.cli import execute
from labelsieve.errors import InputError
from labelsieve.methods import METHODS
from labelsieve.report.words import beware
from labelsieve.runs.data import held_out as parted
from labelsieve.runs.execute import prepare, training_of
from labelsieve.runs.read import finished_runs, read_run, read_samples, starved
from labelsieve.runs.spec import Experiment, planned
from tests.conftest import blobs, killed_after_an_epoch

CLASSES = 6


def held_out(kind, rate, count=3000, seed=0):
    """True classes drawn from known probabilities, and labels under noise."""
    random = np.random.default_rng(seed)
    probs = tempered(random.dirichlet(np.full(CLASSES, 0.3), count), 0.7)
    true = (probs.cumsum(1) > random.random((count, 1))).argmax(1)
    step = 1 if kind == "pair" else random.integers(1, CLASSES, count)
    labels = np.where(random.random(count) < rate, (true + step) % CLASSES, true)
    return labels, probs, (labels != true).mean()


@pytest.mark.parametrize("kind", ["pair", "symmetry"])
@pytest.mark.parametrize("rate", [0.1, 0.25, 0.4])
def test_the_rate_of_known_noise_is_found(kind, rate):
    labels, probs, true = held_out(kind, rate)
    seen = unseen_noise(labels, probs)
    assert abs(seen.rate.estimate - true) < 0.03
    assert seen.rate.low <= seen.rate.estimate <= seen.rate.high and seen.rate.low - 0.02 < true < seen.rate.high + 0.02
    assert (seen.chance > seen.rate.estimate / 2) is (kind == "symmetry")
    assert np.allclose(seen.matrix.sum(1), 1)
    if kind == "pair":
        assert all(seen.matrix[k, (k + 1) % CLASSES] > rate - 0.1 for k in range(CLASSES))


@pytest.mark.parametrize("sureness", [0.5, 1.0, 2.0])
def test_clean_labels_look_clean_however_sure_the_network_is(sureness):
    labels, probs, _ = held_out("pair", 0.0)
    assert unseen_noise(labels, tempered(probs, sureness)).rate.estimate < 0.02


def test_samples_that_come_class_by_class_are_looked_at_from_the_first_to_the_last(monkeypatch):
    """Only the labels of the last three classes are wrong; a third of the samples is looked at."""
    (true, probs, _), (labels, _, _) = held_out("pair", 0.0), held_out("pair", 0.4)
    kept = np.flatnonzero((labels == true) | (labels >= 3))
    order = kept[np.argsort(labels[kept], kind="stable")]
    monkeypatch.setattr(unseen_module, "MOST", len(order) // 3 * CLASSES)
    seen = unseen_noise(labels[order], probs[order])
    assert abs(seen.rate.estimate - (labels != true)[order].mean()) < 0.05


@given(st.integers(2, 5), st.integers(1, 40), st.integers(0, 1000))
def test_an_estimate_is_always_a_share(classes, count, seed):
    random = np.random.default_rng(seed)
    labels, probs = random.integers(0, classes, count), random.dirichlet(np.ones(classes), count)
    seen = unseen_noise(labels, probs)
    assert 0 <= seen.rate.low <= seen.rate.estimate <= seen.rate.high <= 1 and np.isfinite(seen.matrix).all()


def test_guesses_become_a_table_again():
    random = np.random.default_rng(0)
    probs = random.dirichlet(np.full(8, 0.2), 20)
    again = dense(guesses_of(random.integers(0, 8, 20), probs))
    assert np.allclose(again.sum(1), 1, atol=1e-6) and (again.argmax(1) == probs.argmax(1)).all()
    assert np.abs(again - probs).max() < 0.05
    few = random.dirichlet(np.ones(3), 5)
    assert np.allclose(dense(guesses_of(np.zeros(5, int), few)), few, atol=1e-6)


@pytest.mark.parametrize(("epochs", "warmup"), [(20, 10), (100, 25), (30, 7), (3, 1), (28, 14), (50, 19)])
def test_until_the_end_of_the_warm_up_the_probe_is_the_training(epochs, warmup):
    asked = Experiment(epochs=epochs, warmup=warmup, valid=0.1)
    probe = probe_of(asked)
    assert warmup < probe.epochs <= epochs and probe.seed == asked.seed and probe.valid == asked.valid
    rates, real = (training_of(each).lr_at for each in (probe, asked))
    assert [rates(epoch) for epoch in range(probe.epochs)] == [real(epoch) for epoch in range(probe.epochs)]


def unseen(rate, chance):
    return Unseen(Interval(rate, rate / 2, 2 * rate), chance, np.eye(3), 1.0)


@pytest.mark.parametrize(
    ("rate", "chance", "method", "reason"),
    [
        (0.4, 0.05, "mentornet-prop", "certain classes"),
        (0.4, 0.35, "mentornet", "all classes alike"),
        (0.01, 0.0, "mentornet-prop", "so few wrong labels"),
    ],
)
def test_the_choice_follows_what_was_seen(rate, chance, method, reason):
    chosen = choice(Experiment(), unseen(rate, chance), None)
    assert (chosen.experiment.method, chosen.experiment.noise_rate) == (method, rate)
    assert reason in chosen.reasons[1] and f"{100 * rate:.1f}%" in chosen.reasons[0]
    insisted = choice(Experiment(options=(("beta", 1.0),)), unseen(rate, chance), "sl")
    assert insisted.experiment == Experiment(method="sl", noise_rate=rate, options=(("beta", 1.0),))


def test_how_much_is_held_out():
    assert [share_held_out(n) for n in (500, 3000, 4000, 6000, 50_000)] == [0.2, 0.2, 0.15, 0.1, 0.1]


def test_few_samples_are_held_out_in_turn_and_all_learnt_from():
    asked = Experiment(data="photos", seed=3)
    training, probes = planned_trainings(asked, 1500)
    assert training == asked and [probe.fold for probe in probes] == [0, 1, 2, 3, 4]
    assert {replace(probe, fold=0, valid=0.0) for probe in probes} == {probe_of(asked)} and probes[0].valid == 0.2
    _, both = planned_trainings(asked, 1500, (0.02, 0.05))
    assert [(probe.lr, probe.fold) for probe in both] == [(lr, fold) for lr in (0.02, 0.05) for fold in range(5)]
    training, probes = planned_trainings(asked, 3000, (0.02, 0.05))
    assert training == replace(asked, valid=0.2) and probes == [replace(probe_of(asked), valid=0.2)]
    named = replace(asked, valid=0.3)
    assert planned_trainings(named, 500) == (named, [probe_of(named)])


def test_probes_look_again_where_they_found_far_less_than_they_were_told():
    asked, probes = planned_trainings(Experiment(data="photos"), 1500)
    again = second_look(asked, probes, 0.1004)
    assert [probe.noise_rate for probe in again] == [0.1] * 5 and [probe.fold for probe in again] == [0, 1, 2, 3, 4]
    assert {(probe.epochs, probe.drops, probe.choose) for probe in again} == {(asked.epochs, asked.drops, "last")}
    assert second_look(asked, probes, 0.3) == second_look(asked, probes[:1], 0.0) == []
    others = [replace(probe, lr=0.05) for probe in probes]
    assert second_look(replace(asked, lr=0.05), [*probes, *others], 0.1) == [replace(probe, lr=0.05) for probe in again]


@given(st.integers(10, 400), st.integers(0, 9))
def test_folds_share_nothing(samples, seed):
    parts = [parted(samples, 0.2, seed, fold) for fold in range(4)]
    assert all(torch.cat(part).sort().values.equal(torch.arange(samples)) for part in parts)
    every = torch.cat([held for _, held in parts])
    assert len(every.unique()) == len(every) == 4 * round(0.2 * samples)


def test_a_fold_that_is_not_there_is_refused():
    with pytest.raises(InputError, match="no fold 5 of 20 of 100 samples"):
        parted(100, 0.2, 0, 5)


@pytest.mark.parametrize(
    ("kept", "named"),
    [([0.6, 0.22, 0.9, 0.0], ["Dress (22%)"]), ([0.6, 0.55, 0.65, 0.0], []), ([0.0, 0.6, 0.6, 0.0], ["Coat (0%)"])],
)
def test_a_class_that_starves_is_named(auto_run, kept, named):
    epochs = [{"kept": [1.0, 1.0, 1.0, 0.0]}, {"kept": kept}]  # the last class has no samples
    run = replace(read_run(auto_run), classes=["Coat", "Dress", "Bag", "Shirt"], epochs=epochs)
    run.spec["noise_rate"] = 0.4
    assert starved(run) == named
    said = beware(run)
    assert len(said) == len(named) and all(
        line.startswith(f"Beware: little was learnt from {named[0]};") for line in said
    )


@pytest.mark.parametrize(
    ("options", "advice"), [([], ", or with --set align=true\n"), (["--set", "align=true"], "with another --seed\n")]
)
def test_a_training_that_was_told_the_rate_names_a_class_that_starves(options, advice, noisy_file, tmp_path, capsys):
    told = ["train", str(noisy_file), *QUICK, "--epochs", "2", "--warmup", "1", "--noise-rate", "0.3", *options]
    assert execute([*told, "--out", str(tmp_path / "told")]) == 0
    assert "beware: little" not in capsys.readouterr().out
    *rest, last, end = (tmp_path / "told" / "record.jsonl").read_text().splitlines()
    row = json.loads(last)
    row["kept"][1] = 0.07
    (tmp_path / "told" / "record.jsonl").write_text("\n".join([*rest, json.dumps(row), end]) + "\n")
    assert execute([*told, "--out", str(tmp_path / "told")]) == 0  # done already: its record is told again
    said = capsys.readouterr().out
    assert f"beware: little was learnt from {read_run(tmp_path / 'told').classes[1]} (7%)" in said and advice in said


QUICK = ["--model", "small", "--epochs", "12", "--warmup", "4", "--batch", "32", "--lr", "0.05", "--threads", "1"]


@pytest.fixture(scope="module")
def noisy_file(tmp_path_factory):
    """Easy images, 30% of whose labels are that of the next class."""
    path = tmp_path_factory.mktemp("data") / "blobs.npz"
    train, test = blobs(1200, 0), blobs(200, 1)
    random = np.random.default_rng(0)
    labels = np.where(random.random(1200) < 0.3, (train.labels.numpy() + 1) % 4, train.labels.numpy())
    images = [each.images.permute(0, 2, 3, 1).numpy() for each in (train, test)]
    np.savez(path, images=images[0], labels=labels, test_images=images[1], test_labels=test.labels.numpy())
    return path


@pytest.fixture(scope="module")
def auto_run(noisy_file, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "auto"
    assert execute(["train", str(noisy_file), *QUICK, "--out", str(out)]) == 0
    return out


def test_own_data_is_trained_without_a_noise_rate(auto_run, noisy_file, capsys):
    run = read_run(auto_run)
    assert abs(held_out_noise(auto_run).rate.estimate - 0.3) < 0.1 and abs(run.spec["noise_rate"] - 0.3) < 0.1
    assert run.start["chosen"]["method"] == run.spec["method"] == "mentornet-prop"
    assert run.start["chosen"]["noise_rate"] == run.spec["noise_rate"] and len(run.start["chosen"]["reasons"]) == 2
    assert run.spec["valid"] == 0 and run.end["chosen_epoch"] == 12 and run.start["samples"] == 1200
    assert run.epochs[run.end["chosen_epoch"] - 1]["test_error"] < 5
    before = (auto_run / "record.jsonl").read_bytes()
    assert execute(["train", str(noisy_file), *QUICK, "--out", str(auto_run)]) == 0
    said = capsys.readouterr().out
    assert "already trained" in said and "of the labels look wrong" in said and "labelsieve review" in said
    assert "probes of" not in said and (auto_run / "record.jsonl").read_bytes() == before


def test_every_label_is_judged_by_a_probe_that_did_not_learn_it(auto_run, noisy_file):
    held = held_out_guesses(judges(auto_run))
    with np.load(noisy_file) as data:
        labels = data["labels"]
    parts = [read_samples(auto_run / "probe" / str(number))["split"] == 1 for number in range(1, 6)]
    assert (np.sum(parts, axis=0) == 1).all() and len(held) == 1200
    assert (held.labels == np.concatenate([labels[part] for part in parts])).all()
    assert finished_runs(auto_run) == [auto_run]


def test_the_learning_rate_that_foretells_held_out_labels_best_is_taken(noisy_file, tmp_path, capsys):
    out = tmp_path / "chosen"
    brief = ["--model", "small", "--epochs", "4", "--warmup", "1", "--threads", "1"]
    assert execute(["train", str(noisy_file), *brief, "--out", str(out)]) == 0
    tried = [out / "probe" / str(number) for number in range(1, 11)]
    assert [read_run(probe).spec["lr"] for probe in tried] == [0.02] * 5 + [0.05] * 5
    foretold = {0.02: seen_by(tried[:5]).likelihood, 0.05: seen_by(tried[5:]).likelihood}
    run = read_run(out)
    assert run.spec["lr"] == max(foretold, key=foretold.get) and run.spec["batch"] == 32
    assert f"chosen:  learning rate {run.spec['lr']:g}: " in capsys.readouterr().out
    assert {read_run(judge).spec["lr"] for judge in judges(out)} == {run.spec["lr"]} and len(judges(out)) == 5
    again = (out / "again").exists()
    assert {judge.parent.name for judge in judges(out)} == {"again" if again else "probe"}


def test_labels_that_are_foretold_are_likelier():
    labels, probs, _ = held_out("pair", 0.2)
    shuffled = np.random.default_rng(1).permutation(probs)
    assert unseen_noise(labels, probs).likelihood > unseen_noise(labels, shuffled).likelihood + 0.3
    assert -np.log(CLASSES) - 0.01 < unseen_noise(labels, shuffled).likelihood < 0


def test_a_share_that_a_person_names_is_held_out(noisy_file, tmp_path):
    out = tmp_path / "named"
    assert execute(["train", str(noisy_file), *QUICK, "--valid", "0.1", "--out", str(out)]) == 0
    run = read_run(out)
    assert run.start["samples"] == 1080 and run.end["chosen_epoch"] > 9 and len(held_out_guesses(judges(out))) == 120
    assert [folder.name for folder in (out / "probe").iterdir()] == ["1"]


def test_killed_in_the_probe_and_in_the_training_it_ends_in_the_same_bits(auto_run, noisy_file, tmp_path):
    out = tmp_path / "cut"
    command = [sys.executable, "-m", "labelsieve", "train", str(noisy_file), *QUICK, "--out", str(out)]
    for record in (out / "probe" / "2" / "record.jsonl", out / "record.jsonl"):
        killed_after_an_epoch(command, record)
    assert execute(command[3:]) == 0

    def rows(path):
        lines = map(json.loads, (path / "record.jsonl").read_text().splitlines())
        return [{k: v for k, v in row.items() if k != "seconds"} for row in lines if row["event"] != "resume"]

    assert rows(out) == rows(auto_run) and rows(out / "probe" / "2") == rows(auto_run / "probe" / "2")
    for name in ("model.safetensors", "samples.safetensors"):
        assert (out / name).read_bytes() == (auto_run / name).read_bytes()


def test_a_folder_with_other_files_is_left_alone(noisy_file, tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("mine")
    assert execute(["train", str(noisy_file), *QUICK, "--out", str(tmp_path)]) == 2
    assert "holds other files" in capsys.readouterr().err and [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("rate", ["auto", "0.3"])
def test_a_file_is_no_folder_for_a_run(rate, noisy_file, tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("mine")
    assert execute(["train", str(noisy_file), *QUICK, "--noise-rate", rate, "--out", str(tmp_path / "thesis.txt")]) == 2
    assert "thesis.txt is a file, not a folder; name another --out\n" in capsys.readouterr().err
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_a_run_that_was_told_the_rate_is_left_alone_before_any_probe(noisy_file, tmp_path, capsys):
    told = ["train", str(noisy_file), *QUICK, "--epochs", "2", "--warmup", "1", "--out", str(tmp_path / "told")]
    assert execute([*told, "--noise-rate", "0.3"]) == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert execute(told) == 2
    assert "told is another run: its training was told the noise rate; name another --out" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_what_was_told_by_a_person_is_not_what_was_found(auto_run):
    found = read_run(auto_run)
    named = replace(found, start={})
    assert told_to(found) == 0 and told_to(named) == found.spec["noise_rate"] > 0.1
    assert told_to(replace(named, spec={**found.spec, "method": "gce"})) == 0  # it does not select by it


def test_a_method_is_asked_whether_it_selects(monkeypatch):
    """A new one is told apart without being named anywhere."""
    monkeypatch.setitem(METHODS, "mine", METHODS["mentornet"])
    monkeypatch.setitem(METHODS, "plain", METHODS["default"])
    assert selects("mine", None) and not selects("plain", None) and selects("plain", "ol")
    told = {name for name in METHODS if name != "mine" and selects(name, None)}
    pairs = {name + also for name in ("mentornet", "selfie") for also in ("", "-prop")}
    assert told == pairs | {"co-teaching", "co-teaching+", "sl-prop", "jocor"}


def test_too_little_to_hold_out_is_said(tmp_path, capsys):
    data = blobs(45, 0)
    images = data.images.permute(0, 2, 3, 1).numpy()
    np.savez(tmp_path / "few.npz", images=images, labels=data.labels.numpy())
    assert execute(["train", str(tmp_path / "few.npz"), *QUICK, "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert "held out 45 samples, too few to estimate a noise rate; say --noise-rate, or --valid" in error


@pytest.mark.parametrize(
    ("misspelt", "says"),
    [
        (["--method", "mentornetprop"], "did you mean mentornet-prop?"),
        (["--criterion", "oll"], "did you mean ol?"),
        (["--set", "flor=0.5"], "has no option 'flor'"),
        (["--method", "sl", "--set", "beta=much"], "option beta cannot be 'much'"),
        (["--method", "selfie", "--set", "rounds=0"], "rounds must be at least 1"),
        (["--method", "vat", "--forward", "second"], "--forward second"),
        (["--method", "co-teaching", "--init", "runs/other"], "networks that differ"),
    ],
)
@pytest.mark.parametrize("rate", [[], ["--noise-rate", "auto"]])
def test_a_method_that_cannot_be_is_refused_before_any_probe(misspelt, says, rate, noisy_file, capsys, monkeypatch):
    monkeypatch.setattr(train_auto, "train_auto", lambda *_: pytest.fail("the probes began"))
    assert execute(["train", str(noisy_file), *misspelt, *rate]) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1


def test_a_dry_run_says_that_a_probe_comes_first(noisy_file, capsys):
    assert execute(["train", str(noisy_file), *QUICK, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert (
        "cost:    5 probes of 9 epochs and, where few labels are wrong, 5 probes of 12 epochs, then 12 epochs" in said
    )
    assert " ms, 5 probes of 4 epochs that do not select, as many epochs from corrected labels: about " in said


def test_the_probe_keeps_every_class_alive(auto_run):
    spec = json.loads((auto_run / "probe" / "5" / "spec.json").read_text())["experiment"]
    assert (
        spec["options"] == [["align", True], ["floor", 0.5]] and spec["noise_rate"] == 0.4 and spec["choose"] == "last"
    )
    assert torch.tensor(read_run(auto_run / "probe" / "5").epochs[-1]["kept"]).min() > 0.2


def test_the_audit_tells_the_rate_of_what_was_held_out(auto_run, capsys, monkeypatch):
    monkeypatch.setattr(judging, "label_likelihood", lambda labels, probs: -np.inf)  # selecting probes judge
    assert execute(["audit", str(auto_run)]) == 0
    summary = json.loads((auto_run / "audit" / "summary.json").read_text())
    assert list(summary["noise_rate"].values()) == pytest.approx(
        list(cautious(held_out_noise(auto_run).rate)), abs=1e-5
    )
    said = capsys.readouterr().out
    assert "% of the 1,200 labels look wrong" in said
    expected = sum(row["estimate"] * row["samples"] for row in summary["per_class"]) / 1200
    assert expected == pytest.approx(summary["noise_rate"]["estimate"], abs=1e-5)  # the classes tell the same story
    off_diagonal = 1 - np.diagonal(summary["noise_matrix"])
    assert off_diagonal == pytest.approx([row["estimate"] for row in summary["per_class"]], abs=0.02)
    assert "come from models that judged labels which they had not learnt from" in summary["basis"]
    assert summary["basis"] in said


@pytest.mark.parametrize(
    ("likeliest", "told"),
    [(0.0, 0.0), (0.004, 0.0), (0.02, 0.0105), (0.1, 0.0925), (0.3, 0.2975), (0.4, 0.4), (0.6, 0.6)],
)
def test_what_is_told_stays_below_the_likeliest_rate_where_little_is_wrong(likeliest, told):
    assert cautious(Interval(likeliest, 0.0, 0.7)) == pytest.approx((told, 0.0, 0.7))
    assert cautious(Interval(likeliest, likeliest, 0.7)).low == pytest.approx(told)  # the range holds the estimate


@pytest.mark.parametrize(("rate", "clean"), [((0.05, 0.01, 0.08), True), ((0.05, 0.03, 0.08), False)])
def test_few_wrong_labels_with_a_range_from_near_zero_are_called_clean(rate, clean):
    said = verdict(Noise(cautious(Interval(*rate)), [], np.eye(4)), 3, 1200, list("abcd"))
    assert said.startswith("The labels look clean") is clean


def test_a_direction_is_only_named_where_the_other_way_is_rare():
    matrix = np.array([[0.9, 0.1, 0.0], [0.02, 0.98, 0.0], [0.0, 0.0, 1.0]])
    rate = Interval(0.05, 0.04, 0.06)
    assert "about 10% of those labelled a seem to be b" in verdict(Noise(rate, [], matrix), 3, 100, list("abc"))
    matrix[1] = [0.05, 0.95, 0.0]
    said = verdict(Noise(rate, [], matrix), 3, 100, list("abc"))
    assert "a and b are mixed up most (about 10% of those labelled a, 5.0% of those labelled b)" in said


def test_one_command_leaves_the_list_of_suspects_and_the_page(auto_run):
    assert (auto_run / "audit" / "labels.csv").stat().st_size and "<html" in (auto_run / "report.html").read_text()


def test_a_network_that_says_one_class_of_all_is_told():
    samples = {"likeliest": np.array([[1, 0]] * 97 + [[0, 1]] * 3), "label": np.array([0, 1] * 50)}
    assert says_one_class(samples, ["a", "b"]) == "b"
    assert says_one_class({**samples, "label": np.array([1] * 95 + [0] * 5)}, ["a", "b"]) == ""  # so the labels are
    assert says_one_class({**samples, "likeliest": np.array([[1, 0]] * 90 + [[0, 1]] * 10)}, ["a", "b"]) == ""


def test_whoever_names_the_rate_gets_the_same_settings(tmp_path):
    photos = tmp_path / "blobs.npz"
    data = blobs(200, 0)
    np.savez(photos, images=data.images.permute(0, 2, 3, 1).numpy(), labels=data.labels.numpy())
    asked = planned(str(photos), model="auto", noise_rate=0.2)
    ((told, probes),) = train_auto.settled(asked, FREE, unknown=False)
    ((found, _),) = train_auto.settled(asked, FREE, unknown=True)
    assert probes == [] and replace(told, noise_rate=0.0) == replace(found, noise_rate=0.0) != replace(
        asked, noise_rate=0.0
    )
    named = replace(asked, model="mlp")
    assert train_auto.settled(named, FREE, unknown=False) == [(named, [])]


def test_plain_probes_are_short_and_believe_all_labels():
    asked, probes = planned_trainings(Experiment(data="photos", epochs=30, warmup=10), 1500)
    plain = plain_probes(asked, probes)
    assert [probe.fold for probe in plain] == [0, 1, 2, 3, 4] and {probe.valid for probe in plain} == {0.2}
    facts = {(probe.method, probe.noise_rate, probe.options, probe.epochs, probe.drops) for probe in plain}
    assert facts == {("default", 0.0, (), 10, (0.5, 0.75))} and usual_plain_probes(asked, probes) == plain
    one = plain_probes(asked, [replace(probes[0], valid=0.1)])
    usual = usual_plain_probes(asked, probes[:1])
    assert one == plain and usual == [plain[0], replace(plain[0], epochs=30)] == [plain[0], longer(plain, asked)[0]]
    assert several(usual) == "2 probes of 10 and 30 epochs" and several(plain) == "5 probes of 10 epochs"


@pytest.mark.parametrize(
    ("worse", "worse_longer", "trained"), [(0.03, 0.0, (5, 0)), (0.05, 0.03, (1, 5)), (0.05, 0.038, (1, 1))]
)
def test_a_run_that_held_out_samples_needs_more_than_one_plain_probe_only_if_it_is_not_clearly_worse(
    noisy_file, tmp_path, monkeypatch, worse, worse_longer, trained
):
    seen = {}

    def foretold(labels, probs):
        seen["labels"] = labels
        longer_ones = any((out / "longer").glob("*/done"))
        return noise_among(held_out_guesses([out])).likelihood - (worse_longer if longer_ones else worse)

    out = tmp_path / "run"
    monkeypatch.setattr(judging, "label_likelihood", foretold)
    brief = ["--epochs", "4", "--warmup", "1", "--valid", "0.1", "--no-final"]
    assert execute(["train", str(noisy_file), *QUICK, *brief, "--out", str(out)]) == 0
    assert tuple(len(list((out / folder).glob("*/done"))) for folder in ("plain", "longer")) == trained
    assert {read_run(probe.parent).spec["epochs"] for probe in (out / "longer").glob("*/done")} <= {4}
    assert (plain_guesses(out) is not None) is (5 in trained)
    own = held_out_guesses([out])
    assert sorted(seen["labels"]) == sorted(own.labels)  # both are asked about the same samples
    findings = findings_in(out, read_samples(out), list("0123"))
    assert findings.held_out == len(own) == 120
    assert findings.noise.rate[:2] == cautious(noise_among(own).rate)[:2]


def test_plain_probes_judge_where_they_foretell_labels_better(auto_run, monkeypatch):
    names, folders = list("0123"), [auto_run / "plain" / str(number) for number in range(1, 6)]
    samples = read_samples(auto_run)
    chosen = findings_in(auto_run, samples, names)
    monkeypatch.setattr(judging, "label_likelihood", lambda labels, probs: -np.inf)
    assert plain_guesses(auto_run) is None
    selecting = findings_in(auto_run, samples, names)
    monkeypatch.setattr(judging, "label_likelihood", lambda labels, probs: 0.0)
    guesses = plain_guesses(auto_run)
    plainly = findings_in(auto_run, samples, names)
    assert (plainly.quality == findings_of(guesses, tuple(names), unlearnt=True).quality).all()
    assert any((chosen.quality == each.quality).all() for each in (plainly, selecting))
    for folder in folders:
        probe = read_samples(folder)
        held = probe["split"] == 1
        assert np.allclose(dense(guesses.at(held)), dense(guesses_from_run(probe, 4).at(held)), atol=1e-6)


def test_plain_probes_that_are_not_all_there_do_not_judge(auto_run, tmp_path, monkeypatch):
    monkeypatch.setattr(judging, "label_likelihood", lambda labels, probs: 0.0)
    shutil.copytree(auto_run, tmp_path / "cut")
    assert plain_guesses(tmp_path / "cut") is not None
    (tmp_path / "cut" / "plain" / "3" / "done").unlink()
    assert plain_guesses(tmp_path / "cut") is None


@pytest.mark.parametrize(("worse", "judge"), [(0.03, True), (0.05, False)])
def test_selecting_probes_judge_only_if_they_foretell_labels_clearly_better(auto_run, monkeypatch, worse, judge):
    selecting = noise_among(held_out_guesses(judges(auto_run))).likelihood
    monkeypatch.setattr(judging, "label_likelihood", lambda labels, probs: selecting - worse)
    assert (plain_guesses(auto_run) is not None) is judge


@pytest.mark.parametrize(
    ("likelihood", "other", "better"),
    [
        (-0.70, -0.74, True),  # 0.04 better, 5% of what is lacking
        (-0.70, -0.73, False),  # 0.03 is less than the bound
        (-1.60, -1.64, False),  # 0.04 again, but 2.4%
        (-1.60, -1.66, True),  # 3.6%
        (-1.60, -np.inf, True),
        (-0.05, 0.0, False),
    ],
)
def test_clearly_better_is_by_a_bound_and_by_a_share(likelihood, other, better):
    assert judging.clearly_better(likelihood, other, 0.035) is better


def test_train_tells_of_a_network_that_says_one_class(auto_run, noisy_file, capsys, monkeypatch):
    monkeypatch.setattr(single, "says_one_class", lambda samples, classes: classes[1])
    assert execute(["train", str(noisy_file), *QUICK, "--out", str(auto_run)]) == 0
    assert "beware: the model says 1 of nearly every sample: it has learnt nothing" in capsys.readouterr().out


def test_how_well_labels_are_foretold_does_not_depend_on_being_too_sure():
    random = np.random.default_rng(0)
    probs = random.dirichlet(np.ones(4), 500)
    labels = np.array([random.choice(4, p=row) for row in probs])
    known = label_likelihood(labels, probs)
    assert known >= np.log(probs[np.arange(500), labels]).mean()
    assert label_likelihood(labels, tempered(probs, 0.5)) == pytest.approx(known, abs=0.02)
    sure = np.full((2, 4), 0.1)
    sure[:, 0] = 0.7
    assert label_likelihood(np.array([0, 0]), sure) > np.log(0.95)  # always right: the colder the better


def test_the_audit_asks_the_probe_that_did_not_learn_a_label(auto_run):
    """Half of the log-probability is the run's, half that of the probe that held the sample out."""
    samples, probe = read_samples(auto_run), read_samples(judges(auto_run)[1])
    asked = second_opinion(guesses_from_run(samples, 4), judges(auto_run), samples["split"])
    held = probe["split"] == 1
    own, other = (dense(guesses_from_run(each, 4).at(held)) for each in (samples, probe))
    both = np.sqrt(np.maximum(own * other, 1e-12))
    assert np.allclose(dense(asked.at(held)), both / both.sum(1, keepdims=True), atol=1e-6)
    assert (asked.labels == samples["label"]).all()
    split = samples["split"].copy()
    split[0] = 1  # a run that held something out speaks for itself
    assert second_opinion(guesses_from_run(samples, 4), [], split).likelihood is samples["likelihood"]


def test_settings_suit_the_small_network_where_nobody_names_them():
    asked = Experiment(data="photos", model="auto", valid=0.1)
    every = suited(asked, "small", ["epochs", "warmup", "batch", "lr"], 1500)
    assert (every.epochs, every.warmup, every.batch, every.lr) == (30, 10, 32, 0.02)
    some = suited(replace(asked, epochs=9, warmup=4), "small", ["warmup", "lr"], 1500)
    assert (some.epochs, some.warmup, some.batch, some.lr) == (9, 3, 128, 0.02)
    assert [suited(asked, "small", ["batch"], n).batch for n in (300, 3000, 6000, 50_000)] == [32, 64, 128, 128]
    assert suited(asked, "densenet-25-12", ["lr", "batch"], 1500) == asked
    fashion = Experiment(data="fashion")
    assert suited(fashion, "small", ["lr", "epochs", "batch"], 6000) == fashion


def test_corrected_labels_do_not_make_the_old_ones_true(noisy_file, tmp_path):
    """What a person corrects is not the truth, and nothing may be measured against it."""
    np.save(tmp_path / "y.npy", np.zeros(1200, np.int64))
    asked = Experiment(data=str(noisy_file), labels=str(tmp_path / "y.npy"), model="small", warmup=1)
    assert prepare(asked).train.clean is None
    assert prepare(replace(asked, labels=None, noise="pair", rate=0.1)).train.clean is not None
    np.save(tmp_path / "y.npy", np.zeros(6000, np.int64))
    assert prepare(replace(asked, data="fashion")).train.clean is not None
