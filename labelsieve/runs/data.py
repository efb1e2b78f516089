"""The data of an experiment: loaded once per process, relabelled, corrupted, split, and identified by fingerprints.

`Shelf` loads every dataset once and puts its images on a device once; commands create one and pass it on. `gather`
builds the training, held-out and test sets of an experiment from it. Two fingerprints identify the data of a run:
`_contents_fingerprint` of the decoded samples and labels, and `source_fingerprint_of` of the files, which is available
before anything is decoded.
"""

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from labelsieve import noise
from labelsieve.data import DATASETS, Labelled, ReadOptions, Sets, Trainable, load_data
from labelsieve.data.arrays import label_tensor, load_npy
from labelsieve.data.cache import sampled_bytes
from labelsieve.data.cifar import is_cifar, read_cifar_n
from labelsieve.data.images import Unusable
from labelsieve.data.labels import LabelOverlay, read_label_file
from labelsieve.data.load import source_fingerprint, stratified, with_test_set
from labelsieve.data.published import PUBLISHED
from labelsieve.data.sets import Texts, Undecoded
from labelsieve.errors import InputError
from labelsieve.features.backbones import Backbone, BackboneSpec
from labelsieve.features.embed import load_embedded
from labelsieve.files import verified
from labelsieve.progress import Counting
from labelsieve.runs.record import read_head
from labelsieve.runs.spec import Experiment
from labelsieve.runtime import generator
from labelsieve.text import parse_integer
from labelsieve.train.augment import window_size


class Shelf:
    """Datasets shared by all runs of a process: each is decoded once, and its images are put on a device once."""

    def __init__(self) -> None:
        self._sets: dict[tuple[str, ReadOptions, BackboneSpec | None], Sets] = {}
        self._skipped: dict[tuple[str, ReadOptions, BackboneSpec | None], Sequence[Unusable]] = {}
        self._backbones: dict[BackboneSpec, Backbone] = {}
        self._images: dict[tuple[int, torch.device], Tensor] = {}
        self._lock = threading.Lock()

    def load(self, data: str, reading: ReadOptions, spec: BackboneSpec | None = None) -> Sets:
        """Return the decoded sets, or their features if there is a backbone, on the CPU."""
        key = (data, reading, spec)
        with self._lock:
            if key not in self._sets:
                keep = partial(self._skipped.__setitem__, key)
                if spec is None:
                    self._sets[key] = load_data(data, reading, on_unusable=keep)
                else:
                    self._sets[key] = self._embed(data, reading, spec, keep)
            return self._sets[key]

    def _embed(self, data: str, reading: ReadOptions, spec: BackboneSpec, keep: Callable[..., None]) -> Sets:
        backbone = self.backbone(spec)
        plain = replace(reading, size=None, cache=None, workers=None)
        with Counting(f"features of {spec.name}", backbone.kind) as counting:
            return load_embedded(
                data,
                plain,
                backbone,
                cache=reading.cache,
                workers=reading.workers,
                watch=counting.step,
                on_unusable=keep,
            )

    def backbone(self, spec: BackboneSpec) -> Backbone:
        """Return a backbone; each is loaded once."""
        if spec not in self._backbones:
            self._backbones[spec] = spec.load()
        return self._backbones[spec]

    def skipped(self, data: str, reading: ReadOptions, spec: BackboneSpec | None = None) -> Sequence[Unusable]:
        """Return the samples of a loaded dataset that were skipped because they cannot be read."""
        return self._skipped[data, reading, spec]

    def put(self, samples: Trainable, device: torch.device) -> Trainable:
        """Move samples to a device; whole datasets of the shelf share one copy of their images there."""
        with self._lock:
            known = [each for sets in self._sets.values() for each in sets if isinstance(each, Labelled)]
            if not isinstance(samples, Labelled) or not any(samples.images is each.images for each in known):
                return samples.to(device)
            key = (samples.images.data_ptr(), device)
            if key not in self._images:
                self._images[key] = samples.images.to(device)
            return replace(replace(samples, images=self._images[key][:0]).to(device), images=self._images[key])


class Places(NamedTuple):
    """Positions of the samples of each set in the training set of the data."""

    train: Tensor
    valid: Tensor | None  # held out of the training set, noise included
    test: Tensor | None  # drawn from the training set


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """The data of an experiment, on the CPU."""

    whole: Trainable  # the training set of the data, without the noise that the experiment adds
    train: Trainable
    valid: Trainable | None
    test: Trainable | None
    places: Places
    fingerprint: str
    decided: Tensor | None = None  # (n) bool over `whole`: labels confirmed or corrected by a reviewer
    skipped: Sequence[Unusable] = ()  # files and rows that cannot be read
    targets: Tensor | None = None  # (n, K) class probabilities of the samples of `train`, instead of labels
    before: Tensor | None = None  # (n) labels of `whole` before the decisions of a reviewer


