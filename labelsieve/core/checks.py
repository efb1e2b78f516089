"""What a loop of one's own gets wrong: refused where it is certain, said once where it is likely."""

import warnings

from torch import Tensor, nn

from labelsieve.core.part import processes

TOO_SMALL = (
    "batches of {size} are too small at this noise rate: the kept share, rounded up, is all of them, so that nothing "
    "is left out; use at least {least} (accumulated gradients do not help)"
)
SMALL_IN_A_ROW = 3  # a single small batch is the last of its epoch


def refuse_other_types(logits: object, labels: object, index: object) -> None:
    """Refuse what is no tensor."""
    for name, value in (("logits", logits), ("labels", labels), ("index", index)):
        if not isinstance(value, Tensor | None) or (value is None and name != "index"):
            raise TypeError(f"{name} must be a torch tensor, got {type(value).__name__}")


def refuse_other_labels(labels: Tensor, num_classes: int) -> None:
    """Refuse labels that name no class, which torch would call an index out of bounds."""
    wrong = labels[(labels < 0) | (labels >= num_classes)]
    if len(wrong):
        raise ValueError(f"labels must be from 0 to {num_classes - 1}, got {wrong[0].item()}")


def refuse_other_positions(index: Tensor, num_samples: int) -> None:
    """Refuse positions at which there is no sample, and those that come twice: only one of the two would count."""
    wrong = index[(index < 0) | (index >= num_samples)]
    if len(wrong):
        raise ValueError(
            f"index must be positions in the data, from 0 to {num_samples - 1} (num_samples is {num_samples}), "
            f"got {wrong[0].item()}"
        )
    if len(index.unique()) < len(index):
        raise ValueError("index names a sample twice: it must be the positions in the data of the samples of the batch")


def look_like_probabilities(logits: Tensor) -> bool:
    """Whether every row is of numbers from 0 to 1 that sum to one, and none of them is a label in disguise."""
    sums = logits.sum(-1)
    whole = (logits == logits.round()).all()
    return bool((logits >= 0).all() & (sums - 1).abs().le(1e-3).all() & ~whole)


class Watch:
    """What was seen of a loop, and what was said about it: each thing once."""

    def __init__(self) -> None:
        self.said: set[str] = set()
        self.small = 0  # batches in a row that were too small to leave anything out
        self.epoch: int | None = None
        self.versions: list[int] = []  # of the method's own parameters, when the epoch began

    def say(self, about: str, message: str) -> None:
        if about not in self.said:
            self.said.add(about)
            warnings.warn(message, stacklevel=4)

    def batch(self, size: int, least: int) -> None:
        """A batch; of fewer than `least` samples none is left out."""
        self.small = self.small + 1 if size < least else 0
        if self.small >= SMALL_IN_A_ROW:
            self.say("small", TOO_SMALL.format(size=size, least=least))

    def order(self, before: int | None, epoch: int) -> None:
        """Epochs of one training come one after the other."""
        if before is not None and epoch < before:
            self.say(
                "order",
                f"epoch {epoch} after epoch {before}: a method belongs to one training and remembers it; make a new "
                "one for another, or call method.start_round(number) where the same training begins anew",
            )

    def begins(self, epoch: int | None) -> bool:
        """Whether this is the first batch of an epoch: what takes longer to look at is looked at then."""
        before, self.epoch = self.epoch, epoch
        return before != epoch

    def own_parameters(self, method: nn.Module) -> None:
        """Parameters of the method that no optimizer has changed in a whole epoch."""
        versions = [parameter._version for parameter in method.parameters()]
        if versions and versions == self.versions:
            self.say(
                "parameters",
                "no optimizer changes the method's own parameters: give it method.parameter_groups() "
                "(torch.optim.SGD takes them as they are)",
            )
        self.versions = versions

    def logits(self, logits: Tensor) -> None:
        if look_like_probabilities(logits.detach()):
            self.say("probabilities", "logits look like probabilities: leave the softmax out of the model")

    def in_eval(self, logits: Tensor) -> None:
        if logits.requires_grad:
            self.say("eval", "the method is in eval() and observes nothing: call method.train() before training")

    def processes(self, remembers_samples: bool) -> None:
        """Other processes may train beside this one."""
        if remembers_samples and processes() > 1:
            self.say(
                "processes",
                "this method remembers single samples, and each process only those that it saw itself; "
                "train it in one process, or take a method that needs no index",
            )
