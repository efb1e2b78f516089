"""Show a training in TensorBoard, Weights & Biases or MLflow while its record grows.

`Tracking` is a watcher of `fit`. After each epoch it sends the lines of record.jsonl that a tracker does not have yet;
tracking.json in the run folder holds how many it has, and the name of its run there. A resumed training therefore
continues the same run without a gap or a repetition, and what a server missed is sent with the next epoch.
"""

import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

import numpy as np

from labelsieve.errors import InputError, first_line, nearest
from labelsieve.files import parse_json, write_atomically
from labelsieve.runs.read import STAGE_FOLDERS, Array
from labelsieve.runs.record import Row, read_head, read_rows

STATE = "tracking.json"
PROJECT = "labelsieve"  # project or experiment, unless the environment names another
IMAGE = "selection/penalty"
IMAGE_EVERY = 5  # epochs between two images of the penalty labels
IMAGE_SIDE = 320  # pixels, if the classes are fewer
SCALARS = {  # field of a line of the record -> name of the curve
    "train_loss": "train/loss",
    "lr": "train/lr",
    "test_error": "test/error",
    "valid_error": "valid/error",
    "kept_share": "selection/kept_share",
    "precision": "selection/precision",
}


class Point(NamedTuple):
    """The values of one epoch."""

    step: int  # epochs done, counted over all rounds
    seconds: float  # of training until then
    values: dict[str, float]


class RunFacts(NamedTuple):
    """Facts about a run that a tracker shows besides its curves."""

    folder: Path
    name: str  # such as mine/plain/3
    group: str  # the run folder of all stages: mine
    settings: dict[str, Any]


class Tracker(Protocol):
    """A service that shows curves."""

    def open(self, run: RunFacts, key: str, sent: int) -> str:
        """Start a run, or continue the one of this key after `sent` epochs; return its key."""

    def send(self, points: Sequence[Point], pixels: Array | None) -> None:
        """Add points to the curves, and an image of the penalty labels to the last of them, (H, W, 3) uint8."""

    def close(self, finished: bool) -> None:
        """End the run, or leave it to be continued."""


class TensorBoard:
    """Event files in the run folder, which `tensorboard --logdir` finds there."""

    def open(self, run: RunFacts, key: str, sent: int) -> str:
        from torch.utils.tensorboard import SummaryWriter

        self.writer: Any = SummaryWriter(str(run.folder), purge_step=sent + 1 if key else None)
        if not key:
            self.writer.add_text("settings", "\n".join(f"- {name}: {value}" for name, value in run.settings.items()))
        return "events"

    def send(self, points: Sequence[Point], pixels: Array | None) -> None:
        for point in points:
            for name, value in point.values.items():
                self.writer.add_scalar(name, value, point.step)
        if pixels is not None:
            self.writer.add_image(IMAGE, pixels, points[-1].step, dataformats="HWC")
        self.writer.flush()

    def close(self, finished: bool) -> None:
        self.writer.close()


class Wandb:
    """A run of Weights & Biases; WANDB_MODE=offline, WANDB_PROJECT and the other variables of wandb apply."""

    def open(self, run: RunFacts, key: str, sent: int) -> str:
        wandb = _import_tracker("wandb")
        self.make_image = wandb.Image
        key = key or uuid4().hex[:12]
        self.run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=key,
            name=run.name,
            group=run.group,
            config=run.settings,
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
        )
        return key

    def send(self, points: Sequence[Point], pixels: Array | None) -> None:
        for point in points:
            shown = pixels is not None and point is points[-1]
            images = {IMAGE: self.make_image(pixels)} if shown else {}
            self.run.log(point.values | images, step=point.step, commit=True)

    def close(self, finished: bool) -> None:
        self.run.finish(exit_code=0 if finished else 1)


