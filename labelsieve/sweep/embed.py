"""Compute the features of a dataset on many machines as Ray tasks, each for a part of the samples.

Every machine reads the data from the same path. Features come back to the cache of this machine as soon as they are
computed, so that an interrupted command resumes with the rest.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from labelsieve.data import ReadOptions
from labelsieve.data.load import find
from labelsieve.data.sets import Undecoded
from labelsieve.errors import InputError, LabelsieveError
from labelsieve.features.backbones import Backbone, BackboneSpec
from labelsieve.features.embed import Cache, Report, encode_samples, refuse_kind, unknown_samples
from labelsieve.features.store import Array
from labelsieve.sweep.ray import prepare_worker, run_tasks

SHARD = 512  # samples of a task
CPUS, CPUS_OF_GPU = 1, 4  # threads of a task


class Shard(NamedTuple):
    """Samples of one task."""

    source: str
    reading: ReadOptions
    split: str
    places: tuple[int, ...]
    names: tuple[str, ...]  # of the samples here, to notice other data there


def embed_on_ray(
    source: str,
    reading: ReadOptions,
    spec: BackboneSpec,
    *,
    on: str,
    cache: Path | str | None = None,
    watch: Report = lambda done, total: None,
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Fill the cache with the features of a dataset; samples that cannot be read are left to the caller."""
    backbone = load_backbone(spec)
    listing = find(source, reading)
    refuse_kind(listing.train, backbone, source)
    store = Cache(backbone, cache)
    shards = [
        Shard(source, reading, name, tuple(part), _names_at(split, part))
        for name, split in listing.splits().items()
        for part in _parts(unknown_samples(split, store))
    ]
    total = sum(map(len, listing.splits().values()))
    finished = total - sum(len(shard.places) for shard in shards)

    def keep(shard: Shard, result: tuple[list[bytes], Array]) -> None:
        nonlocal finished
        store.features.add(*result)
        store.features.flush()
        finished += len(shard.places)
        watch(finished, total)

    on_gpu = backbone.device.type != "cpu"
    needs: dict[str, float] = {"num_cpus": CPUS_OF_GPU if on_gpu else CPUS, "num_gpus": int(on_gpu)}
    failed = run_tasks(
        embed_shard,
        {shard: (shard, spec, backbone.identity) for shard in shards},
        dict.fromkeys(shards, needs),
        keep,
        lambda: None,
        say,
        on,
        "with all finished features saved",
    )
    store.compact()
    if failed:
        raise InputError(
            f"{len(failed)} of {len(shards)} parts of {source} failed, first: {next(iter(failed.values()))}"
        )


def embed_shard(
    shard: Shard, spec: BackboneSpec, identity: str, where: str, wanted: dict[str, str]
) -> tuple[list[bytes], Array] | str:
    """Return the keys and features of the samples of a task, or why it failed; runs on a worker."""
    try:
        prepare_worker(where, wanted)
        backbone = load_backbone(spec)
        if backbone.identity != identity:
            return f"a worker has another backbone {spec.name}; install the same weights on all machines"
        split = _load_splits(shard.source, shard.reading)[shard.split]
        if max(shard.places) >= len(split) or _names_at(split, shard.places) != shard.names:
            return f"a worker finds other samples in {shard.source}; all machines must read the same data"
        keys: list[bytes] = []
        rows: list[Array] = [np.empty((0, backbone.dim), np.float16)]

        def keep(more: Sequence[bytes], features: Array) -> None:
            keys.extend(more)
            rows.append(features)

        workers = CPUS if backbone.device.type == "cpu" else CPUS_OF_GPU
        encode_samples(split.at(torch.tensor(shard.places)), backbone, lambda key: False, keep, workers=workers)
        return keys, np.concatenate(rows)
    except LabelsieveError as error:
        return str(error)


@lru_cache(maxsize=1)
def load_backbone(spec: BackboneSpec) -> Backbone:
    """Return a backbone; a worker keeps it for its next task."""
    return spec.load()


@lru_cache(maxsize=1)
def _load_splits(source: str, reading: ReadOptions) -> dict[str, Undecoded]:
    """Return the listed splits of a source; a worker keeps them for its next task."""
    return find(source, reading).splits()


def _names_at(split: Undecoded, places: Sequence[int]) -> tuple[str, ...]:
    return tuple(split.names[place] for place in places) if split.names else ()


def _parts(places: Sequence[int]) -> list[Sequence[int]]:
    return [places[first : first + SHARD] for first in range(0, len(places), SHARD)]
