"""Checks of what a training loop passes to a method.

Certain mistakes raise an error: `check_types`, `check_labels`, `check_index`, `check_choice`. Likely mistakes cause a
warning, each one once per method: `LoopMonitor`.
"""

from typing import Any

from torch import Tensor, nn

from labelsieve.errors import warn_user

BATCH_TOO_SMALL = (
    "batch size {size} is too small for this noise rate: the kept share rounds up to the whole batch, so no sample is "
    "left out; use at least {least} samples per batch (gradient accumulation does not help)"
)
SMALL_IN_A_ROW = 3  # warn after this many small batches in a row; the last batch of an epoch may be small
REPEATED = (
    "several processes pass the same positions in every step, and each sample is used once: index must contain "
    "positions in the whole training set, and each process needs other samples (torch's DistributedSampler)"
)


def check_types(logits: object, labels: object, index: object) -> None:
    """Raise TypeError if an argument is not a tensor."""
    for name, value in (("logits", logits), ("labels", labels), ("index", index)):
        if not isinstance(value, Tensor) and (name != "index" or value is not None):
            raise TypeError(f"{name} must be a torch tensor, got {type(value).__name__}")


def check_labels(labels: Tensor, num_classes: int) -> None:
    """Raise ValueError if a label is not a class."""
    wrong = labels[(labels < 0) | (labels >= num_classes)]
    if len(wrong):
        raise ValueError(f"labels must be from 0 to {num_classes - 1}, got {wrong[0].item()}")


def check_index(index: Tensor, num_samples: int) -> None:
    """Raise ValueError if a position is outside the training set or appears twice."""
    wrong = index[(index < 0) | (index >= num_samples)]
    if len(wrong):
        raise ValueError(
            f"index must contain positions in the training set, from 0 to {num_samples - 1} (num_samples is "
            f"{num_samples}), got {wrong[0].item()}"
        )
    if len(index.unique()) < len(index):
        raise ValueError("index contains a sample twice: pass the positions of the batch's samples in the training set")


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    """Return `value`, or raise ValueError if it is not one of the choices."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    return value


def look_like_probabilities(logits: Tensor) -> bool:
    """Return True if every row has values from 0 to 1 that sum to 1 and at least one row is not one-hot."""
    sums = logits.sum(-1)
    one_hot = (logits == logits.round()).all()
    return bool((logits >= 0).all() & (sums - 1).abs().le(1e-3).all() & ~one_hot)


class LoopMonitor:
    """Warn about likely mistakes in a training loop, about each kind once."""

    def __init__(self) -> None:
        self.warned: set[str] = set()
        self.last_decision: Any = None  # about the last batch
        self.small_batches = 0  # in a row
        self.repeated_batches = 0  # in a row
        self.epoch: int | None = None  # of the last call of check_first_batch
        self.parameter_versions: list[int] = []  # of the method's own parameters at the start of the epoch

    def warn(self, kind: str, message: str) -> None:
        """Show a warning of this kind once."""
        if kind not in self.warned:
            self.warned.add(kind)
            warn_user(message)

    def check_batch_size(self, size: int, least: int) -> None:
        """Warn if several batches in a row have fewer than `least` samples, so that none is left out."""
        self.small_batches = self.small_batches + 1 if size < least else 0
        if self.small_batches >= SMALL_IN_A_ROW:
            self.warn("batch size", BATCH_TOO_SMALL.format(size=size, least=least))

    def check_repeats(self, count: int) -> None:
        """Warn if several batches in a row have samples that several processes passed; the last one may be padded."""
        self.repeated_batches = self.repeated_batches + 1 if count else 0
        if self.repeated_batches >= SMALL_IN_A_ROW:
            self.warn("repeats", REPEATED)

    def check_order(self, before: int | None, epoch: int) -> None:
        """Warn if an epoch starts after a later one."""
        if before is not None and epoch < before:
            self.warn(
                "order",
                f"epoch {epoch} after epoch {before}: a loss stores the state of one training; make a new one for "
                "another training, or pass start= to loss_fn.epochs to continue",
            )

    def check_first_batch(self, epoch: int | None, method: nn.Module, logits: Tensor) -> None:
        """Run the slower checks, which are called in the first batch of an epoch only.

        Warn if no optimizer has changed the method's own parameters for a whole epoch, if logits are not finite, or if
        they look like probabilities.
        """
        self.epoch = epoch
        versions = [parameter._version for parameter in method.parameters()]
        if versions and versions == self.parameter_versions:
            self.warn(
                "parameters",
                "no optimizer updates the method's own parameters: add loss_fn.parameter_groups() to the optimizer "
                "(torch.optim.SGD accepts them as they are)",
            )
        self.parameter_versions = versions
        if logits.device.type == "cpu":  # a GPU would wait
            self._check_logits(logits.detach())

    def _check_logits(self, logits: Tensor) -> None:
        """Warn if logits, (B, K) or (N, B, K), have no softmax, or look like one."""
        wrong = logits.float().softmax(-1).isnan().any(-1)
        wrong = wrong.any(0) if wrong.dim() == 2 else wrong  # (B)
        if wrong.any():
            self.warn(
                "finite",
                f"the logits of {wrong.sum()} of {len(wrong)} samples are NaN or infinite, the first at position "
                f"{wrong.nonzero()[0].item()} of the batch: selection leaves such samples out, and the loss of other "
                "methods becomes NaN; check the inputs and the learning rate",
            )
        elif look_like_probabilities(logits):
            self.warn("probabilities", "logits look like probabilities: remove the softmax from the model")

    def check_mode(self, logits: Tensor) -> None:
        """Warn if a method in eval mode receives logits with a gradient."""
        if logits.requires_grad:
            self.warn(
                "mode", "the loss is in eval mode and does not update its state: call loss_fn.train() before training"
            )
