"""SieveCallback: use a SieveLoss in a Lightning training."""

import math
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader
from torch.utils.hooks import RemovableHandle

from labelsieve.core.method import NO_EPOCH, Method, constant_lr
from labelsieve.core.part import Predict
from labelsieve.errors import InputError, missing_extra
from labelsieve.integrations import common
from labelsieve.loss import SieveLoss, check_warmup

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError as error:
    raise missing_extra("lightning", error) from None

DDP_IGNORE = "_ddp_params_and_buffers_to_ignore"  # attribute of a module that DistributedDataParallel reads


class SieveCallback(Callback):  # type: ignore[misc]
    """Starts the epochs of a SieveLoss and saves its state: `Trainer(callbacks=[SieveCallback(loss_fn)])`.

    The training step of the module returns `loss_fn(logits, labels)`. The kept share is logged after each epoch.

    Args:
        loss_fn: a `labelsieve.SieveLoss`.
        predict: for methods that predict the training set again: yields batches of probabilities (B, K) or (N, B, K),
            labels (B) and index (B) of the whole training set. It is called with the module in eval mode.

    Examples:
        >>> import lightning as L
        >>> from labelsieve.integrations.lightning import SieveCallback
        >>> loss_fn = labelsieve.SieveLoss("mentornet-prop", num_classes=4, noise_rate=0.2, warmup=2)
        >>> quiet = {"logger": False, "enable_checkpointing": False, "accelerator": "cpu"}
        >>> trainer = L.Trainer(max_epochs=5, callbacks=[SieveCallback(loss_fn)], **quiet)
    """

    def __init__(self, loss_fn: SieveLoss, predict: Predict | None = None) -> None:
        common.check_loss(loss_fn)
        self.loss_fn = loss_fn
        self.predict = predict
        self.scaler = common.LearningRateScaler(loss_fn)
        self.hooks: list[RemovableHandle] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Exclude the method's buffers from DDP, which would overwrite them with those of the first process."""
        others = getattr(pl_module, DDP_IGNORE, ())
        setattr(pl_module, DDP_IGNORE, sorted({*others, *_buffer_names(pl_module, self.loss_fn)}))

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.loss_fn.to(pl_module.device)
        self.loss_fn.train()
        common.check_rounds(self.loss_fn)
        _check_optimizers(self.loss_fn, trainer.optimizers)
        if self.loss_fn.needs_predictions and self.predict is None:
            raise InputError(
                "this method predicts the training set again: pass SieveCallback(loss_fn, predict=...), a function "
                "that yields batches of probabilities, labels and index"
            )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.fast_dev_run:
            check_warmup(self.loss_fn, _max_epochs(trainer))
        common.check_drop_last(self.loss_fn, _has_only_complete_batches(trainer.train_dataloader))
        if self.loss_fn.lr_scale is not constant_lr:
            for optimizer in trainer.optimizers:
                self.hooks.append(optimizer.register_step_pre_hook(self.scaler.apply))
                self.hooks.append(optimizer.register_step_post_hook(self.scaler.restore))

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        epoch = trainer.current_epoch
        if int(self.loss_fn.epoch) not in (epoch, NO_EPOCH):  # the checkpoint was saved just before the epoch ended
            self._end_epoch(pl_module)
        self.loss_fn.start_epoch(epoch)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the epoch if none has started: a validation step may call the method before the first epoch."""
        if self.loss_fn.current_epoch is None:
            self.loss_fn.to(pl_module.device).start_epoch(trainer.current_epoch)

    on_test_start = on_validation_start

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for name, share in common.kept_share(self.loss_fn).items():
            pl_module.log(name, share, sync_dist=True)
        self._end_epoch(pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._remove_hooks()
        if not trainer.fast_dev_run:
            common.warn_if_warmup_never_ended(self.loss_fn)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.scaler.restore()
        self._remove_hooks()

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Raise InputError if a checkpoint to resume from does not contain the state of the method."""
        inside = any(module is self.loss_fn for module in pl_module.modules())
        if trainer.training and not inside and self.state_key not in checkpoint["callbacks"]:
            raise InputError(
                "the checkpoint was saved without SieveCallback: it does not contain the state of the method"
            )

    def state_dict(self) -> dict[str, Any]:
        return self.loss_fn.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.loss_fn.load_state_dict(state_dict)

    def _remove_hooks(self) -> None:
        for hook in self.hooks:
            hook.remove()
        self.hooks.clear()

    def _end_epoch(self, module: nn.Module) -> None:
        with _eval_mode(module):
            self.loss_fn.end_epoch(self.predict)


def _check_optimizers(method: Method, optimizers: Iterable[Optimizer]) -> None:
    """Raise InputError if the method's own parameters are not in separate groups of an SGD optimizer."""
    own = set(method.parameters())
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            inside = own.intersection(group["params"])
            if inside and not isinstance(optimizer, SGD):
                raise InputError(
                    "the method's own parameters need plain gradient descent: pass loss_fn.parameter_groups() "
                    f"to torch.optim.SGD, not to {type(optimizer).__name__}"
                )
            if inside == set(group["params"]):
                own -= inside
    if own:
        raise InputError(
            "no optimizer has the method's own parameters in separate groups: pass it loss_fn.parameter_groups() "
            "in addition to the parameters of the network"
        )


def _buffer_names(module: nn.Module, method: Method) -> list[str]:
    """Return the names that the method's buffers have in a module; none if it does not contain the method."""
    own = {id(buffer) for buffer in method.buffers()}
    return [name for name, buffer in module.named_buffers() if id(buffer) in own]


@contextmanager
def _eval_mode(module: nn.Module) -> Iterator[None]:
    """Set a module to eval mode and restore the mode of each submodule afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def _max_epochs(trainer: Trainer) -> float:
    """Return the largest number of epochs that max_epochs and max_steps allow; infinite if unknown."""
    limit = math.inf if trainer.max_epochs in (None, -1) else int(trainer.max_epochs)
    if trainer.max_steps == -1 or math.isinf(trainer.num_training_batches):
        return limit
    steps: int = math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
    return min(limit, math.ceil(int(trainer.max_steps) / max(1, steps)))


def _has_only_complete_batches(loader: Any) -> bool:
    """Return False if the last batch of a data loader may be smaller than the others."""
    if not isinstance(loader, DataLoader) or loader.batch_size is None or loader.drop_last:
        return True
    return isinstance(loader.dataset, Sized) and len(loader.dataset) % loader.batch_size == 0
