"""Labelled: images and labels that live on the device as plain tensors."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


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
