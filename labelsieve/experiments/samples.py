"""What a run leaves of every single sample, for those who look for wrong labels."""

import torch
from torch import Tensor

from labelsieve.experiments.prepare import Prepared
from labelsieve.report.records import HELD_OUT, TESTED, TRAINED
from labelsieve.train import Result
from labelsieve.train.evidence import evidence


def samples_of(prepared: Prepared, result: Result) -> dict[str, Tensor]:
    """Every sample of the data's training set in its order, those held out or drawn as a test set too.

    The delivered networks' evidence, `split`, `decided` where a person decided on labels, and the means of what was
    gathered while training, 0 where nothing was.
    """
    networks = prepared.make_networks(0)
    networks.load_state_dict(result.chosen.networks)
    places = prepared.places
    parts = [
        (TRAINED, places.train, prepared.train),
        (HELD_OUT, places.valid, prepared.valid),
        (TESTED, places.test, prepared.test),
    ]
    known = [(split, where, data) for split, where, data in parts if where is not None and data is not None]
    where = torch.cat([places for _, places, _ in known])
    found = [evidence(networks, data, prepared.training) for *_, data in known]
    whole = {name: laid(where, torch.cat([part[name] for part in found])) for name in found[0]}
    whole["split"] = laid(where, torch.cat([torch.full((len(p),), s, dtype=torch.uint8) for s, p, _ in known]))
    if prepared.decided is not None:
        whole["decided"] = prepared.decided
    return {**whole, **laid_means(result.samples, places.train, len(where))}


def laid(where: Tensor, values: Tensor) -> Tensor:
    """Values at their places."""
    whole = torch.empty_like(values)
    whole[where] = values
    return whole


def laid_means(sums: dict[str, Tensor], where: Tensor, count: int) -> dict[str, Tensor]:
    """The sums of training as means under the name mean_..., and how often each sample was seen."""
    seen = torch.zeros(count, dtype=torch.int32)
    seen[where] = sums["seen"].cpu()
    means = {"seen": seen}
    for name, values in sums.items():
        if name != "seen":
            whole = torch.zeros(count)
            whole[where] = values.cpu()
            means[f"mean_{name}"] = whole / seen.clamp(min=1)
    return means
