"""Run experiments on many machines as Ray tasks; the files of every finished run are copied to its folder here."""

import json
import logging
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import torch

from labelsieve.errors import InputError, LabelsieveError, first_line
from labelsieve.files import DONE
from labelsieve.runs.execute import run, versions
from labelsieve.runs.folder import RunFolder
from labelsieve.runs.spec import Experiment
from labelsieve.sweep.address import address_of, refuse_unreachable
from labelsieve.sweep.gpu import OUT_OF_MEMORY
from labelsieve.sweep.sweep import POLL, Failures
from labelsieve.train.loop import StopFlag

RETRIES = 3  # of a run whose worker died; each starts from the beginning on any machine
GRACE = 5.0  # seconds for cancelled runs to clean up
NOT_SENT = ("lock", DONE)  # files that are created in the run folder here
QUIET = {  # environment variables that Ray reads when it is imported
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # long messages about workers that died
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # warning about machines without a GPU
}

Files = dict[str, bytes]
Key = TypeVar("Key")


def on_ray(
    experiments: Sequence[Experiment],
    folders: Sequence[Path],
    report: Callable[[], None],
    at_once: int | None = None,
    say: Callable[[str], None] = lambda line: None,
    on: str = "ray",
) -> Failures:
    """Run all experiments on a Ray cluster, `at_once` on each GPU, and return the reasons of those that failed."""
    folder = dict(zip(experiments, folders, strict=True))
    needs = {experiment: resources(experiment, at_once) for experiment in experiments}

    def save(experiment: Experiment, files: Files) -> None:
        save_run(files, experiment, folder[experiment])

    arguments = {experiment: (experiment,) for experiment in experiments}
    return run_tasks(run_remotely, arguments, needs, save, report, say, on, "with all finished runs saved")


def run_tasks(
    function: Callable[..., Any],
    arguments: Mapping[Key, tuple[Any, ...]],
    needs: Mapping[Key, dict[str, float]],
    use: Callable[[Key, Any], None],
    report: Callable[[], None],
    say: Callable[[str], None],
    on: str,
    kept: str,
) -> dict[Key, str]:
    """Call a function on the machines of a Ray cluster, pass results on to `use`, and return the reasons of failures.

    Args:
        function: called with the arguments of a task, the working folder and the versions here; returns its result, or
            a string that says why it failed. It is called again if its worker dies.
        arguments: the arguments of each task.
        needs: CPUs and GPUs of each task.
        use: called here with a task and its result.
        report: called several times a second.
        say: called with a description of the cluster, and again when it changes.
        on: the cluster, see `address_of`.
        kept: what is kept when a signal stops the tasks.
    """
    address = address_of(on)
    if find_spec("ray") is None:
        raise InputError("several machines need Ray; run pip install 'labelsieve[ray]'")
    if not arguments:
        return {}
    refuse_unreachable(on)
    with _cluster(address) as ray, StopFlag() as stop, _explained_import_errors():
        machines = _machines_of(ray)
        say(described := _describe(machines))
        failed = {key: reason for key in arguments if (reason := too_large(needs[key], machines)) is not None}
        task = ray.remote(max_retries=RETRIES)(function)
        context = (str(Path.cwd()), versions())
        tasks = {
            task.options(**needs[key]).remote(*given, *context): key
            for key, given in arguments.items()
            if key not in failed
        }
        try:
            while tasks:
                stop.check(kept)
                for ready in ray.wait(list(tasks), timeout=POLL)[0]:
                    key = tasks.pop(ready)
                    if (reason := _collect(ray, ready, partial(use, key))) is not None:
                        failed[key] = reason
                if (now := _describe(_machines_of(ray))) != described:
                    say(described := now)
                report()
        finally:
            _cancel(ray, list(tasks))
    return failed


def resources(experiment: Experiment, at_once: int | None) -> dict[str, float]:
    """Return the CPUs and the share of a GPU that a run needs."""
    gpu = experiment.device.startswith("cuda")
    return {"num_cpus": experiment.threads, "num_gpus": 1 / (at_once or 1) if gpu else 0}


