"""on_ray: many experiments over many machines, as Ray tasks; every finished run comes back to its folder here."""

import json
import logging
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from labelsieve.errors import InputError, LabelsieveError
from labelsieve.runs.execute import run, versions
from labelsieve.runs.folder import RunFolder
from labelsieve.runs.spec import Experiment
from labelsieve.train.loop import StopFlag

POLL = 0.3  # seconds between two looks at the tasks and the signals
RETRIES = 3  # of a run whose worker died; each begins anew, somewhere
GRACE = 5.0  # seconds that cancelled runs have to tidy up
NOT_SENT = ("lock", "done")  # these are made where the run's folder is
QUIET = {  # read by Ray when it is imported
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # pages about each worker that dies
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a warning about machines without a GPU
}

Files = dict[str, bytes]


def on_ray(
    experiments: Sequence[Experiment],
    folders: Sequence[Path],
    report: Callable[[], None],
    at_once: int | None = None,
    say: Callable[[str], None] = lambda line: None,
    on: str = "ray",
) -> dict[Experiment, str]:
    """Run all on the cluster that `on` names; returns why those failed that did. A GPU is shared by `at_once` runs."""
    address = address_of(on)
    if find_spec("ray") is None:
        raise InputError("sweeps over machines need Ray: pip install 'labelsieve[ray]'")
    if not experiments:
        return {}
    needs = {experiment: resources(experiment, at_once) for experiment in experiments}
    folder = dict(zip(experiments, folders, strict=True))
    with cluster(address) as ray, StopFlag() as stop, installed_there():
        machines = machines_of(ray)
        say(told := spoken(machines))
        failed = {e: reason for e in experiments if (reason := too_large(needs[e], machines)) is not None}
        task = ray.remote(max_retries=RETRIES)(run_apart)
        asked = (str(Path.cwd()), versions())
        tasks = {task.options(**needs[e]).remote(e, *asked): e for e in experiments if e not in failed}
        try:
            while tasks:
                stop.check("with all finished runs here")
                for ready in ray.wait(list(tasks), timeout=POLL)[0]:
                    experiment = tasks.pop(ready)
                    if (reason := brought_home(ray, ready, experiment, folder[experiment])) is not None:
                        failed[experiment] = reason
                if (now := spoken(machines_of(ray))) != told:
                    say(told := now)
                report()
        finally:
            cancel(ray, list(tasks))
    return failed


def address_of(on: str) -> str | None:
    """Where `ray`, `ray:ADDRESS` or `ray://HOST:PORT` is for Ray itself; None: where this machine belongs, or here."""
    kind, _, address = on.partition(":")
    if kind != "ray" or on == "ray:" or address == "//":
        raise InputError(f"cannot run on {on!r}: say here, ray, ray:ADDRESS or ray://HOST:PORT")
    return on if address.startswith("//") else address or None


def resources(experiment: Experiment, at_once: int | None) -> dict[str, float]:
    """What a run takes of its machine: its threads, and its share of a GPU."""
    gpu = experiment.device.startswith("cuda")
    return {"num_cpus": experiment.threads, "num_gpus": 1 / (at_once or 1) if gpu else 0}


def too_large(needs: dict[str, float], machines: Sequence[dict[str, float]]) -> str | None:
    """Why no machine can ever take a run, which would wait for ever otherwise; None if one can."""
    cpus, gpus = needs["num_cpus"], needs["num_gpus"]
    if any(machine.get("CPU", 0) >= cpus and machine.get("GPU", 0) >= gpus for machine in machines):
        return None
    return f"no machine of the cluster has {cpus:g} CPUs{' and a GPU' if gpus else ''} for it"


def machines_of(ray: Any) -> list[dict[str, float]]:
    """What each machine of the cluster offers now."""
    return [machine["Resources"] for machine in ray.nodes() if machine["Alive"]]


def spoken(machines: Sequence[dict[str, float]]) -> str:
    cpus, gpus = (sum(machine.get(kind, 0) for machine in machines) for kind in ("CPU", "GPU"))
    return f"on Ray: {cpus:g} CPUs and {gpus:g} GPUs, machines: {len(machines)}"


def run_apart(experiment: Experiment, where: str, wanted: dict[str, str]) -> Files | str:
    """On a worker: run it in a folder that is there for this alone; what the run leaves, or why it failed."""
    with suppress(OSError):
        os.chdir(where)  # on a shared file system, relative paths mean what they mean where the sweep was started
    try:
        check_versions(wanted, versions())
        with tempfile.TemporaryDirectory(prefix="labelsieve-") as place:
            folder = Path(place) / experiment.name()
            run(experiment, folder, stop=StopFlag())  # a flag that is not entered: signals are Ray's business
            return {f.name: f.read_bytes() for f in folder.iterdir() if f.is_file() and f.name not in NOT_SENT}
    except LabelsieveError as error:
        return str(error)
    except torch.OutOfMemoryError:
        return "out of GPU memory: use a smaller --batch or --at-once"


def check_versions(wanted: dict[str, str], found: dict[str, str]) -> None:
    """Refuse a worker that could come to other results; builds of one torch for CPU and GPU count as the same."""
    for name in ("labelsieve", "torch"):
        want, have = (each[name].partition("+")[0] for each in (wanted, found))
        if want != have:
            raise InputError(f"a worker has {name} {have}, and {want} is here; install the same on all machines")


def brought_home(ray: Any, ready: Any, experiment: Experiment, folder: Path) -> str | None:
    """Put what a task left into the folder here; the reason if it failed."""
    try:
        result: Files | str = ray.get(ready)
        if isinstance(result, str):
            return result
        keep(result, experiment, folder)
    except LabelsieveError as error:
        return str(error)
    except ray.exceptions.RayTaskError:
        raise  # a bug, as it would be here
    except ray.exceptions.RayError as error:
        return f"given up after {RETRIES} retries: {type(error).__name__} on Ray; the same command tries again"
    return None


def keep(files: Files, experiment: Experiment, path: Path) -> None:
    """Write a run that ended elsewhere. Until `done`, the last file, it is one that begins anew."""
    with RunFolder(path) as folder:
        spec = json.loads(files["spec.json"])
        folder.claim(experiment, spec["data"], spec["versions"])
        if folder.done:
            return
        folder.checkpoints.clear()  # of a run that was cut here: they go with its record, which is replaced
        for name, content in files.items():
            folder.write(name, content)
        folder.finish()


def cancel(ray: Any, tasks: list[Any]) -> None:
    """End what runs or waits; whoever does not end in time is killed."""
    for task in tasks:
        ray.cancel(task)
    if tasks:
        for task in ray.wait(tasks, num_returns=len(tasks), timeout=GRACE)[1]:
            ray.cancel(task, force=True)


@contextmanager
def cluster(address: str | None) -> Iterator[Any]:
    """Ray, connected and quiet; left as it was found."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    import ray

    if ray.is_initialized():
        yield ray
        return
    with sigterm_as_it_was():
        try:
            ray.init(address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise InputError(f"cannot reach Ray: {first_line(error)}; docs/sweeps.md has what it needs") from error
    try:
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def installed_there() -> Iterator[None]:
    """Ray's errors about workers without labelsieve have many forms, and one meaning."""
    try:
        yield
    except Exception as error:
        if "No module named 'labelsieve'" not in str(error):
            raise
        raise InputError("the cluster's machines have no labelsieve; install it on all of them") from error


@contextmanager
def sigterm_as_it_was() -> Iterator[None]:
    """Ray puts a handler of its own into the process that starts it."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
