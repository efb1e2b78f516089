"""Labelled: images and labels that live on the device as plain tensors."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from labelsieve.data.cache import PIECE, Array, DecodedCache, samples_of
from labelsieve.data.images import DECODER, Frame, Pictures, decode_into


def standardise(images: Tensor) -> Tensor:
    """Per image: zero mean and unit deviation over all pixels and channels, (B, C, H, W) uint8 -> float32."""
    pixels = images.float()
    deviation, mean = torch.std_mean(pixels, dim=(1, 2, 3), correction=0, keepdim=True)
    smallest = images[0].numel() ** -0.5  # of a flat image
    return (pixels - mean) / deviation.clamp(min=smallest)


IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # mean and deviation per channel


def normalised(images: Tensor, mean: Sequence[float], deviation: Sequence[float]) -> Tensor:
    """Per channel: (B, C, H, W) uint8 as 0 to 1, less the mean, over the deviation; a gray set takes the average."""
    pixels = images.float().div_(255).unbind(1)
    if len(pixels) == 1:
        mean, deviation = [sum(mean) / len(mean)], [sum(deviation) / len(deviation)]
    return torch.stack([(p - m) / d for p, m, d in zip(pixels, mean, deviation, strict=True)], 1)


def seen_by_network(samples: Tensor, normalise: str) -> Tensor:
    """Images as the network wants them: standardised one by one, or by ImageNet's colours; rows as they are."""
    if samples.dtype != torch.uint8:
        return samples
    return normalised(samples, *IMAGENET) if normalise == "imagenet" else standardise(samples)


@dataclass(frozen=True)
class Labelled:
    """A set of labelled images, or of rows of numbers."""

    images: Tensor  # (n, C, H, W) uint8, or (n, F) float32
    labels: Tensor  # (n) int64, observed
    classes: Sequence[str]
    clean: Tensor | None = None  # (n) true labels, where they are known: only metrics may read them
    names: Sequence[str] | None = None  # of each sample, for people: a path, or file:row
    normalise: str = "image"  # or imagenet
    columns: tuple[str, ...] | None = None  # of a table of numbers

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample: channels, height, width, or columns."""
        return tuple(self.images.shape[1:])

    def __len__(self) -> int:
        return len(self.labels)

    def contents(self) -> Iterator[bytes | memoryview]:
        """All that makes this set what it is, to take a digest of."""
        yield str(tuple(self.images.shape)).encode()
        yield self.images.cpu().contiguous().numpy().data
        yield self.labels.cpu().numpy().data

    def staged(self, order: Tensor, size: int) -> Iterator[int]:
        """The size of each batch of this order; all inputs are in place already."""
        for first in range(0, len(order), size):
            yield min(size, len(order) - first)

    def inputs(self, index: Tensor) -> Tensor:
        """What the network sees of these samples."""
        return seen_by_network(self.images[index], self.normalise)

    def to(self, device: torch.device) -> "Labelled":
        return self._with(lambda tensor: tensor.to(device))

    def at(self, index: Tensor) -> "Labelled":
        """The samples at these positions alone."""
        names = None if self.names is None else [self.names[i] for i in index.tolist()]
        return replace(self._with(lambda tensor: tensor[index]), names=names)

    def relabelled(self, labels: Tensor) -> "Labelled":
        """The same images under other labels; the labels they had are kept as the true ones if none were known."""
        return replace(self, labels=labels, clean=self.labels if self.clean is None else self.clean)

    def _with(self, change: Callable[[Tensor], Tensor]) -> "Labelled":
        clean = None if self.clean is None else change(self.clean)
        return replace(self, images=change(self.images), labels=change(self.labels), clean=clean)


SLOTS = 3  # batches on the host: one on its way to the device, the others being decoded
Fill = Callable[[Array, Sequence[int]], None]  # puts these samples into the rows of an array


def usable_cores() -> int:
    """How many this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usual_workers() -> int:
    """Twice the cores: a thread waits for its turn in Python now and then (benchmarks/streaming.py)."""
    return 2 * usable_cores()


