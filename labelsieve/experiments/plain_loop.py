"""The loop that public repositories of this field share, for comparison: eager, data on the host, selection on the CPU.

It is kinder than most of them: images are standardised once and lie in memory, so no worker has to decode anything.
"""

import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelsieve.data import Labelled

LAM = 0.5


def plain_epochs(
    make_network: Callable[[], nn.Module],
    train: Labelled,
    test: Labelled,
    device: torch.device,
    *,
    batch: int,
    epochs: int,
) -> list[float]:
    """Train mentornet-prop in fp32, all epochs selecting; returns the seconds of each epoch, evaluation included."""
    network = make_network().to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    images, test_images = (data.inputs(torch.arange(len(data))) for data in (train, test))
    classes = train.num_classes
    penalty = torch.full((classes, classes), 1 / (classes - 1), device=device)
    seconds = []
    for _ in range(epochs):
        began = time.perf_counter()
        penalty = one_epoch(network, optimizer, images, train.labels, penalty, device, batch)
        evaluate(network, test_images, test.labels, device, batch)
        seconds.append(time.perf_counter() - began)
    return seconds


def one_epoch(
    network: nn.Module,
    optimizer: torch.optim.SGD,
    images: Tensor,
    labels: Tensor,
    penalty: Tensor,
    device: torch.device,
    batch: int,
) -> Tensor:
    """Returns the penalty labels for the next epoch."""
    network.train()
    sums = torch.zeros_like(penalty)
    correct, total_loss = 0.0, 0.0
    for index in torch.randperm(len(labels)).split(batch):
        x, y = images[index].to(device), labels[index].to(device)
        logits = network(x)
        probs = F.softmax(logits, dim=1).detach()
        confidence = probs[torch.arange(len(y)), y]
        criteria = (confidence - LAM * (penalty[y] * probs).sum(1)).cpu().numpy()
        kept = np.argsort(-criteria)[: int(np.ceil(0.6 * len(y)))]
        loss = F.cross_entropy(logits[kept], y[kept])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sums.index_add_(0, y, probs)
        correct += (probs.argmax(1) == y).sum().item()
        total_loss += loss.item()
    sums.fill_diagonal_(0)
    return sums / sums.sum(1, keepdim=True).clamp(min=1e-12)


@torch.no_grad()
def evaluate(network: nn.Module, images: Tensor, labels: Tensor, device: torch.device, batch: int) -> float:
    network.eval()
    correct = 0.0
    for x, y in zip(images.split(batch), labels.split(batch), strict=True):
        correct += (network(x.to(device)).argmax(1).cpu() == y).sum().item()
    return 100 - 100 * correct / len(labels)
