"""stale: finished runs count again only as long as their files hold what they were trained on."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from labelsieve.data import DATASETS
from labelsieve.errors import InputError
from labelsieve.experiments.folder import read_json
from labelsieve.experiments.gather import gather, reading_of
from labelsieve.experiments.shelf import Shelf
from labelsieve.experiments.spec import Experiment


def refuse_changed_files(done: Sequence[tuple[Experiment, Path]]) -> None:
    """Refuse finished runs, given with their folders, if a person's data or labels have changed since.

    One run for each way of reading the files is looked at: it stands for those with other seeds and methods.
    """
    ways = {(run.data, run.labels, reading_of(run)): (run, folder) for run, folder in done if files_of(run)}
    shelf = Shelf()
    for run, folder in ways.values():
        now = gather(replace(run, device="cpu", precision="fp32"), shelf).fingerprint
        if now != read_json(folder / "spec.json").get("data"):
            files = " or ".join(files_of(run))
            raise InputError(f"{files} changed since {folder} was trained; name another --out, or remove that folder")


def files_of(experiment: Experiment) -> list[str]:
    """The files that a person can change, if all are here: what is embedded or published stays as it is."""
    named = [name for name in (experiment.data, experiment.labels) if name is not None and name not in DATASETS]
    return named if all(Path(name).exists() for name in named) else []