class Slot:
    """A batch on the host, which goes to the device while other slots are filled."""

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        self.images = torch.empty(shape, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self.sent = torch.cuda.Event() if device.type == "cuda" else None

    def send(self, to: Tensor, count: int) -> None:
        to[:count].copy_(self.images[:count], non_blocking=True)
        if self.sent is not None:
            self.sent.record()

    def rows(self) -> Array:
        """The images, to be written over: once those that were here have left."""
        if self.sent is not None:
            self.sent.synchronize()
        return self.images.numpy()


class Stage:
    """Where batches of up to `size` images pass: slots on the host, then one place on the device that never moves."""

    def __init__(self, size: int, frame: Frame, device: torch.device) -> None:
        self.shape = (size, frame.height, frame.width, frame.channels)
        self.images = torch.zeros(self.shape, dtype=torch.uint8, device=device)
        self.slots: list[Slot] = []

    def slot(self, batch: int) -> Slot:
        """For the batch of this number; made when it is first needed."""
        if batch % SLOTS == len(self.slots):
            self.slots.append(Slot(self.shape, self.images.device))
        return self.slots[batch % SLOTS]


def filled(batches: Sequence[Sequence[int]], stage: Stage, fill: Fill, workers: int) -> Iterator[tuple[Slot, int]]:
    """The slot and number of images of every batch, in order; threads fill the slots of the next ones meanwhile."""
    if workers == 0:
        for number, batch in enumerate(batches):
            slot = stage.slot(number)
            fill(slot.rows()[: len(batch)], batch)
            yield slot, len(batch)
        return
    pool = ThreadPoolExecutor(workers, "decode")
    begun: deque[tuple[Slot, int, list[Future[None]]]] = deque()
    try:
        for number, batch in enumerate(batches):
            slot = stage.slot(number)
            begun.append((slot, len(batch), [pool.submit(fill, *piece) for piece in pieces(slot.rows(), batch)]))
            if len(begun) == SLOTS:
                yield _done(*begun.popleft())
        while begun:
            yield _done(*begun.popleft())
    finally:  # also when nobody wants the rest
        pool.shutdown(cancel_futures=True)


def pieces(rows: Array, batch: Sequence[int]) -> Iterator[tuple[Array, Sequence[int]]]:
    """A batch in parts, each with the rows it goes to."""
    for first in range(0, len(batch), PIECE):
        part = batch[first : first + PIECE]
        yield rows[first : first + len(part)], part


def _done(slot: Slot, count: int, parts: list[Future[None]]) -> tuple[Slot, int]:
    for part in parts:
        part.result()
    return slot, count


@dataclass(eq=False)
class Streamed:
    """A set of labelled images that are read from disk, batch by batch."""

    pictures: Pictures
    frame: Frame
    labels: Tensor  # (n) int64, observed, on the device that the images go to
    classes: Sequence[str]
    clean: Tensor | None = None  # (n) true labels, where they are known: only metrics may read them
    workers: int = field(default_factory=usual_workers)  # threads; 0: decode in between, without any
    cache: DecodedCache | None = None
    normalise: str = "image"  # or imagenet

    def __post_init__(self) -> None:
        self._stages: dict[int, Stage] = {}  # by batch size: a recorded step goes on reading the one it was shown
        self._stage: Stage | None = None
        self._count = 0  # images on it
        self._turn = 0

    @property
    def device(self) -> torch.device:
        return self.labels.device

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def names(self) -> Sequence[str]:
        return self.pictures.names

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample: channels, height, width."""
        return self.frame.channels, self.frame.height, self.frame.width

    def __len__(self) -> int:
        return len(self.labels)

    def contents(self) -> Iterator[bytes | memoryview]:
        """What tells this set from others, to take a digest of: all names and labels, and some of the images."""
        yield f"{DECODER} {self.frame} {self.normalise}".encode()
        yield "\n".join(self.names).encode("utf-8", "surrogateescape")
        yield from samples_of(self.pictures)
        yield self.labels.cpu().numpy().data

    def staged(self, order: Tensor, size: int) -> Iterator[int]:
        """The number of samples of each batch, once they are where inputs() finds them."""
        samples = order.tolist()
        if samples and not 0 <= min(samples) <= max(samples) < len(self):
            raise IndexError(f"the order names samples outside 0 to {len(self) - 1}")
        batches = [samples[first : first + size] for first in range(0, len(samples), size)]
        stage = self._stages.get(size) or self._stages.setdefault(size, Stage(size, self.frame, self.device))
        self._turn += 1
        turn = self._turn
        for slot, count in filled(batches, stage, self._fill, self.workers):
            slot.send(stage.images, count)
            self._stage, self._count = stage, count
            yield count
            if turn != self._turn:
                raise RuntimeError("staged() was called again before the batches of the first call were over")

    def inputs(self, index: Tensor) -> Tensor:
        """What the network sees of the batch that staged() has put in place."""
        if self._stage is None or len(index) != self._count:
            raise RuntimeError(f"staged() has put {self._count} samples in place, not {len(index)}")
        images = self._stage.images[: self._count].permute(0, 3, 1, 2).contiguous()
        return seen_by_network(images, self.normalise)

    def to(self, device: torch.device) -> "Streamed":
        clean = None if self.clean is None else self.clean.to(device)
        return replace(self, labels=self.labels.to(device), clean=clean)

    def at(self, index: Tensor) -> "Streamed":
        """The samples at these positions alone."""
        picked = torch.arange(len(self))[index.cpu()].tolist()  # of a mask as well
        return replace(
            self,
            pictures=self.pictures.at(picked),
            labels=self.labels[index],
            clean=None if self.clean is None else self.clean[index],
            cache=None if self.cache is None else self.cache.at(picked),
        )

    def relabelled(self, labels: Tensor) -> "Streamed":
        """The same images under other labels; the labels they had are kept as the true ones if none were known."""
        return replace(self, labels=labels, clean=self.labels if self.clean is None else self.clean)

    def _fill(self, out: Array, index: Sequence[int]) -> None:
        if self.cache is not None:
            self.cache.read_into(out, index)
        else:
            decode_into(out, self.pictures, index, self.frame)
