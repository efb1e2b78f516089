"""What a network says of samples."""

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from labelsieve.data.resident import Labelled
from labelsieve.devices import at_a_time

Array = np.ndarray[Any, Any]


def probabilities(network: nn.Module, samples: Labelled, device: torch.device) -> Array:
    """Probabilities (n, K)."""
    probs: Array = logits_of(network, samples, device).softmax(-1).numpy()
    return probs


@torch.no_grad()
def logits_of(network: nn.Module, samples: Labelled, device: torch.device) -> Tensor:
    """Logits (n, K); of rows in double precision, where nothing hangs on what else is in a batch."""
    rows = len(samples.shape) == 1
    network = copy.deepcopy(network).eval()
    network = network.double() if rows else network.to(device)
    parts = []
    for index in torch.arange(len(samples)).split(at_a_time(samples.shape)):
        inputs = samples.inputs(index)
        logits = network(inputs.double() if rows else inputs.to(device))
        parts.append(logits.double().cpu())
    return torch.cat(parts)
