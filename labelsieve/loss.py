"""SieveLoss: a method as a PyTorch loss, made by its name, with the epochs of a training loop."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from labelsieve.core.method import NO_EPOCH, Decision, Method
from labelsieve.core.part import Predict
from labelsieve.errors import InputError
from labelsieve.methods import Problem, make


class Last:
    """The decision of a method about the last batch. Shapes are (B), or (N, B) for a method with N > 1 networks.

    Reading a value computes it on the device of the batch and does not wait for it.
    """

    def __init__(self, decision: Decision) -> None:
        self._decision = decision

    @property
    def weight(self) -> Tensor:
        """The weight of each sample in the loss, 0 for samples that were left out."""
        return without_network_axis(self._decision.weight)

    @property
    def target(self) -> Tensor:
        """The label that each sample was trained with, which differs from the observed one if it was relabelled."""
        return without_network_axis(self._decision.target)

    @property
    def kept(self) -> Tensor:
        """True for the samples that were learnt from, (B) bool."""
        return self.weight > 0

    @property
    def kept_share(self) -> Tensor:
        """The share of the batch that was learnt from, a tensor without dimensions, or (N)."""
        return self.kept.float().mean(-1)


class SieveLoss(Method):
    """A loss for training with noisy labels. Use it instead of `torch.nn.CrossEntropyLoss`.

    Samples whose labels look wrong are left out of the loss, weighted or relabelled, depending on the method. In eval
    mode and under `torch.no_grad()`, the state of the loss does not change. `state_dict()` contains everything that a
    training needs to resume.

    If torch.distributed is initialized, the batch is the union of the batches of all processes.

    Args:
        method: the name of a method, a key of `labelsieve.METHODS`.
        num_classes: the number of classes.
        noise_rate: the share of wrong labels; `labelsieve.estimate_noise` estimates it.
        warmup: the number of epochs of plain training before samples are selected or relabelled.
        num_samples: the size of the training set, for methods that store values for each sample.
        criterion: the name of a criterion that replaces that of the method: "ol", "pl", "all" or "margin".
        seed: the seed of the random numbers that the method draws.
        distributed: False to train in this process alone although torch.distributed is initialized.
        options: options of the method and its criterion, such as `lam=0.5`.

    Examples:
        >>> import torch, labelsieve
        >>> x, y = torch.randn(64, 20), torch.randint(4, (64,))
        >>> model = torch.nn.Linear(20, 4)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> loss_fn = labelsieve.SieveLoss("mentornet-prop", num_classes=4, noise_rate=0.25, warmup=1)
        >>> for epoch in loss_fn.epochs(3):
        ...     loss = loss_fn(model(x), y)
        ...     optimizer.zero_grad()
        ...     loss.backward()
        ...     optimizer.step()
        >>> loss_fn.last.kept.sum()  # 75% of the batch
        tensor(48)
        >>> loss_fn.penalty.shape  # row k: the classes from which wrong labels k come
        torch.Size([4, 4])
    """

    def __init__(
        self,
        method: str,
        *,
        num_classes: int,
        noise_rate: float,
        warmup: int = 25,
        num_samples: int = 0,
        criterion: str | None = None,
        seed: int = 0,
        distributed: bool = True,
        **options: Any,
    ) -> None:
        problem = Problem(num_classes, noise_rate, warmup, num_samples, seed, distributed)
        made = make(method, problem, criterion, **options)
        super().__init__(
            made.loss,
            list(made.weigh),  # type: ignore[arg-type]
            made.relabel,
            regularizer=made.regularizer,
            networks=made.networks,
            num_rounds=made.num_rounds,
            lr_scale=made.lr_scale,
            drop_last=made.drop_last,
        )
        self.name = method
        self.distributed = distributed
        self.progress = nn.Buffer(torch.zeros(2, dtype=torch.int64))  # the round, and the epochs started in it
        self._in_round = self.num_rounds == 1
        self._resumes = False  # True between loading a state and continuing from it
        self.register_load_state_dict_post_hook(_mark_loaded)  # type: ignore[no-untyped-call]

    @property
    def last(self) -> Last:
        """The decision about the last batch; in several processes, about the union of their batches."""
        if self.monitor.last_decision is None:
            raise InputError("nothing has been decided yet: pass a batch to the loss first")
        return Last(self.monitor.last_decision)

    @property
    def penalty(self) -> Tensor:
        """The penalty labels (K, K), or (N, K, K) for N > 1 networks: row k shows where wrong labels k come from."""
        tables = self.tables()
        if "penalty" not in tables:
            raise InputError(
                f"{self.name} has no penalty labels here: use mentornet-prop, sl-prop or selfie-prop, or pass "
                'criterion="all"'
            )
        return without_network_axis(tables["penalty"]).clone()

    def epochs(self, count: int, *, start: int | None = None, predict: Predict | None = None) -> Iterator[int]:
        """Iterate over the epochs of a training, counted from 0; start and end each for the method.

        After `load_state_dict`, the training continues with the epoch after the one in which the state was saved.

        Args:
            count: the number of epochs of the whole training.
            start: the first epoch. Pass the saved epoch itself if the state was saved in the middle of it.
            predict: for methods with `needs_predictions`: a function that yields batches of probabilities (B, K) in
                eval mode, labels (B) and index (B), until every training sample has appeared once.

        Examples:
            >>> loss_fn = labelsieve.SieveLoss("mentornet", num_classes=10, noise_rate=0.2, warmup=2)
            >>> list(loss_fn.epochs(4))
            [0, 1, 2, 3]
        """
        check_warmup(self, count)
        if self.needs_predictions and predict is None:
            raise InputError(
                f"{self.name} predicts the training set at the end of each epoch: pass epochs({count}, predict=...), a "
                "function that yields batches of probabilities (B, K), labels (B) and index (B)"
            )
        if not self._in_round:
            raise InputError(
                f"{self.name} trains the network {self.num_rounds} times from the start: put the epochs into "
                "`for number in loss_fn.rounds():`, or make the loss with rounds=1"
            )
        if start is None:
            start = int(self.progress[1]) if self._resumes else 0
        return self._run_epochs(range(start, count), predict)

    def _run_epochs(self, epochs: range, predict: Predict | None) -> Iterator[int]:
        if self._resumes and int(self.epoch) not in (epochs.start, NO_EPOCH):
            self.end_epoch(predict)  # the state was saved after the last batch of an epoch
        self._resumes = False
        for epoch in epochs:
            self.start_epoch(epoch)
            yield epoch
            self.end_epoch(predict)

    def rounds(self, *, predict: Predict | None = None) -> Iterator[int]:
        """Iterate over the rounds of a method that trains its networks several times; make new networks in each.

        Most methods have one round, `num_rounds`. After `load_state_dict`, the saved round continues.

        Args:
            predict: as for `epochs`; needed by `f-correction` with `estimate="patrini"`.

        Examples:
            >>> loss_fn = labelsieve.SieveLoss("selfie", num_classes=10, noise_rate=0.2, warmup=2, num_samples=50)
            >>> for number in loss_fn.rounds():
            ...     model = torch.nn.Linear(20, 10)
            ...     for epoch in loss_fn.epochs(4):
            ...         pass  # train the model
        """
        first = int(self.progress[0]) if self._resumes else 0
        for number in range(first, self.num_rounds):
            if not self._resumes:
                self.start_round(number)
            yield number
            if predict is not None:
                self.end_round(predict)

    def start_round(self, number: int) -> None:
        """Reset the state for newly initialized networks; `rounds` calls it."""
        super().start_round(number)
        self.progress.copy_(torch.tensor([number, 0]))
        self._in_round, self._resumes = True, False

    def start_epoch(self, epoch: int) -> None:
        """Start an epoch, counted from 0; `epochs` calls it. Ends the previous one if needed."""
        super().start_epoch(epoch)
        self.progress[1] = epoch + 1


def check_warmup(method: Method, epochs: float) -> None:
    """Raise InputError if a training of this many epochs ends before the warm-up of the method does."""
    if 0 < epochs <= method.active_from:
        raise InputError(
            f"the warm-up of {method.active_from} epochs is not shorter than the training of {epochs}, so no sample "
            "would be selected or corrected; train longer, or pass a smaller warmup"
        )


def without_network_axis(values: Tensor) -> Tensor:
    """Return values of one network without the first axis: (1, ...) becomes (...); those of several are unchanged."""
    return values[0] if len(values) == 1 else values


def _mark_loaded(loss: SieveLoss, keys: object) -> None:
    """Continue in the round and after the epoch of a loaded state."""
    loss._in_round = loss._resumes = True
