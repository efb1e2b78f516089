"""Training in several processes: equality with one process, equal states, resuming, streaming and killed processes."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import nn
from torch.distributed import HashStore

from labelsieve.cli import execute
from labelsieve.core.processes import Processes, all_processes
from labelsieve.data.images import FileReader, Frame, Pictures
from labelsieve.data.sets import Streamed
from labelsieve.errors import InputError
from labelsieve.methods import METHODS, Problem, make
from labelsieve.models.networks import Dropout, freeze_norms, make_networks
from labelsieve.noise import corrupt, pair
from labelsieve.runs.execute import follow, run
from labelsieve.runs.spec import Experiment
from labelsieve.runs.team import Team
from labelsieve.train import Checkpoints, Training, fit
from labelsieve.train.share import DistributedNetworks
from tests.conftest import LONG_WAIT, blobs, save_blobs, without_resumes
from tests.together import together

TRAINING = Training(epochs=3, batch=32, lr=0.02, seed=3)
COUNT = 2 * 32 + 2  # the last batch has fewer samples than three processes
PREDICTING = {"gce": {"k": 0.5, "prune_every": 1}, "mentornet-prop": {"update": "repredict"}, "lccn": {"refresh": 2}}
EQUAL = ("mentornet-prop", "selfie-prop", "co-teaching", "sop")  # compared with batch-norm and dropout


def normed():
    """Return a network with batch-norm and dropout."""
    layers = [nn.Conv2d(1, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), Dropout(0.2), nn.Linear(128, 4)]
    return nn.Sequential(*layers)


def plain():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4))


def noisy():
    clean = blobs(COUNT, 0)
    return clean.relabelled(corrupt(clean.labels, pair(4, 0.3), seed=0))


def trained(name, make_one, epochs=3, data=None, folder=None, **options):
    """Train in all processes; return the result and the final states of networks and method."""
    options |= {"rounds": 2} if name.startswith("selfie") else {}
    method = make(name, Problem(4, 0.3, 1, num_samples=COUNT), **options)
    latest = []

    def networks(number):
        latest[:] = [make_networks(make_one, method.networks, 3, number)]
        return latest[0]

    training = Training(epochs=epochs, batch=TRAINING.batch, lr=TRAINING.lr, seed=TRAINING.seed)
    processes = all_processes()
    checkpoints = Checkpoints(folder) if folder and processes.rank == 0 else None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "dmi cannot learn")
        result = fit(
            networks,
            method,
            data or noisy(),
            blobs(100, 1),
            training=training,
            checkpoints=checkpoints,
            processes=processes,
        )
    states = {**latest[0].state_dict(), **{f"method.{name}": value for name, value in method.state_dict().items()}}
    return result, {name: value.clone() for name, value in states.items()}


def on_disk(folder):
    """Return the same data as images that are streamed from disk."""
    data = noisy()
    names = [f"{number}.png" for number in range(COUNT)]
    pictures = Pictures(names, FileReader(folder, names), data.labels, tuple(data.classes))
    return Streamed(pictures, Frame(8, 8, 1), data.labels, tuple(data.classes), data.clean, workers=2)


def every_training(folder):
    """Train all that the tests compare, in one set of processes."""
    results = {name: trained(name, normed) for name in EQUAL}
    if all_processes().count == 3:
        return results
    results |= {f"{name} plain": trained(name, plain, 2) for name in METHODS}
    results |= {f"{name} predicts": trained(name, plain, 3, **given) for name, given in PREDICTING.items()}
    if all_processes().count == 2:
        results["whole"] = trained("mentornet-prop", normed, folder=folder / "checkpoints")
        if all_processes().rank == 0:
            (folder / "checkpoints" / "000003.json").unlink()
        results["resumed"] = trained("mentornet-prop", normed, folder=folder / "checkpoints")
        results["disk"] = trained("mentornet-prop", plain, 2, on_disk(folder / "images"))
    return results


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return the results of one, two and three processes, by number and rank."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "images").mkdir()
    for number, image in enumerate(noisy().images):
        Image.fromarray(image[0].numpy()).save(folder / "images" / f"{number}.png")
    return {count: together(count, folder / str(count), every_training, folder) for count in (1, 2, 3)}


def losses(result):
    return torch.tensor([row["train_loss"] for row in result.rows], dtype=torch.float64)


def same_states(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        *((name, count) for name in EQUAL for count in (2, 3)),
        *((f"{name} plain", 2) for name in METHODS),
        *((f"{name} predicts", 2) for name in PREDICTING),
    ],
)
def test_several_processes_equal_one_with_the_union_of_their_batches(runs, name, count):
    (one, state), (result, spread) = runs[1][0][name], runs[count][0][name]
    assert (losses(one) - losses(result)).abs().max() < 1e-5
    assert torch.equal(one.samples["selected"], result.samples["selected"])
    assert [row["kept"] for row in one.rows] == [row["kept"] for row in result.rows]
    if not name.startswith("vat"):  # its finite differences amplify rounding
        assert [row["test_error"] for row in one.rows] == [row["test_error"] for row in result.rows]
    for table, values in one.tables.items():
        assert torch.allclose(values, result.tables[table], atol=1e-6, rtol=0), table
    for each, values in state.items():
        scale = 2**36 if values.dtype == torch.int64 and each.endswith(("sums", "columns")) else 1
        assert torch.allclose(values.double(), spread[each].double(), atol=1e-4 * scale, rtol=0), each


@pytest.mark.parametrize("count", [2, 3])
def test_every_process_has_the_same_state(runs, count):
    for name, (result, state) in runs[count][0].items():
        for rank in range(1, count):
            other, others = runs[count][rank][name]
            assert same_states(state, others), name
            assert torch.equal(losses(result), losses(other)) and same_states(result.tables, other.tables), name


def test_resumed_training_is_bit_identical(runs):
    for rank in range(2):
        (whole, state), (resumed, again) = runs[2][rank]["whole"], runs[2][rank]["resumed"]
        assert same_states(state, again) and torch.equal(losses(whole), losses(resumed))
        assert same_states(whole.samples, resumed.samples)


def test_streamed_data_gives_the_same_training(runs):
    (resident, state), (disk, streamed) = runs[2][0]["mentornet-prop plain"], runs[2][0]["disk"]
    assert same_states(state, streamed) and torch.equal(losses(resident), losses(disk))


@given(st.integers(1, 9), st.integers(0, 40))
def test_every_sample_of_a_batch_belongs_to_one_process(count, total):
    rows = [Processes(rank, count).rows(total) for rank in range(count)]
    taken = [place for each in rows for place in range(total)[each]]
    if total >= count:
        assert taken == list(range(total))
        assert max(each.stop - each.start for each in rows) - min(each.stop - each.start for each in rows) <= 1
        means = sum(Processes(rank, count).mean_factor(total) for rank in range(count)) / count
        assert means == pytest.approx(1)
    else:
        assert taken == list(range(total)) * count  # each process has all


def normalised(count):
    """Return outputs, gradients and statistics of batch-norms over the rows of this process."""
    processes = all_processes()
    random = torch.Generator().manual_seed(0)
    x, y = (torch.randn(count, 3, 4, 4, generator=random) for _ in range(2))
    frozen = freeze_norms(nn.Sequential(nn.BatchNorm2d(3)))
    layers = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1, bias=False), nn.BatchNorm2d(3, affine=False), frozen)
    with torch.no_grad():
        layers[1].weight.copy_(torch.randn(3, 3, 1, 1, generator=random))
    rows = processes.rows(count)
    networks = DistributedNetworks(layers, processes)
    out = networks(x[rows], count)
    (out * y[rows]).sum().mul(processes.count if count >= processes.count else 1).backward()
    kinds = [type(layer).__name__ for layer in (layers[0], layers[2], frozen[0])]
    values = [out.detach(), *(p.grad for p in layers.parameters()), *(b.double() for b in layers.buffers())]
    return kinds, values


@pytest.mark.parametrize("count", [2, 7])
def test_batch_norm_uses_the_rows_of_all_processes(count, tmp_path):
    """Compared with torch's own in one process, forward, backward and running statistics, with uneven rows."""
    ((_, one),) = together(1, tmp_path / "1", normalised, count)
    three = together(3, tmp_path / "3", normalised, count)
    if count >= 3:
        assert torch.allclose(torch.cat([values[0] for _, values in three]), one[0], atol=1e-5)
    for kinds, values in three:
        assert kinds == ["SyncedNorm", "SyncedNorm", "_FrozenNorm"]
        for ours, truth in zip(values[1:], one[1:], strict=True):
            assert torch.allclose(ours, truth, atol=1e-4, rtol=1e-5)


