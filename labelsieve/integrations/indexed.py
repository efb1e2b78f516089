"""Datasets that tell the position of each sample, for methods that remember samples."""

from typing import Any

from torch.utils.data import Dataset, IterableDataset

from labelsieve.core.method import Method
from labelsieve.errors import InputError

INDEX = "labelsieve_index"  # the column of the positions


class Indexed(Dataset[dict[str, Any]]):
    """A dataset of dicts that tells the position of each sample."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, position: int) -> dict[str, Any]:
        return {**self.samples[position], INDEX: position}

    def __getitems__(self, positions: list[int]) -> list[dict[str, Any]]:
        """A batch at once, where the dataset can: datasets.Dataset reads it much faster than one by one."""
        if not hasattr(self.samples, "__getitems__"):
            return [self[position] for position in positions]
        samples = self.samples.__getitems__(positions)
        return [{**sample, INDEX: position} for sample, position in zip(samples, positions, strict=True)]


def indexed(dataset: Any, method: Method) -> Indexed:
    """A training set with positions, where it has any and the method was made for as many."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise InputError("this method remembers single samples: it needs a train_dataset with a length and positions")
    for part in method.parts():
        if part.num_samples not in (0, len(dataset)):
            raise InputError(
                f"the method was made for {part.num_samples} samples, train_dataset has {len(dataset)}: "
                f"say Problem(num_samples={len(dataset)})"
            )
    return Indexed(dataset)