class MLflow:
    """A run of MLflow at MLFLOW_TRACKING_URI, in the experiment MLFLOW_EXPERIMENT_NAME."""

    def open(self, run: RunFacts, key: str, sent: int) -> str:
        mlflow = _import_tracker("mlflow")
        self.metric, self.client = mlflow.entities.Metric, mlflow.MlflowClient()
        if key:
            self.client.update_run(key, status="RUNNING")
        else:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
            known = self.client.get_experiment_by_name(name)
            place = known.experiment_id if known else self.client.create_experiment(name)
            key = self.client.create_run(place, tags={"group": run.group}, run_name=run.name).info.run_id
            params = [mlflow.entities.Param(name, str(value)[:500]) for name, value in run.settings.items()]
            self.client.log_batch(key, params=params)
        self.key, self.began = key, self.client.get_run(key).info.start_time
        return key

    def send(self, points: Sequence[Point], pixels: Array | None) -> None:
        for point in points:  # the time is that of the record: MLflow ignores a metric that it has already
            time = self.began + round(1000 * point.seconds)
            values = [self.metric(name, value, time, point.step) for name, value in point.values.items()]
            self.client.log_batch(self.key, metrics=values)
        if pixels is not None:
            self.client.log_image(self.key, pixels, key=IMAGE, step=points[-1].step)

    def close(self, finished: bool) -> None:
        self.client.set_terminated(self.key, "FINISHED" if finished else "KILLED")


TRACKERS: dict[str, Callable[[], Tracker]] = {"tensorboard": TensorBoard, "wandb": Wandb, "mlflow": MLflow}


def parse_trackers(words: Sequence[str]) -> tuple[str, ...]:
    """Return the names in options such as ["tensorboard,wandb"]; refuse unknown trackers and those not installed."""
    names = tuple(dict.fromkeys(name.strip() for word in words for name in word.split(",")))
    for name in names:
        if name not in TRACKERS:
            raise InputError(f"--log knows no tracker {name!r}: {nearest(name, TRACKERS)}")
        try:
            _import_tracker(name)
        except ImportError as error:
            raise InputError(
                f"--log {name}: {name} cannot be imported ({error}); run pip install 'labelsieve[{name}]'"
            ) from error
    if "wandb" in names and os.environ.get("WANDB_MODE", "online") == "online":
        _refuse_without_login()
    return names