def torchrun(*words, script=None):
    """Start a labelsieve command in two processes; return its exit code, its output and its lines that are errors."""
    target = [str(script)] if script else ["-m", "labelsieve"]
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *target]
    done = subprocess.run(
        [*start, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=LONG_WAIT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return done.returncode, done.stdout, [line for line in done.stderr.splitlines() if line.startswith("error: ")]


def test_killed_process_ends_all_with_one_line_and_the_same_command_resumes(tmp_path):
    """The second process is killed in the second epoch, then the first one in the third."""
    data = save_blobs(tmp_path / "data.npz", 203, wrong=0.3, test=60)
    settings = ["--noise-rate", "0.3", "--epochs", "4", "--warmup", "1", "--batch", "32", "--scores", "2"]
    command = ["train", data, *settings, "--out"]
    code, printed, errors = torchrun(*command, tmp_path / "whole")
    assert (code, errors) == (0, []) and printed.count("epoch 4/4") == 1
    killed = Path(__file__).with_name("killed.py")
    for rank, steps, epochs in ((1, 9, 1), (0, 10, 2)):  # seven steps in an epoch
        code, _, errors = torchrun(rank, steps, *command, tmp_path / "killed", script=killed)
        other = "" if rank else "rank 1: "
        assert code != 0
        assert errors == [f"error: {other}another process of this training ended; run the same command again to resume"]
        assert len([row for row in without_resumes(tmp_path / "killed") if row["event"] == "epoch"]) == epochs
    code, printed, errors = torchrun(*command, tmp_path / "killed")
    assert (code, errors) == (0, []) and "epoch 3/4" in printed and "epoch 2/4" not in printed
    assert without_resumes(tmp_path / "killed") == without_resumes(tmp_path / "whole")
    assert without_resumes(tmp_path / "whole")[0]["processes"] == 2
    for name in ("model.safetensors", "tables.safetensors", "samples.safetensors", "scores-2.safetensors"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["audit", "x"], "error: torchrun works with labelsieve train only; run labelsieve audit without it"),
        (["train", "--batch", "x"], "error: argument --batch: 'x' is not an integer; see labelsieve train --help"),
    ],
)
def test_errors_in_the_command_line_are_printed_by_the_first_process(words, message, monkeypatch, capsys):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    for rank, lines in (("0", [message]), ("1", [])):
        monkeypatch.setenv("RANK", rank)
        assert execute(words) == 2
        assert capsys.readouterr().err.splitlines() == lines


