"""Labelled sets: listed but not decoded (`Listing`), in memory (`Labelled`), or read from disk by batch (`Streamed`).

A listing contains images (`Pictures`), texts (`Texts`), or arrays and numbers (`Labelled`).

`Labelled` and `Streamed` have the same interface for training: iterate over `staged(order, size)` to put one batch
after the other in place, and call `inputs(index)` for the normalised inputs of the current batch.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from labelsieve.data.cache import DECODE_CHUNK, DecodedCache, sampled_bytes
from labelsieve.data.classes import Array
from labelsieve.data.images import DECODER, Frame, Pictures, Unusable, decode_into
from labelsieve.files import usable_cores

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # mean and standard deviation per channel
LITE = ((127 / 255,) * 3, (128 / 255,) * 3)  # of the weights of EfficientNet-Lite
CHANNELS = {"imagenet": IMAGENET, "lite": LITE}  # by the name of the normalisation
MOMENTS_CHUNK = 1024  # images whose mean and deviation are computed at once
SLOTS = 3  # batches on the host: one is copied to the device while the others are decoded
Fill = Callable[[Array, Sequence[int]], None]  # write samples into the rows of an array


def standardise(images: Tensor) -> Tensor:
    """Scale each image to zero mean and unit deviation over all pixels and channels, (B, C, H, W) uint8 -> float32."""
    return _scale(images, *_mean_and_deviation(images))


def _mean_and_deviation(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the deviation of each image, at least the smallest of an image that has one."""
    deviation, mean = torch.std_mean(images.float(), dim=(1, 2, 3), correction=0, keepdim=True)
    return mean, deviation.clamp(min=images[0].numel() ** -0.5)  # for images of one color