def gather(experiment: Experiment, shelf: Shelf, known: LabelOverlay | None = None) -> Gathered:
    """Build the sets of an experiment.

    In order: load the data, replace its labels, draw a test set, add noise, hold samples out, correct the labels that
    are left. `known` holds the labels of the experiment's label file if the file need not be read again.
    """
    sets = shelf.load(experiment.data, reading_of(experiment), backbone_of(experiment))
    sets, decided, before = _relabelled(experiment, sets, known)
    train, test, valid = with_test_set(sets, experiment.test, experiment.seed, experiment.data)
    places = torch.arange(len(sets.train))
    drawn = None
    if len(train) < len(places):
        places, drawn = stratified(sets.train.labels, experiment.test, experiment.seed)
    train = _with_noise(experiment, train)
    corrected = None if experiment.corrected is None else _corrected(experiment.corrected, sets.train)
    encoded = experiment.backbone is not None
    changes = (decided, corrected, before)
    fingerprint = _contents_fingerprint(train, test, valid, changes=changes, encoded=encoded)
    held = None
    if experiment.valid or valid is None:
        kept, held = held_out(len(train), experiment.valid, experiment.seed, experiment.fold)
        if held is not None:
            train, valid = train.at(kept), train.at(held)
            places, held = places[kept], places[held]
    targets = corrected[places] if corrected is not None and corrected.dim() == 2 else None
    if corrected is not None and targets is None:
        train = replace(train.relabelled(corrected[places]), clean=train.clean)
    skipped = shelf.skipped(experiment.data, reading_of(experiment), backbone_of(experiment))
    return Gathered(
        whole=sets.train,
        train=train,
        valid=valid,
        test=test,
        places=Places(places, held, drawn),
        fingerprint=fingerprint,
        decided=decided,
        skipped=skipped,
        targets=targets,
        before=before,
    )


def _corrected(file: str, train: Trainable) -> Tensor:
    """Read corrected labels (n), or class probabilities (n, K), for a training set."""
    if Path(file).suffix == ".npy" and (found := load_npy(verified(Path(file)))).ndim == 2:
        if found.shape != (len(train), train.num_classes):
            raise InputError(f"{file} has shape {found.shape}, {(len(train), train.num_classes)} is needed")
        return torch.from_numpy(found.astype(np.float32))
    return labels_of(file, train).labels


def backbone_of(experiment: Experiment) -> BackboneSpec | None:
    """Return what determines the backbone of an experiment; None if it trains on the samples themselves."""
    if experiment.backbone is None:
        return None
    return BackboneSpec(experiment.backbone, experiment.size, experiment.weights, experiment.device)


def _relabelled(
    experiment: Experiment, sets: Sets, known: LabelOverlay | None
) -> tuple[Sets, Tensor | None, Tensor | None]:
    """Replace the labels by those of the experiment's label file.

    Also return which of them a reviewer decided, and the labels before that, if they are known.
    """
    if experiment.labels is None:
        return sets, None, None
    if known is None or len(known.labels) != len(sets.train):
        known = labels_of(experiment.labels, sets.train)
    train = sets.train.relabelled(known.labels)
    if not _true_labels_known(experiment):
        train = replace(train, clean=None)
    reviewed = known.decided is not None and known.decided.any() and not experiment.noise  # added noise voids decisions
    sets = sets._replace(train=train)
    return (sets, known.decided, known.before) if reviewed else (sets, None, None)


def _true_labels_known(experiment: Experiment) -> bool:
    """Return whether the original labels of the data count as correct, as those of published datasets do."""
    published = experiment.data in DATASETS or experiment.data in PUBLISHED or is_cifar(Path(experiment.data))
    return published or ":" in str(experiment.labels)


def reading_of(experiment: Experiment) -> ReadOptions:
    """Return the options for reading the data of an experiment."""
    window = window_size(experiment.augment)
    if window and experiment.size not in (None, window):
        raise InputError(f"--size {experiment.size} contradicts the window of {window} in --augment; remove --size")
    return ReadOptions(
        size=experiment.size or window,
        window=window,
        normalise=experiment.normalise,
        label=experiment.label_column,
        image=experiment.image_column,
        text=experiment.text_column,
        features=experiment.features,
        skip_bad=experiment.skip_bad,
        stream=experiment.stream,
        cache=experiment.cache,
        workers=experiment.workers,
    )


def labels_of(file: str, train: Trainable) -> LabelOverlay:
    """Read labels for a training set: a .csv or .npy file, or one kind of CIFAR-N labels as file:kind."""
    path, _, kind = file.rpartition(":")
    if path and kind.isalnum() and not Path(file).exists():
        labels = read_cifar_n(Path(path), kind)
        if len(labels) != len(train):
            raise InputError(f"{path} has {len(labels):,} labels but the data has {len(train):,} samples")
        return LabelOverlay(label_tensor(labels.numpy(), train.num_classes, path))
    return read_label_file(Path(file), train.classes, len(train), train.names)


def _with_noise(experiment: Experiment, train: Trainable) -> Trainable:
    """Add the noise of the experiment to the training labels."""
    if experiment.noise is None:
        return train
    matrix = noise_matrix(experiment.noise, experiment.rate, experiment.noise_map, train.num_classes)
    return train.relabelled(noise.corrupt(train.labels, matrix, experiment.seed, exact=experiment.exact_noise))


