"""Lightning: a callback that does for a method what a loop of one's own would do."""

import math
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.hooks import RemovableHandle

from labelsieve.core.method import NO_EPOCH, Method, constant_lr
from labelsieve.core.part import Predict
from labelsieve.errors import InputError
from labelsieve.integrations.common import (
    ScaledRates,
    least_kept_share,
    refuse_incomplete_batches,
    refuse_long_warmup,
    refuse_no_method,
    refuse_rounds,
    refuse_unlearnt,
    say_if_it_never_began,
)

NOT_SHARED = "_ddp_params_and_buffers_to_ignore"  # what DistributedDataParallel looks for in a module


class SieveCallback(Callback):  # type: ignore[misc]
    """Tells a method of epochs, devices and checkpoints: `Trainer(callbacks=[SieveCallback(method)])`.

    The training step returns `method(logits, labels)`. `predict()` yields batches of probabilities (B, K) or (N, B, K),
    labels (B) and index (B) of the whole training set, for methods that predict it again; the module is in eval mode.
    """

    def __init__(self, method: Method, predict: Predict | None = None) -> None:
        refuse_no_method(method)
        self.method = method
        self.predict = predict
        self.rates = ScaledRates(method)
        self.hooks: list[RemovableHandle] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """DistributedDataParallel would give every process the memory of the first one at each step."""
        others = getattr(pl_module, NOT_SHARED, ())
        setattr(pl_module, NOT_SHARED, sorted({*others, *buffer_names(pl_module, self.method)}))

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.method.to(pl_module.device)
        self.method.train()
        refuse_rounds(self.method)
        refuse_unlearnt(self.method, trainer.optimizers)
        if self.method.needs_predictions and self.predict is None:
            raise InputError(
                "this method predicts the training set again: say SieveCallback(method, predict=...), a function that "
                "yields probabilities, labels and index batch by batch"
            )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.fast_dev_run:
            refuse_long_warmup(self.method, epochs(trainer))
        refuse_incomplete_batches(self.method, only_whole_batches(trainer.train_dataloader))
        if self.method.lr_scale is not constant_lr:
            for optimizer in trainer.optimizers:
                self.hooks.append(optimizer.register_step_pre_hook(self.rates.apply))
                self.hooks.append(optimizer.register_step_post_hook(self.rates.put_back))

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin(trainer.current_epoch, pl_module)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A validation or test step may look at what is kept, also before the first epoch."""
        if self.method.current_epoch is None:
            self.method.to(pl_module.device).start_epoch(trainer.current_epoch)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.on_validation_start(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if (share := least_kept_share(self.method)) is not None:
            pl_module.log("labelsieve/kept_share", share, sync_dist=True)
        self._end(pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._remove_hooks()
        if not trainer.fast_dev_run:
            say_if_it_never_began(self.method)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.rates.put_back()
        self._remove_hooks()

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Refuse to go on with a method that remembers nothing of what the network has learnt."""
        inside = any(module is self.method for module in pl_module.modules())
        if trainer.training and not inside and self.state_key not in checkpoint["callbacks"]:
            raise InputError(
                "the checkpoint was saved without SieveCallback: it has the network, but nothing of the method"
            )

    def state_dict(self) -> dict[str, Any]:
        return self.method.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.method.load_state_dict(state_dict)

    def _remove_hooks(self) -> None:
        for hook in self.hooks:
            hook.remove()
        self.hooks.clear()

    def _begin(self, epoch: int, module: nn.Module) -> None:
        if int(self.method.epoch) not in (epoch, NO_EPOCH):  # the checkpoint was saved just before the epoch's end
            self._end(module)
        self.method.start_epoch(epoch)

    def _end(self, module: nn.Module) -> None:
        with in_eval(module):
            self.method.end_epoch(self.predict)


def buffer_names(module: nn.Module, method: Method) -> list[str]:
    """The method's buffers, as a module calls them that it is a part of; none where it is not."""
    own = {id(buffer) for buffer in method.buffers()}
    return [name for name, buffer in module.named_buffers() if id(buffer) in own]


@contextmanager
def in_eval(module: nn.Module) -> Iterator[None]:
    """All of a module in eval mode, and each part of it back in its own mode afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def epochs(trainer: Trainer) -> float:
    """How many epochs are trained at most, by max_epochs and max_steps; infinite where nobody can know."""
    limit = math.inf if trainer.max_epochs in (None, -1) else int(trainer.max_epochs)
    if trainer.max_steps == -1 or math.isinf(trainer.num_training_batches):
        return limit
    steps: int = math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
    return min(limit, math.ceil(int(trainer.max_steps) / max(1, steps)))


def only_whole_batches(loader: Any) -> bool:
    """Whether no batch is smaller than the others, as far as a loader tells."""
    if not isinstance(loader, DataLoader) or loader.batch_size is None or loader.drop_last:
        return True
    return isinstance(loader.dataset, Sized) and len(loader.dataset) % loader.batch_size == 0