def announced(experiment, data="another"):
    """Return a follower of a team whose first process has announced a training."""
    store = HashStore()
    leader, follower = (Team(Processes(rank, 2), store) for rank in range(2))
    leader.announce({"experiment": experiment.as_dict(), "data": data})
    leader.announce(None)
    return follower


def test_other_data_on_another_machine_is_refused(tmp_path):
    data = save_blobs(tmp_path / "data.npz", 40)
    team = announced(Experiment(data=str(data), model="small", epochs=2, warmup=1))
    with pytest.raises(InputError, match=r"data.npz is not the same on every machine: its fingerprint is .*, another"):
        follow(team)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"batch": 1}, "a batch of 1 is too small for 2 processes; raise --batch"),
        ({"forward": "second"}, "--forward second needs the whole batch in one process; run labelsieve train without"),
    ],
)
def test_settings_for_one_process_are_refused(changed, message, tmp_path):
    experiment = Experiment(data="fashion", model="small", epochs=2, warmup=1, **changed)
    with pytest.raises(InputError, match=message):
        run(experiment, tmp_path / "run", team=Team(Processes(0, 2), HashStore()))
    assert not (tmp_path / "run").exists()


def test_one_process_reports():
    store = HashStore()
    teams = [Team(Processes(rank, 3), store) for rank in range(3)]
    assert [team.is_first_to_report() for team in teams] == [True, False, False]
