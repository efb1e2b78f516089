"""Run one experiment: prepare data, networks and method, train, and write the results into the run folder.

`prepare` raises every foreseeable error before anything is written. `run` trains, or resumes an interrupted training,
in a run folder; a finished run is recognised from its specification and the fingerprint of its files before anything
is decoded.
"""

import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor, nn

import labelsieve
from labelsieve import noise
from labelsieve.core.method import Method
from labelsieve.core.part import Predict, label_dtype
from labelsieve.core.processes import Processes
from labelsieve.data import Labelled, Trainable
from labelsieve.errors import InputError
from labelsieve.features.backbones import OWN_NORMALISE, Backbone, weights_with_head
from labelsieve.features.judge import choose_strength, fit_head
from labelsieve.files import usable_cores
from labelsieve.methods import Problem, make
from labelsieve.models import default_model, make_model
from labelsieve.models.linear import LinearHead
from labelsieve.models.load import load_weights
from labelsieve.models.networks import (
    Networks,
    first_network_weights,
    freeze_norms,
    make_networks,
    make_placeholder,
    move_to_device,
    multiplications,
)
from labelsieve.predict import load
from labelsieve.runs.data import Gathered, Shelf, backbone_of, gather, source_fingerprint_of
from labelsieve.runs.folder import RunFolder, scores_name
from labelsieve.runs.read import HELD_OUT, TESTED, TRAINED
from labelsieve.runs.record import errors
from labelsieve.runs.spec import Experiment, experiment_from
from labelsieve.runs.team import Team
from labelsieve.runtime import device_name, usable_device
from labelsieve.train import Result, Training, fit
from labelsieve.train.augment import center_window, window_size
from labelsieve.train.checkpoint import Record, Row, add_prefix, serialize_tensors
from labelsieve.train.counters import Tally
from labelsieve.train.evaluate import predict_batches, sample_predictions, sample_scores
from labelsieve.train.loop import ChosenEpoch, MakeNetworks, StopFlag, Watcher, has_batch_norm

LINEAR = "linear"  # the network that is fitted by logistic regression
SMALL_STEP = 10**8  # multiplications in a forward pass of one batch, up to which threads would mostly wait
MATRIX_IN_RECORD = 20  # classes; larger noise matrices are only in tables.safetensors


@dataclass(frozen=True, kw_only=True)
class Prepared(Gathered):
    """An experiment with everything that its training needs; its sets are on the device, except the whole one."""

    make_networks: MakeNetworks
    method: Method
    training: Training
    model: str  # name of the network
    shape: tuple[int, ...]  # of one sample, as the network receives it
    backbone: Backbone | None  # that computed the features


def prepare(experiment: Experiment, shelf: Shelf) -> Prepared:
    """Load the data, add noise, and create networks and method; raise every foreseeable error."""
    device = usable_device(experiment.device)
    data = gather(experiment, shelf)
    spec = backbone_of(experiment)
    method = method_of(experiment, data.train)
    if data.decided is not None:
        for part in method.selections:
            part.trust(data.decided[data.places.train])
    model, shape = model_and_shape(experiment, data.train)
    if data.targets is not None and model != LINEAR:
        raise InputError(f"{experiment.corrected} holds class probabilities, which only the model linear learns")
    sets = {
        "train": shelf.put(data.train, device),
        "valid": data.valid and shelf.put(data.valid, device),
        "test": data.test and shelf.put(data.test, device),
    }
    return Prepared(
        **vars(data) | sets,
        make_networks=_networks_maker(experiment, model, shape, data.train, data.test, method.networks, device),
        method=method,
        training=training_of(experiment),
        model=model,
        shape=shape,
        backbone=None if spec is None else shelf.backbone(spec),
    )


def model_and_shape(experiment: Experiment, train: Trainable) -> tuple[str, tuple[int, ...]]:
    """Return the name of the network, and the shape of one sample as it receives it."""
    window = window_size(experiment.augment)
    if experiment.augment and len(train.shape) == 1:
        raise InputError("--augment applies to images, but the data is a table of numbers; remove --augment")
    shape = (train.shape[0], window, window) if window else train.shape
    model = default_model(shape, torch.device(experiment.device)) if experiment.model == "auto" else experiment.model
    return model, shape