def _scale(images: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    return torch.sub(images, mean).div_(deviation)


def normalise_inputs(samples: Tensor, normalise: str) -> Tensor:
    """Return (B, C, H, W) uint8 images as network inputs; (B, F) features are returned unchanged."""
    if samples.dtype != torch.uint8:
        return samples
    return _normalise_channels(samples, *CHANNELS[normalise]) if normalise in CHANNELS else standardise(samples)


@dataclass(frozen=True)
class Texts:
    """A labelled set of texts."""

    names: Sequence[str]  # (n) file:row
    texts: Sequence[str]  # (n)
    labels: Tensor  # (n) int64
    classes: tuple[str, ...]
    clean: Tensor | None = None  # (n) true labels, if known

    def __len__(self) -> int:
        return len(self.names)

    def at(self, index: Sequence[int] | Tensor) -> "Texts":
        """Return the subset at the given positions."""
        picked = torch.as_tensor(index, dtype=torch.int64)
        positions = picked.tolist()
        return replace(
            self,
            names=[self.names[i] for i in positions],
            texts=[self.texts[i] for i in positions],
            labels=self.labels[picked],
            clean=None if self.clean is None else self.clean[picked],
        )


@dataclass(frozen=True)
class Labelled:
    """A labelled set of images or features in memory or on a device."""

    images: Tensor  # (n, C, H, W) uint8, or features (n, F) float32
    labels: Tensor  # (n) int64, observed
    classes: Sequence[str]
    clean: Tensor | None = None  # (n) true labels, if known; used for metrics only
    names: Sequence[str] | None = None  # (n) path, or file:row
    normalise: str = "image"  # or a key of CHANNELS
    columns: tuple[str, ...] | None = None  # of features
    original: "Undecoded | None" = None  # (n) the samples that the features were computed from

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample: (channels, height, width) or (columns,)."""
        return tuple(self.images.shape[1:])

    def __len__(self) -> int:
        return len(self.labels)

    def contents(self) -> Iterator[bytes | memoryview]:
        """Yield the bytes that identify this set, for a digest."""
        yield str(tuple(self.images.shape)).encode()
        yield self.images.cpu().contiguous().numpy().data
        yield self.labels.cpu().numpy().data

    def staged(self, order: Tensor, size: int) -> Iterator[int]:
        """Yield the size of each batch of an order; all samples are in place."""
        for first in range(0, len(order), size):
            yield min(size, len(order) - first)

    def inputs(self, index: Tensor) -> Tensor:
        """Return the normalised network inputs of the given samples."""
        if self.images.dtype != torch.uint8 or self.normalise in CHANNELS:
            return normalise_inputs(self.images[index], self.normalise)
        return _scale(self.images[index], *self._moments[index].unbind(1))

    @cached_property
    def _moments(self) -> Tensor:
        """Mean and deviation of every image, (n, 2, 1, 1, 1), computed once."""
        return torch.cat([torch.stack(_mean_and_deviation(part), 1) for part in self.images.split(MOMENTS_CHUNK)])

    def to(self, device: torch.device) -> "Labelled":
        """Return the set on a device."""
        return self._map_tensors(lambda tensor: tensor.to(device))

    def at(self, index: Tensor) -> "Labelled":
        """Return the subset at the given positions, or of a mask."""
        picked = torch.arange(len(self))[index.cpu()]
        names = None if self.names is None else [self.names[i] for i in picked.tolist()]
        original = None if self.original is None else self.original.at(picked)
        return replace(self._map_tensors(lambda tensor: tensor[index]), names=names, original=original)

    def relabelled(self, labels: Tensor) -> "Labelled":
        """Return the set with other labels; the old ones become the true labels if none are known."""
        return replace(self, labels=labels, clean=self.labels if self.clean is None else self.clean)

    def _map_tensors(self, change: Callable[[Tensor], Tensor]) -> "Labelled":
        clean = None if self.clean is None else change(self.clean)
        return replace(self, images=change(self.images), labels=change(self.labels), clean=clean)


def default_workers() -> int:
    """Return twice the number of cores, because threads wait for Python's lock (benchmarks/streaming.py)."""
    return 2 * usable_cores()


@dataclass(eq=False)
class Streamed:
    """A labelled set of images that are read from disk batch by batch."""

    pictures: Pictures
    frame: Frame
    labels: Tensor  # (n) int64, observed, on the device of the inputs
    classes: Sequence[str]
    clean: Tensor | None = None  # (n) true labels, if known; used for metrics only
    workers: int = field(default_factory=default_workers)  # threads; 0: decode in the calling thread
    cache: DecodedCache | None = None
    normalise: str = "image"  # or a key of CHANNELS

    def __post_init__(self) -> None:
        self._buffers: dict[int, _BatchBuffer] = {}  # by batch size: a recorded step always reads the same buffer
        self._buffer: _BatchBuffer | None = None
        self._count = 0  # images in the buffer
        self._turn = 0

    @property
    def device(self) -> torch.device:
        """Device of labels and inputs."""
        return self.labels.device

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    @property
    def names(self) -> Sequence[str]:
        """Path, or file:row, of each sample."""
        return self.pictures.names

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample: (channels, height, width)."""
        return self.frame.channels, self.frame.height, self.frame.width

    def __len__(self) -> int:
        return len(self.labels)

    def contents(self) -> Iterator[bytes | memoryview]:
        """Yield the bytes that identify this set, for a digest: all names and labels, and some of the images."""
        yield f"{DECODER} {self.frame} {self.normalise}".encode()
        yield "\n".join(self.names).encode("utf-8", "surrogateescape")
        yield from sampled_bytes(self.pictures)
        yield self.labels.cpu().numpy().data

    def staged(self, order: Tensor, size: int) -> Iterator[int]:
        """Yield the size of each batch of an order, once its images are in place for `inputs`."""
        samples = order.tolist()
        if samples and not 0 <= min(samples) <= max(samples) < len(self):
            raise IndexError(f"the order contains samples outside 0 to {len(self) - 1}")
        batches = [samples[first : first + size] for first in range(0, len(samples), size)]
        buffer = self._buffers.get(size) or self._buffers.setdefault(size, _BatchBuffer(size, self.frame, self.device))
        self._turn += 1
        turn = self._turn
        for slot, count in _filled_slots(batches, buffer, self._fill, self.workers):
            slot.send(buffer.images, count)
            self._buffer, self._count = buffer, count
            yield count
            if turn != self._turn:
                raise RuntimeError("staged() was called again before the batches of the first call were used")

    def inputs(self, index: Tensor) -> Tensor:
        """Return the normalised network inputs of the current batch of `staged`."""
        if self._buffer is None or len(index) != self._count:
            raise RuntimeError(f"{self._count} samples are staged, not {len(index)}")
        images = self._buffer.images[: self._count].permute(0, 3, 1, 2).contiguous()
        return normalise_inputs(images, self.normalise)

    def to(self, device: torch.device) -> "Streamed":
        """Return the set with labels and inputs on a device."""
        clean = None if self.clean is None else self.clean.to(device)
        return replace(self, labels=self.labels.to(device), clean=clean)

    def at(self, index: Tensor) -> "Streamed":
        """Return the subset at the given positions, or of a mask."""
        picked = torch.arange(len(self))[index.cpu()].tolist()
        return replace(
            self,
            pictures=self.pictures.at(picked),
            labels=self.labels[index],
            clean=None if self.clean is None else self.clean[index],
            cache=None if self.cache is None else self.cache.at(picked),
        )

    def relabelled(self, labels: Tensor) -> "Streamed":
        """Return the set with other labels; the old ones become the true labels if none are known."""
        return replace(self, labels=labels, clean=self.labels if self.clean is None else self.clean)

    def _fill(self, out: Array, index: Sequence[int]) -> None:
        if self.cache is not None:
            self.cache.read_into(out, index)
        else:
            decode_into(out, self.pictures, index, self.frame)


Trainable = Labelled | Streamed
Undecoded = Labelled | Pictures | Texts


class Sets(NamedTuple):
    """The splits of a dataset, ready for training."""

    train: Trainable
    test: Trainable | None = None
    valid: Trainable | None = None  # with correct labels


class Listing(NamedTuple):
    """The splits of a dataset before any image is decoded; every reader returns one."""

    train: Undecoded
    test: Undecoded | None = None
    valid: Undecoded | None = None
    unusable: Sequence[Unusable] = ()
    kind: str = ""  # description of the format, such as "a table"
    frame: Frame | None = None  # of all images, where the format defines it

    def splits(self) -> dict[str, Undecoded]:
        """Return the splits that exist, by name."""
        named = {"train": self.train, "test": self.test, "valid": self.valid}
        return {name: split for name, split in named.items() if split is not None}


class _HostSlot:
    """A batch on the host, copied to the device while other slots are filled."""

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        self.images = torch.empty(shape, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self.sent = torch.cuda.Event() if device.type == "cuda" else None

    def send(self, to: Tensor, count: int) -> None:
        to[:count].copy_(self.images[:count], non_blocking=True)
        if self.sent is not None:
            self.sent.record()

    def rows(self) -> Array:
        """Return the images for writing, once the last copy to the device is complete."""
        if self.sent is not None:
            self.sent.synchronize()
        return self.images.numpy()


class _BatchBuffer:
    """Host slots and one device tensor with a fixed address, for batches of up to `size` images."""

    def __init__(self, size: int, frame: Frame, device: torch.device) -> None:
        self.shape = (size, frame.height, frame.width, frame.channels)
        self.images = torch.zeros(self.shape, dtype=torch.uint8, device=device)
        self.slots: list[_HostSlot] = []

    def slot(self, batch: int) -> _HostSlot:
        """Return the slot for a batch; create it on first use."""
        if batch % SLOTS == len(self.slots):
            self.slots.append(_HostSlot(self.shape, self.images.device))
        return self.slots[batch % SLOTS]


def _filled_slots(
    batches: Sequence[Sequence[int]], buffer: _BatchBuffer, fill: Fill, workers: int
) -> Iterator[tuple[_HostSlot, int]]:
    """Yield slot and size of every batch, in order, while threads fill the slots of the next batches."""
    if workers == 0:
        for number, batch in enumerate(batches):
            slot = buffer.slot(number)
            fill(slot.rows()[: len(batch)], batch)
            yield slot, len(batch)
        return
    pool = ThreadPoolExecutor(workers, "decode")
    pending: deque[tuple[_HostSlot, int, list[Future[None]]]] = deque()
    try:
        for number, batch in enumerate(batches):
            slot = buffer.slot(number)
            pending.append((slot, len(batch), [pool.submit(fill, *chunk) for chunk in _chunks(slot.rows(), batch)]))
            if len(pending) == SLOTS:
                yield _wait(*pending.popleft())
        while pending:
            yield _wait(*pending.popleft())
    finally:  # also if the caller stops early
        pool.shutdown(cancel_futures=True)


def _chunks(rows: Array, batch: Sequence[int]) -> Iterator[tuple[Array, Sequence[int]]]:
    """Yield parts of a batch, each with the rows that it is written to."""
    for first in range(0, len(batch), DECODE_CHUNK):
        part = batch[first : first + DECODE_CHUNK]
        yield rows[first : first + len(part)], part


def _wait(slot: _HostSlot, count: int, parts: list[Future[None]]) -> tuple[_HostSlot, int]:
    for part in parts:
        part.result()
    return slot, count


def _normalise_channels(images: Tensor, mean: Sequence[float], deviation: Sequence[float]) -> Tensor:
    """Scale (B, C, H, W) uint8 to 0 to 1, subtract the mean and divide by the deviation; grayscale uses the average."""
    pixels = images.float().div_(255).unbind(1)
    if len(pixels) == 1:
        mean, deviation = [sum(mean) / len(mean)], [sum(deviation) / len(deviation)]
    return torch.stack([(p - m) / d for p, m, d in zip(pixels, mean, deviation, strict=True)], 1)