def noise_matrix(kind: str, rate: float, noise_map: str, num_classes: int) -> Tensor:
    """Return the transition matrix (K, K) of a named kind of noise, or of a .npy or .csv file."""
    path = Path(kind)
    if path.suffix == ".npy":
        return noise.check_matrix(torch.from_numpy(load_npy(path)), num_classes)
    if path.suffix == ".csv":
        try:
            rows = np.loadtxt(path, delimiter=",", ndmin=2)
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read the noise matrix {path}: {error}") from error
        return noise.check_matrix(torch.from_numpy(rows), num_classes)
    if noise_map and kind != "asymmetric":
        raise InputError(f"--noise-map requires asymmetric noise, not {kind}")
    options: dict[str, Any] = {"mapping": _parsed_map(noise_map)} if noise_map else {}
    return noise.transition(kind, num_classes, rate, **options)


def _parsed_map(text: str) -> dict[int, int]:
    """ "9:1,2:0" -> {9: 1, 2: 0}"""
    try:
        return {
            parse_integer(true): parse_integer(observed)
            for true, observed in (pair.split(":") for pair in text.split(","))
        }
    except ValueError as error:
        raise InputError(f"write a noise map as true:observed pairs such as 9:1,2:0, got {text!r}") from error


def held_out(samples: int, share: float, seed: int, fold: int = 0) -> tuple[Tensor, Tensor | None]:
    """Return the sorted positions of training and held-out samples.

    The folds of one seed do not overlap, and the last of several also holds out what is left over.
    """
    count = round(share * samples)
    if share == 0:
        return torch.arange(samples), None
    if not 0 < count < samples:
        raise InputError(f"--valid {share:g} of {samples} samples leaves none to train on or none to hold out")
    first, end = fold * count, min((fold + 1) * count, samples)
    if fold and fold == round(1 / share) - 1:
        end = samples
    if first >= end:
        raise InputError(f"there is no fold {fold} of {count} of {samples} samples")
    order = torch.randperm(samples, generator=generator(seed, "valid"))
    return torch.cat([order[:first], order[end:]]).sort().values, order[first:end].sort().values


def _contents_fingerprint(*sets: Trainable | None, changes: Sequence[Tensor | None] = (), encoded: bool = False) -> str:
    """Return a digest of samples and labels, and of changes: reviewer decisions, corrected and earlier labels.

    `encoded`: the sets are features of a backbone, whose bits depend on the device; their originals are identified.
    """
    sha = hashlib.sha256()
    for data in sets:
        if data is not None:
            original = data.original if encoded and isinstance(data, Labelled) else None
            for part in data.contents() if original is None else _original_contents(original, data.labels):
                sha.update(part)
    for tensor in changes:
        if tensor is not None:
            sha.update(tensor.numpy().tobytes())
    return sha.hexdigest()[:16]


def _original_contents(original: Undecoded, labels: Tensor) -> Iterator[bytes | memoryview]:
    """Yield the bytes that identify encoded samples: names or texts, some of the images, and the labels."""
    if isinstance(original, Labelled):
        yield from original.contents()
    else:
        yield "\n".join(original.names).encode("utf-8", "surrogateescape")
        if isinstance(original, Texts):
            yield "\0".join(original.texts).encode("utf-8", "surrogateescape")
        else:
            yield from sampled_bytes(original)
    yield labels.cpu().numpy().data


def source_fingerprint_of(experiment: Experiment) -> str | None:
    """Return a digest of all files that an experiment reads, without decoding any; None if one cannot be examined."""
    data = source_fingerprint(experiment.data, reading_of(experiment))
    if data is None:
        return None
    sha = hashlib.sha256(data.encode())
    matrix = experiment.noise if Path(experiment.noise or "").suffix in (".npy", ".csv") else None
    for name in (experiment.labels, experiment.corrected, matrix):
        if name is None:
            continue
        path = Path(name if Path(name).exists() else name.rpartition(":")[0])
        try:
            sha.update(path.read_bytes())
        except OSError:
            return None
    return sha.hexdigest()[:16]


def refuse_changed_files(done: Sequence[tuple[Experiment, Path]], shelf: Shelf) -> None:
    """Refuse finished runs, given with their folders, if the user's data or labels have changed since.

    Runs that read the same files are represented by one of them.
    """
    readings = {(run.data, run.labels, reading_of(run)): (run, folder) for run, folder in done if files_of(run)}
    for run, folder in readings.values():
        head = read_head(folder)
        source = source_fingerprint_of(run)
        if source is not None and source == head.get("source"):
            continue
        now = gather(replace(run, device="cpu", precision="fp32"), shelf).fingerprint
        if now != head.get("data"):
            files = " or ".join(files_of(run))
            raise InputError(f"{files} changed since {folder} was trained; name another --out, or remove that folder")


def files_of(experiment: Experiment) -> list[str]:
    """Return the user's files that an experiment reads, if all exist; named datasets do not change."""
    named = [name for name in (experiment.data, experiment.labels) if name is not None and name not in DATASETS]
    return named if all(Path(name).exists() for name in named) else []