def all_threads() -> int:
    """Return the number of cores, divided by the number of processes that torchrun started on this machine."""
    together = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if "TORCHELASTIC_RUN_ID" in os.environ else 1
    return max(1, usable_cores() // together)


def suited_threads(experiment: Experiment, shelf: Shelf) -> int:
    """Return the number of CPU threads for a training: one if its steps are small, else all cores (decision 45).

    It depends on the network and the batch alone, not on what else the machine does, because sums that are split
    among threads differ in their last bits.
    """
    if is_linear_head(experiment) or experiment.device != "cpu":
        return all_threads()
    gathered = gather(replace(experiment, valid=0.0), shelf)
    train = gathered.train
    model, shape = model_and_shape(experiment, train)
    network = make_placeholder(partial(make_model, model, shape, train.num_classes))
    _refuse_unsuitable_data(network, shape, train, gathered.test, model)
    work = min(experiment.batch, len(train)) * multiplications(network, shape)
    return 1 if work < SMALL_STEP else all_threads()


def method_of(experiment: Experiment, train: Trainable) -> Method:
    """Create the method of an experiment for a training set; refuse unknown methods and unsupported settings."""
    problem = Problem(train.num_classes, experiment.noise_rate, experiment.warmup, len(train), experiment.seed)
    method = make(experiment.method, problem, experiment.criterion, **dict(experiment.options))
    if experiment.forward == "second":
        try:
            method.num_kept(1)
        except ValueError as error:
            raise InputError(f"--forward second does not work with {experiment.method}: {error}") from error
    if experiment.init and method.networks > 1:
        raise InputError(f"{experiment.method} needs networks that differ: it cannot start both from one --init")
    return method


@cache
def rounds_of(experiment: Experiment) -> int:
    """Return how often the networks of an experiment are trained from scratch; 1 if the method cannot be created."""
    problem = Problem(2, 0.0, experiment.warmup, num_samples=1)
    try:
        return make(experiment.method, problem, experiment.criterion, **dict(experiment.options)).num_rounds
    except InputError:
        return 1


def epochs_of(experiment: Experiment) -> int:
    """Return the number of epochs of all rounds of an experiment."""
    return experiment.epochs * rounds_of(experiment)


def training_of(experiment: Experiment) -> Training:
    """Return the training settings contained in an experiment."""
    shared = {setting.name for setting in fields(Training)} & {setting.name for setting in fields(Experiment)}
    return Training(**{name: getattr(experiment, name) for name in shared})


def first_batch(prepared: Prepared) -> Tensor:
    """Return the network inputs of the first batch, to try a step."""
    size = min(prepared.training.batch, len(prepared.train))
    index = torch.arange(size, device=prepared.train.labels.device)
    next(iter(prepared.train.staged(index, size)))
    return center_window(prepared.train.inputs(index), window_size(prepared.training.augment))


def _networks_maker(
    experiment: Experiment,
    model: str,
    shape: tuple[int, ...],
    train: Trainable,
    test: Trainable | None,
    count: int,
    device: torch.device,
) -> MakeNetworks:
    """Return a function that creates the networks of a round, from random, pretrained or earlier weights."""
    make_one = partial(make_model, model, shape, train.num_classes)
    network = make_placeholder(make_one)
    _refuse_unsuitable_data(network, shape, train, test, model)
    if min(experiment.batch, len(train)) == 1 and not is_linear_head(experiment) and has_batch_norm(network):
        raise InputError(f"{model} has batch normalisation, which needs at least two samples per step; raise --batch")
    if experiment.init and experiment.weights:
        raise InputError("--init and --weights both set the initial weights; give one of them")
    start, pretrained = _weights_of_run(experiment.init, make_one)
    start = start or _pretrained_weights(experiment.weights, make_one)

    def networks_of(number: int) -> Networks:
        networks = make_networks(make_one, count, experiment.seed, number)
        if start and (number == 0 or experiment.weights):  # later rounds start from random weights
            for network in networks:
                network.load_state_dict(start, strict=not experiment.weights)
                if pretrained:
                    freeze_norms(network)
        return move_to_device(networks, device, experiment.precision)

    return networks_of


def _refuse_unsuitable_data(
    network: nn.Module, shape: tuple[int, ...], train: Trainable, test: Trainable | None, name: str
) -> None:
    """Refuse samples that the network cannot process, and a test set of another shape."""
    if test is not None and test.shape not in (shape, train.shape):
        raise InputError(
            f"the test images have shape {test.shape} (channels, height, width), the training images {shape}; "
            "give both the same shape, for example with --size"
        )
    try:
        network.eval()(torch.zeros(1, *shape))
    except RuntimeError as error:
        if len(shape) == 1:
            raise InputError(f"{name} cannot process a table of {shape[0]} columns; use mlp") from error
        channels, height, width = shape
        raise InputError(
            f"{name} cannot process images of {height} x {width} pixels with {channels} channels; "
            "images are (n, height, width, channels), channels last"
        ) from error


def _pretrained_weights(path: str | None, make_one: Callable[[], nn.Module]) -> dict[str, Tensor]:
    """Return the weights of a file, without those of a last layer for other classes."""
    if path is None:
        return {}
    network = make_placeholder(make_one)
    fresh = load_weights(network, Path(path))
    return {name: tensor for name, tensor in network.state_dict().items() if name not in fresh}


def _weights_of_run(run: str | None, make_one: Callable[[], nn.Module]) -> tuple[dict[str, Tensor], bool]:
    """Return the weights of the model that an earlier run delivered, and whether they are those of a backbone.

    A linear head on features of a backbone becomes the last layer of the whole network, where that is trained.
    """
    if run is None:
        return {}, False
    start, network = load(run), make_placeholder(make_one)
    head, backbone = start.network, start.backbone
    weights, whole = head.state_dict(), False
    is_whole = not isinstance(network, LinearHead)
    if backbone and backbone.name in OWN_NORMALISE and is_whole and isinstance(head, LinearHead):
        weights = weights_with_head(backbone, head, grayscale=next(network.parameters()).shape[1] == 1)
        whole = True
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise InputError(
            f"the model of {run} has another shape than that of this experiment; give the same --model"
        ) from error
    return weights, whole


def is_finished(experiment: Experiment, path: Path) -> bool:
    """Return whether a folder holds this very run, finished, judging by specification and files without decoding."""
    folder = RunFolder(path)
    folder.refuse_other_settings(experiment)
    return folder.is_finished_from(source_fingerprint_of(experiment))


def run(
    experiment: Experiment,
    path: Path,
    watcher: Watcher | None = None,
    prepared: Prepared | None = None,
    stop: StopFlag | None = None,
    chosen: Row | None = None,
    command: str = "",
    shelf: Shelf | None = None,
    team: Team | None = None,
) -> bool:
    """Train in a run folder, or resume there; return False if the run is already finished.

    Args:
        chosen: Settings that were chosen automatically, with reasons, for the record.
        command: The command line that started the run, for messages about resuming.
        shelf: Datasets that are already decoded.
        team: Processes that train together, of which this is the first; the others `follow`.
    """
    torch.set_num_threads(experiment.threads)
    if prepared is None and is_finished(experiment, path):
        RunFolder(path).require_scores(experiment.scores, experiment.epochs)
        return False
    if team is not None:
        _refuse_for_team(experiment, team.processes)
    prepared = prepared or prepare(experiment, shelf or Shelf())
    with RunFolder(path) as folder:
        folder.claim(experiment, prepared.fingerprint, versions(), command, source_fingerprint_of(experiment))
        if folder.done:
            folder.require_scores(experiment.scores, experiment.epochs)
            return False
        newest = folder.checkpoints.newest()
        if newest is not None and newest[1].get("round") == prepared.method.num_rounds - 1 and experiment.scores:
            folder.require_scores(experiment.scores, int(newest[1]["epochs_done"]))
        if newest is None:
            folder.record.clear()
            together = {"processes": team.processes.count} if team else {}
            folder.record.append(_start_row(experiment, prepared) | together | ({"chosen": chosen} if chosen else {}))
        if is_linear_head(experiment):
            result = _fit_linear(experiment, prepared, folder.record)
            _write_results(experiment, prepared, result, folder)
            return True
        if team is not None:
            team.announce({"experiment": experiment.as_dict(), "data": prepared.fingerprint})
        result = _fit(experiment, prepared, folder, watcher, stop, team)
        _write_results(experiment, prepared, result, folder)
    return True


def follow(team: Team) -> None:
    """Train with the first process of a team, which announces the trainings and writes their results."""
    shelf = Shelf()
    for task in team.tasks():
        experiment = experiment_from(task["experiment"])
        torch.set_num_threads(experiment.threads)
        prepared = prepare(experiment, shelf)
        if prepared.fingerprint != task["data"]:
            raise InputError(
                f"{experiment.data} is not the same on every machine: its fingerprint is {prepared.fingerprint} on "
                f"{platform.node()}, {task['data']} on that of the first process"
            )
        _fit(experiment, prepared, None, None, None, team)


def _fit(
    experiment: Experiment,
    prepared: Prepared,
    folder: RunFolder | None,
    watcher: Watcher | None,
    stop: StopFlag | None,
    team: Team | None,
) -> Result:
    """Train the networks; only the process that writes has a folder."""
    return fit(
        prepared.make_networks,
        prepared.method,
        prepared.train,
        prepared.test,
        valid=prepared.valid,
        training=prepared.training,
        record=folder.record if folder else None,
        checkpoints=folder.checkpoints if folder else None,
        watcher=watcher,
        stop=stop,
        at_epoch_end=partial(_save_scores, experiment.scores, prepared, folder) if experiment.scores else None,
        processes=team.processes if team else Processes(),
    )


def _refuse_for_team(experiment: Experiment, processes: Processes) -> None:
    """Refuse settings that need the samples of a batch in one process."""
    if experiment.forward == "second":
        raise InputError("--forward second needs the whole batch in one process; run labelsieve train without torchrun")
    if experiment.batch < processes.count:
        raise InputError(f"a batch of {experiment.batch} is too small for {processes.count} processes; raise --batch")


def is_linear_head(experiment: Experiment) -> bool:
    """Return whether an experiment is logistic regression, which has no epochs."""
    return experiment.model == LINEAR and experiment.method == "default"


def _fit_linear(experiment: Experiment, prepared: Prepared, record: Record) -> Result:
    """Fit logistic regression to the labels or class probabilities of the training set, as a training of one epoch.

    The strength of the regularisation is --weight-decay for class probabilities; for labels it is chosen by
    cross-validation.
    """
    began = time.perf_counter()
    train = prepared.train
    assert isinstance(train, Labelled)
    networks = prepared.make_networks(0)
    if prepared.targets is None:
        targets, strength = choose_strength(train.images, train.labels, train.num_classes, experiment.seed)
    else:
        targets, strength = prepared.targets.to(train.images.device), experiment.weight_decay
    head = next(iter(networks.children()))
    assert isinstance(head, LinearHead)
    head.assign(*fit_head(train.images, targets, strength))
    probs = _probs_of(networks, train, prepared.training)
    row: Row = {
        "event": "epoch",
        "epoch": 1,
        "strength": strength,
        "train_loss": -(targets * probs.clamp(min=1e-12).log()).sum(1).mean().item(),
        "precision": None if train.clean is None else (targets.argmax(1) == train.clean).double().mean().item(),
        "kept": [1.0] * train.num_classes,
        "kept_share": 1.0,
    }
    for name, data in (("test_error", prepared.test), ("valid_error", prepared.valid)):
        if data is not None:
            predicted = _probs_of(networks, data, prepared.training).argmax(1)
            row[name] = 100 * (predicted != data.labels).double().mean().item()
    row["seconds"] = round(time.perf_counter() - began, 3)
    record.append(row)
    weights = {name: tensor.clone() for name, tensor in networks.state_dict().items()}
    sums = {
        "seen": torch.zeros(len(train), dtype=torch.int32),
        **{name: torch.zeros(len(train)) for name in Tally.names},
    }
    return Result(ChosenEpoch(1, row.get("valid_error"), weights), {}, [row], sums)


def _probs_of(networks: nn.Module, data: Trainable, training: Training) -> Tensor:
    """Return the probabilities (n, K) of the first network for all samples."""
    return torch.cat([probs[0] for probs, _, _ in predict_batches(networks, data, training)])


def _save_scores(
    epochs: Sequence[int], prepared: Prepared, folder: RunFolder | None, epoch: int, predict: Predict
) -> None:
    """Write the scores of every sample after a requested epoch; later rounds overwrite those of earlier ones.

    Processes without a folder take part in the predictions only.
    """
    if epoch not in epochs:
        return
    train = prepared.train
    kind = label_dtype(train.num_classes)
    tensors = sample_scores(prepared.method, predict)
    if folder is None:
        return
    tensors["label"] = train.labels.to(kind)
    if train.clean is not None:
        tensors["clean"] = train.clean.to(kind)
    folder.write(scores_name(epoch), serialize_tensors(tensors))


def _start_row(experiment: Experiment, prepared: Prepared) -> Row:
    """Return the first line of the record: data, network, device and versions."""
    train = prepared.train
    row: Row = {
        "event": "start",
        "samples": len(train),
        "classes": train.num_classes,
        "model": prepared.model,
        "parameters": sum(p.numel() for p in prepared.make_networks(0).parameters()),
        "device": device_name(experiment.device),
        "versions": versions(),
    }
    if train.clean is not None:
        counts = noise.transition_counts(train.clean, train.labels, train.num_classes)
        row["noise"] = {"realised_rate": 1 - counts.diagonal().sum().item() / len(train)}
        if train.num_classes <= MATRIX_IN_RECORD:
            row["noise"]["realised"] = counts.tolist()  # [true][observed], in samples
    return row


def _write_results(experiment: Experiment, prepared: Prepared, result: Result, folder: RunFolder) -> None:
    """Write tables, per-sample statistics, model and the last line of the record, and mark the run as finished."""
    tables = {**add_prefix("last", result.tables), **add_prefix("chosen", result.chosen.tables)}
    if prepared.train.clean is not None:
        classes = prepared.train.num_classes
        tables["noise"] = noise.transition_counts(prepared.train.clean, prepared.train.labels, classes)
    folder.write("tables.safetensors", serialize_tensors(tables))
    folder.write("samples.safetensors", serialize_tensors(_sample_statistics(prepared, result)))
    about = {
        "model": prepared.model,
        "shape": list(prepared.shape),
        "normalise": experiment.normalise,
        "columns": getattr(prepared.train, "columns", None),
        "classes": list(prepared.train.classes),
    }
    weights = first_network_weights(result.chosen.networks)
    if prepared.backbone is not None:
        about["backbone"] = prepared.backbone.about()
        weights |= add_prefix("backbone", prepared.backbone.weights())
    folder.write("model.safetensors", serialize_tensors(weights, {"labelsieve": json.dumps(about)}))
    folder.record.append({"event": "end", "chosen_epoch": result.chosen.epoch, **errors(result.rows)})
    folder.finish()


def _sample_statistics(prepared: Prepared, result: Result) -> dict[str, Tensor]:
    """Return the statistics of every sample of the data's training set, in its order.

    Predictions of the delivered networks (see `sample_predictions`), `split` (trained on, held out or tested),
    `decided` if a reviewer decided labels, `before` if the labels before that are known, and the means of the values
    collected during training, else 0.
    """
    networks = prepared.make_networks(0)
    networks.load_state_dict(result.chosen.networks)
    places = prepared.places
    parts = [
        (TRAINED, places.train, prepared.train),
        (HELD_OUT, places.valid, prepared.valid),
        (TESTED, places.test, prepared.test),
    ]
    known = [(split, where, data) for split, where, data in parts if where is not None and data is not None]
    where = torch.cat([places for _, places, _ in known])
    found = [sample_predictions(networks, data, prepared.training) for *_, data in known]
    whole = {name: _scattered(where, torch.cat([part[name] for part in found])) for name in found[0]}
    whole["split"] = _scattered(where, torch.cat([torch.full((len(p),), s, dtype=torch.uint8) for s, p, _ in known]))
    if prepared.decided is not None:
        whole["decided"] = prepared.decided
    if prepared.before is not None:
        whole["before"] = prepared.before
    return {**whole, **_training_means(result.samples, places.train, len(where))}


def _scattered(where: Tensor, values: Tensor) -> Tensor:
    """Return the values in the order of their positions."""
    whole = torch.empty_like(values)
    whole[where] = values
    return whole


def _training_means(sums: dict[str, Tensor], where: Tensor, count: int) -> dict[str, Tensor]:
    """Return the sums collected during training as means, named mean_*, and how often each sample was seen."""
    seen = torch.zeros(count, dtype=torch.int32)
    seen[where] = sums["seen"].cpu()
    means = {"seen": seen}
    for name, values in sums.items():
        if name != "seen":
            whole = torch.zeros(count)
            whole[where] = values.cpu()
            means[f"mean_{name}"] = whole / seen.clamp(min=1)
    return means


def versions() -> dict[str, str]:
    """Return the versions of labelsieve, torch and Python."""
    return {"labelsieve": labelsieve.__version__, "torch": torch.__version__, "python": platform.python_version()}