def _import_tracker(name: str) -> Any:
    """Import the package of a tracker, which then neither sends usage statistics nor reports what it does."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    package = import_module(name)
    logging.getLogger(name).setLevel(logging.WARNING)
    return package


def _refuse_without_login() -> None:
    """Refuse a training whose curves Weights & Biases would not accept."""
    if _import_tracker("wandb").api.api_key is None:
        raise InputError("--log wandb needs a login; run wandb login, or set the variable WANDB_MODE=offline")


class Tracking:
    """Watcher that sends the record of a run folder to trackers; use it as a context around `fit`.

    Args:
        folder: holds record.jsonl, which `fit` is given as its record.
        names: keys of `TRACKERS`.
        penalty: returns the penalty labels (N, K, K) to show as an image, or None if there are none.
    """

    def __init__(
        self, folder: Path | str, names: Sequence[str], penalty: Callable[[], Array | None] | None = None
    ) -> None:
        self.folder = Path(folder)
        self.links = [_Link(name, TRACKERS[name]()) for name in names]
        self.penalty = penalty
        self.is_last = False

    def __enter__(self) -> "Tracking":
        return self

    def __exit__(self, *error: object) -> None:
        self._update(pixels=None)
        for link in self.links:
            link.close(finished=error[0] is None)

    def step(self, done: int, total: int) -> None:
        """Only epochs are sent; the last one with an image."""
        self.is_last = done == total

    def epoch(self, row: Row) -> None:
        """Send the epochs that were recorded since the last call."""
        due = self.is_last or row["epoch"] % IMAGE_EVERY == 0
        table = self.penalty() if self.penalty and due and self.links else None
        self._update(None if table is None else penalty_image(table))

    def _update(self, pixels: Array | None) -> None:
        if self.links and (self.folder / "record.jsonl").exists():
            rows = read_rows(self.folder)
            for link in self.links:
                link.update(self.folder, rows, pixels)


class _Link:
    """One tracker of a run folder, opened when there is something to send."""

    def __init__(self, name: str, tracker: Tracker) -> None:
        self.name, self.tracker = name, tracker
        self.key = ""  # of the open run
        self.warned = False

    def update(self, folder: Path, rows: Sequence[Row], pixels: Array | None) -> None:
        """Send what the tracker does not have; a tracker that fails never ends a training."""
        states = read_state(folder)
        key, sent = states.get(self.name, ("", 0))
        missing = points_of(rows)[sent:]
        if not missing:
            return
        try:
            self.key = self.key or self.tracker.open(facts_of(folder, rows), key, sent)
            self.tracker.send(missing, pixels)
        except Exception as error:  # code of other packages may raise anything
            self._warn(error)
            return
        states[self.name] = (self.key, sent + len(missing))
        write_atomically(folder / STATE, json.dumps(states, indent=1).encode())

    def close(self, finished: bool) -> None:
        try:
            if self.key:
                self.tracker.close(finished)
        except Exception as error:  # code of other packages may raise anything
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        """Say once that a tracker failed."""
        if not self.warned:
            print(
                f"warning: {self.name} failed ({first_line(error)}); the training continues, and what is missing is "
                "sent after the next epoch, or by the same command",
                file=sys.stderr,
            )
        self.warned = True


def track_finished(run: Path, names: Sequence[str]) -> None:
    """Send what trackers lack of a finished run and of its stages."""
    stages = sorted(record.parent for name in STAGE_FOLDERS for record in (run / name).glob("[0-9]*/record.jsonl"))
    for folder in (*stages, run) if names else ():
        with Tracking(folder, names):
            pass


def points_of(rows: Sequence[Row]) -> list[Point]:
    """Return the points of a record: one for each epoch; what is known about the noise is part of the first."""
    epochs = [row for row in rows if row["event"] == "epoch"]
    start = next((row for row in rows if row["event"] == "start"), {})
    rates = {"noise/estimate": start.get("chosen", {}).get("noise_rate")}
    rates["noise/true"] = start.get("noise", {}).get("realised_rate")
    points, seconds = [], 0.0
    for step, row in enumerate(epochs, 1):
        seconds += row.get("seconds", 0.0)
        found = {shown: row.get(name) for name, shown in SCALARS.items()} | (rates if step == 1 else {})
        points.append(Point(step, seconds, {name: float(v) for name, v in found.items() if v is not None}))
    return points


def facts_of(folder: Path, rows: Sequence[Row]) -> RunFacts:
    """Return the name of a run and its settings, from its folder."""
    is_stage = folder.parent.name in STAGE_FOLDERS and folder.name.isdecimal()
    root = folder.absolute().parent.parent if is_stage else folder.absolute()
    settings: dict[str, Any] = dict(read_head(folder)["experiment"]) if (folder / "spec.json").exists() else {}
    start: Mapping[str, Any] = rows[0] if rows and rows[0]["event"] == "start" else {}
    settings |= {name: start[name] for name in ("samples", "classes", "model", "parameters", "device") if name in start}
    name = f"{root.name}/{folder.parent.name}/{folder.name}" if is_stage else root.name
    return RunFacts(folder, name, root.name, {name: value for name, value in settings.items() if value is not None})


def read_state(folder: Path) -> dict[str, tuple[str, int]]:
    """Return the key of the run of each tracker, and how many epochs it has."""
    file = folder / STATE
    if not file.exists():
        return {}
    try:
        found = {str(name): (str(key), int(sent)) for name, (key, sent) in parse_json(file.read_bytes()).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{file} is damaged; delete it to send the run to --log again, as a new one") from error
    return {name: (key, max(0, sent)) for name, (key, sent) in found.items()}


def penalty_image(table: Array) -> Array:
    """Return penalty labels (N, K, K) as one image, networks side by side: row k, column j is dark if j explains k."""
    count, classes, _ = table.shape
    shades = (255 * (1 - np.clip(table, 0, 1))).round().astype(np.uint8)
    side = max(1, IMAGE_SIDE // classes)
    framed = np.pad(shades, ((0, 0), (0, 0), (0, 1)), constant_values=128)  # a grey line between two networks
    flat = framed.transpose(1, 0, 2).reshape(classes, count * (classes + 1))[:, :-1]
    whole = flat.repeat(side, 0).repeat(side, 1)
    return np.stack([whole] * 3, -1)