def too_large(needs: dict[str, float], machines: Sequence[dict[str, float]]) -> str | None:
    """Return why no machine of the cluster is large enough for a run; None if one is."""
    cpus, gpus = needs["num_cpus"], needs["num_gpus"]
    if any(machine.get("CPU", 0) >= cpus and machine.get("GPU", 0) >= gpus for machine in machines):
        return None
    return f"no machine of the cluster has {cpus:g} CPUs{' and a GPU' if gpus else ''}"


def _machines_of(ray: Any) -> list[dict[str, float]]:
    """Return the resources of each machine of the cluster."""
    return [machine["Resources"] for machine in ray.nodes() if machine["Alive"]]


def _describe(machines: Sequence[dict[str, float]]) -> str:
    """Format the resources of the cluster in a line."""
    cpus, gpus = (sum(machine.get(kind, 0) for machine in machines) for kind in ("CPU", "GPU"))
    return f"on Ray: {cpus:g} CPUs and {gpus:g} GPUs, machines: {len(machines)}"


def run_remotely(experiment: Experiment, where: str, wanted: dict[str, str]) -> Files | str:
    """Run an experiment in a temporary folder of a worker; return the files of the run, or why it failed."""
    try:
        prepare_worker(where, wanted)
        with tempfile.TemporaryDirectory(prefix="labelsieve-") as place:
            folder = Path(place) / experiment.name()
            run(experiment, folder, stop=StopFlag())  # not entered: Ray handles the signals
            return {f.name: f.read_bytes() for f in folder.iterdir() if f.is_file() and f.name not in NOT_SENT}
    except LabelsieveError as error:
        return str(error)
    except torch.OutOfMemoryError:
        return OUT_OF_MEMORY


def prepare_worker(where: str, wanted: dict[str, str]) -> None:
    """Change to the working folder of the command, for relative paths on a shared file system; check versions."""
    with suppress(OSError):
        os.chdir(where)
    check_versions(wanted, versions())


def check_versions(wanted: dict[str, str], found: dict[str, str]) -> None:
    """Raise InputError if versions that change results differ; CPU and GPU builds of the same torch are equal."""
    for name in ("labelsieve", "torch"):
        want, have = (each[name].partition("+")[0] for each in (wanted, found))
        if want != have:
            raise InputError(f"a worker has {name} {have}, this machine {want}; install the same on all machines")


def _collect(ray: Any, ready: Any, use: Callable[[Any], None]) -> str | None:
    """Use the result of a finished task; return the reason if it failed."""
    try:
        result = ray.get(ready)
        if isinstance(result, str):
            return result
        use(result)
    except LabelsieveError as error:
        return str(error)
    except ray.exceptions.RayTaskError:
        raise  # a bug
    except ray.exceptions.RayError as error:
        return f"failed after {RETRIES} retries: {type(error).__name__} in Ray; run the same command to try again"
    return None


def save_run(files: Files, experiment: Experiment, path: Path) -> None:
    """Write the files of a run into its folder; without `done`, the last file, the run would start again."""
    with RunFolder(path) as folder:
        spec = json.loads(files["spec.json"])
        folder.claim(experiment, spec["data"], spec["versions"])
        if folder.done:
            return
        folder.checkpoints.clear()  # of an earlier, interrupted run in this folder, whose record is replaced
        for name, content in files.items():
            folder.write(name, content)
        folder.finish()


def _cancel(ray: Any, tasks: list[Any]) -> None:
    """Cancel running and waiting tasks; kill those that do not end within GRACE seconds."""
    for task in tasks:
        ray.cancel(task)
    if tasks:
        for task in ray.wait(tasks, num_returns=len(tasks), timeout=GRACE)[1]:
            ray.cancel(task, force=True)


@contextmanager
def _cluster(address: str | None) -> Iterator[Any]:
    """Connect to Ray without its messages; disconnect at the end unless it was already connected."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    import ray

    if ray.is_initialized():
        yield ray
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise InputError(f"cannot connect to Ray: {first_line(error)}; see docs/sweeps.md") from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray replaces the handler when it starts
    try:
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def _explained_import_errors() -> Iterator[None]:
    """Turn Ray's various errors about workers without labelsieve into one InputError."""
    try:
        yield
    except Exception as error:
        if "No module named 'labelsieve'" not in str(error):
            raise
        raise InputError("a machine of the cluster has no labelsieve; install it on all of them") from error
