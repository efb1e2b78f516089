"""run: one experiment from its data to its delivered model."""

import json
import platform
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

import labelsieve
from labelsieve import noise
from labelsieve.core.part import Predict
from labelsieve.core.relabel import smallest_integer
from labelsieve.devices import device_name
from labelsieve.experiments.folder import RunFolder, scores_name
from labelsieve.experiments.prepare import Prepared, prepare
from labelsieve.experiments.samples import samples_of
from labelsieve.experiments.spec import Experiment
from labelsieve.models.networks import first_of
from labelsieve.report.whole import errors
from labelsieve.train import Result, fit
from labelsieve.train.checkpoint import prefixed, to_bytes
from labelsieve.train.loop import Watcher
from labelsieve.train.record import Row
from labelsieve.train.scores import sample_scores
from labelsieve.train.signals import StopFlag

MATRIX_IN_RECORD = 20  # classes; larger matrices are in tables.safetensors alone


def run(
    experiment: Experiment,
    path: Path,
    watcher: Watcher | None = None,
    prepared: Prepared | None = None,
    stop: StopFlag | None = None,
    chosen: Row | None = None,
    command: str = "",
) -> bool:
    """Train it in this folder, from where it was cut; False if it was done already."""
    torch.set_num_threads(experiment.threads)
    prepared = prepared or prepare(experiment)
    with RunFolder(path) as folder:
        folder.claim(experiment, prepared.fingerprint, versions(), command)
        if folder.done:
            folder.want_scores(experiment.scores, experiment.epochs)
            return False
        newest = folder.checkpoints.newest()
        if newest is not None and newest[1]["round"] == prepared.method.rounds - 1:
            folder.want_scores(experiment.scores, newest[1]["epochs_done"])
        if newest is None:
            folder.record.cut(0)
            folder.record.append(opening(experiment, prepared) | ({"chosen": chosen} if chosen else {}))
        result = fit(
            prepared.make_networks,
            prepared.method,
            prepared.train,
            prepared.test,
            valid=prepared.valid,
            training=prepared.training,
            record=folder.record,
            checkpoints=folder.checkpoints,
            watcher=watcher,
            stop=stop,
            at_epoch_end=partial(keep_scores, experiment.scores, prepared, folder) if experiment.scores else None,
        )
        deliver(experiment, prepared, result, folder)
    return True


def keep_scores(epochs: Sequence[int], prepared: Prepared, folder: RunFolder, epoch: int, predict: Predict) -> None:
    """Write every sample's scores after an epoch that was asked for; of several rounds, the last one's stay."""
    if epoch not in epochs:
        return
    train = prepared.train
    kind = smallest_integer(train.num_classes)
    tensors = sample_scores(prepared.method, predict)
    tensors["label"] = train.labels.to(kind)
    if train.clean is not None:
        tensors["clean"] = train.clean.to(kind)
    folder.write(scores_name(epoch), to_bytes(tensors))


def opening(experiment: Experiment, prepared: Prepared) -> Row:
    """The first line of the record: what is trained on."""
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
        counts = noise.realised(train.clean, train.labels, train.num_classes)
        row["noise"] = {"realised_rate": 1 - counts.diagonal().sum().item() / len(train)}
        if train.num_classes <= MATRIX_IN_RECORD:
            row["noise"]["realised"] = counts.tolist()  # [true][observed], in samples
    return row


def deliver(experiment: Experiment, prepared: Prepared, result: Result, folder: RunFolder) -> None:
    """Write what the run leaves: the tables, the model, the last line, the mark that it is done."""
    tables = {**prefixed("last", result.tables), **prefixed("chosen", result.chosen.tables)}
    if prepared.train.clean is not None:
        classes = prepared.train.num_classes
        tables["noise"] = noise.realised(prepared.train.clean, prepared.train.labels, classes)
    folder.write("tables.safetensors", to_bytes(tables))
    folder.write("samples.safetensors", to_bytes(samples_of(prepared, result)))
    about = {
        "model": prepared.model,
        "shape": list(prepared.shape),
        "normalise": experiment.normalise,
        "columns": getattr(prepared.train, "columns", None),
        "classes": list(prepared.train.classes),
    }
    folder.write("model.safetensors", to_bytes(first_of(result.chosen.networks), {"labelsieve": json.dumps(about)}))
    folder.record.append({"event": "end", "chosen_epoch": result.chosen.epoch, **errors(result.rows)})
    folder.finish()


def versions() -> dict[str, str]:
    return {"labelsieve": labelsieve.__version__, "torch": torch.__version__, "python": platform.python_version()}
