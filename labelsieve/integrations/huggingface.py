"""Hugging Face: a Trainer whose loss is a method."""

from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from labelsieve.core.method import Method
from labelsieve.errors import InputError
from labelsieve.integrations.common import (
    INDEX,
    ScaledRates,
    indexed,
    refuse_incomplete_batches,
    refuse_long_warmup,
    refuse_no_method,
    refuse_rounds,
    say_if_it_never_began,
)

FILE = "labelsieve.pt"  # the method's state in the folder of a checkpoint


class SieveTrainer(Trainer):  # type: ignore[misc]
    """A Trainer that learns by a method: `SieveTrainer(model=..., args=..., train_dataset=..., method=method)`."""

    def __init__(self, *args: Any, method: Method, **kwargs: Any) -> None:
        refuse_no_method(method)
        super().__init__(*args, **kwargs)
        refuse_other_methods(method)
        refuse_other_tasks(self.model)
        refuse_other_arguments(method, self.args)
        refuse_other_losses(method, self.compute_loss_func, self.optimizer)
        self.method = method
        self.label_names = [label_name(self.args.label_names)]
        self.model_accepts_loss_kwargs = False  # a loss is the mean of its batch, and Trainer averages over batches
        if method.needs_index:
            self.train_dataset: Any = indexed(self.train_dataset, method)
        self.add_callback(Epochs(method))

    def train(self, resume_from_checkpoint: str | Path | bool | None = None, trial: Any = None, **kwargs: Any) -> Any:
        """Train, or go on from a checkpoint of a SieveTrainer."""
        if trial is not None:
            raise InputError("the method would remember earlier trials: make a SieveTrainer for each of them")
        if resume_from_checkpoint is True:
            resume_from_checkpoint = get_last_checkpoint(self.args.output_dir) or True
        if isinstance(resume_from_checkpoint, str | PathLike):
            resume_from_checkpoint = fspath(resume_from_checkpoint)
            self.method.load_state_dict(saved_state(Path(resume_from_checkpoint)))
        self.method.to(self.args.device).train()
        return super().train(resume_from_checkpoint, **kwargs)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The method's loss while training, plain cross-entropy in evaluation."""
        inputs = dict(inputs)
        labels, index = labels_among(inputs, self.label_names[0]), inputs.pop(INDEX, None)
        outputs = model(**inputs)
        logits = logits_of(outputs)
        if not model.training:
            loss = F.cross_entropy(logits.float(), labels)
        elif self.method.needs_index and index is None:
            raise InputError(f"the data collator left the column {INDEX} out, which tells the method what it is shown")
        else:
            loss = self.method(logits, labels, index)
        return (loss, outputs) if return_outputs else loss

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """A checkpoint, which Trainer itself asks for, has the method's state too."""
        super().save_model(output_dir, _internal_call)
        if _internal_call and output_dir is not None and self.args.should_save:
            torch.save(self.method.state_dict(), Path(output_dir) / FILE)

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        if INDEX not in self._signature_columns:
            self._signature_columns.append(INDEX)


class Epochs(TrainerCallback):  # type: ignore[misc]
    """Tells a method of epochs, scales the learning rate, and learns the method's own parameters."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self.next = 0
        self.rates = ScaledRates(method)
        groups = method.parameter_groups()
        self.own_optimizer = torch.optim.SGD(groups, lr=0.0) if groups else None

    def on_train_begin(self, args: Any, state: Any, *others: Any, **named: Any) -> None:
        refuse_long_warmup(self.method, state.num_train_epochs)
        self.next = int(state.epoch or 0)

    def on_epoch_begin(self, *others: Any, **named: Any) -> None:
        self.method.start_epoch(self.next)
        self.next += 1

    def on_epoch_end(self, *others: Any, **named: Any) -> None:
        self.method.end_epoch()

    def on_train_end(self, *others: Any, **named: Any) -> None:
        say_if_it_never_began(self.method)

    def on_pre_optimizer_step(self, *others: Any, optimizer: Optimizer, **named: Any) -> None:
        self.rates.apply(optimizer)

    def on_optimizer_step(self, *others: Any, **named: Any) -> None:
        self.rates.put_back()
        if self.own_optimizer is not None:
            self.own_optimizer.step()
            self.own_optimizer.zero_grad()  # Trainer forgets the gradients of the model alone


def label_name(names: list[str] | None) -> str:
    """The name of the labels among the inputs."""
    if names is not None and len(names) != 1:
        raise InputError(f"a method learns from one label a sample, args.label_names are {names}")
    return names[0] if names else "labels"


def labels_among(inputs: dict[str, Any], name: str) -> Tensor:
    """The labels, taken out of the inputs."""
    if name not in inputs:
        raise InputError(
            f"the inputs have no {name!r}, only {', '.join(sorted(inputs.keys() - {INDEX}))}: give whole numbers under "
            "that name, or name another column with TrainingArguments(label_names=[...])"
        )
    labels: Tensor = inputs.pop(name)
    return labels


def logits_of(outputs: Any) -> Tensor:
    if not isinstance(outputs, Mapping) or "logits" not in outputs:
        raise InputError("the model gives no logits: a method is for models that classify, whose outputs have `logits`")
    logits: Tensor = outputs["logits"]
    return logits


def saved_state(folder: Path) -> dict[str, Any]:
    """The method's state in the folder of a checkpoint."""
    if not (folder / FILE).is_file():
        raise InputError(
            f"{folder} has no {FILE}: it was not saved by a SieveTrainer, so the method's state is missing"
        )
    state: dict[str, Any] = torch.load(folder / FILE, map_location="cpu", weights_only=True)
    return state


def refuse_other_methods(method: Method) -> None:
    """Refuse methods that need more than a Trainer has."""
    refuse_rounds(method)
    if method.networks > 1:
        raise InputError(f"this method trains {method.networks} networks at once, a Trainer one; take another method")
    if method.regularizer is not None:
        raise InputError("this method changes the inputs, which a Trainer's need not be numbers; take another method")
    if method.needs_predictions:
        raise InputError(
            "this method predicts the training set again, which SieveTrainer does not; take another method"
        )


def refuse_other_tasks(model: Any) -> None:
    """Refuse models that do not choose one class."""
    task = getattr(getattr(model, "config", None), "problem_type", None)
    if task not in (None, "single_label_classification"):
        raise InputError(f"a method is for one class a sample: the model's problem_type is {task}")


def refuse_other_arguments(method: Method, args: Any) -> None:
    """Refuse training arguments that would silently do something else."""
    if args.label_smoothing_factor:
        raise InputError("the method is the loss: label_smoothing_factor must be 0")
    if args.auto_find_batch_size:
        raise InputError("the method would remember attempts with larger batches: auto_find_batch_size must be False")
    if args.fp16 and method.parameter_groups():
        raise InputError("the method's own parameters are not learnt from scaled gradients: use bf16 instead of fp16")
    refuse_incomplete_batches(method, args.dataloader_drop_last)


def refuse_other_losses(method: Method, loss: object, optimizer: Optimizer | None) -> None:
    """Refuse a second loss, and a second optimizer of the method's own parameters."""
    if loss is not None:
        raise InputError("the method is the loss: leave compute_loss_func out")
    groups = optimizer.param_groups if optimizer is not None else []
    if any(set(method.parameters()).intersection(group["params"]) for group in groups):
        raise InputError("leave method.parameter_groups() out of the optimizer: SieveTrainer learns them itself")
