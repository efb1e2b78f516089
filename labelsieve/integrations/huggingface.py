"""SieveTrainer: a Hugging Face Trainer whose loss is a method."""

from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset, IterableDataset
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from labelsieve.core.method import Method
from labelsieve.errors import InputError
from labelsieve.integrations import common

INDEX = "labelsieve_index"  # the column with the positions of the samples
STATE_FILE = "labelsieve.pt"  # the state of the method in the folder of a checkpoint


class SieveTrainer(Trainer):  # type: ignore[misc]
    """A Trainer with a method as loss: `SieveTrainer(model=..., args=..., train_dataset=..., method=method)`."""

    def __init__(self, *args: Any, method: Method, **kwargs: Any) -> None:
        common.check_method(method)
        super().__init__(*args, **kwargs)
        _check_supported_method(method)
        _check_arguments(method, self)
        self.method = method
        self.label_names = self.args.label_names or ["labels"]
        self.model_accepts_loss_kwargs = False  # the loss is the mean of a batch, and Trainer averages over batches
        if method.needs_index:
            self.train_dataset: Any = _add_index(self.train_dataset, method)
        self.add_callback(_MethodCallback(method))

    def train(self, resume_from_checkpoint: str | Path | bool | None = None, trial: Any = None, **kwargs: Any) -> Any:
        """Train, or resume from a checkpoint of a SieveTrainer."""
        if trial is not None:
            raise InputError("the method would keep the state of earlier trials: make a SieveTrainer for each trial")
        if resume_from_checkpoint is True:
            resume_from_checkpoint = get_last_checkpoint(self.args.output_dir) or True
        if isinstance(resume_from_checkpoint, str | PathLike):
            resume_from_checkpoint = fspath(resume_from_checkpoint)
            self.method.load_state_dict(_read_state(Path(resume_from_checkpoint)))
        self.method.to(self.args.device).train()
        return super().train(resume_from_checkpoint, **kwargs)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the method's loss in training and plain cross-entropy in evaluation."""
        inputs = dict(inputs)
        labels, index = _pop_labels(inputs, self.label_names[0]), inputs.pop(INDEX, None)
        outputs = model(**inputs)
        logits = _logits_of(outputs)
        if not model.training:
            loss = F.cross_entropy(logits.float(), labels)
        elif self.method.needs_index and index is None:
            raise InputError(f"the data collator dropped the column {INDEX}, which the method needs")
        else:
            loss = self.method(logits, labels, index)
        return (loss, outputs) if return_outputs else loss

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model and, in a checkpoint of the Trainer, the state of the method."""
        super().save_model(output_dir, _internal_call)
        if _internal_call and output_dir is not None and self.args.should_save:
            torch.save(self.method.state_dict(), Path(output_dir) / STATE_FILE)

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        if INDEX not in self._signature_columns:
            self._signature_columns.append(INDEX)


class _MethodCallback(TrainerCallback):  # type: ignore[misc]
    """Starts and ends the epochs of a method, scales the learning rate and trains the method's own parameters."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self.next_epoch = 0
        self.scaler = common.LearningRateScaler(method)
        groups = method.parameter_groups()
        self.own_optimizer = torch.optim.SGD(groups, lr=0.0) if groups else None

    def on_train_begin(self, args: Any, state: Any, *others: Any, **named: Any) -> None:
        common.check_warmup(self.method, state.num_train_epochs)
        self.next_epoch = int(state.epoch or 0)

    def on_epoch_begin(self, *others: Any, **named: Any) -> None:
        self.method.start_epoch(self.next_epoch)
        self.next_epoch += 1

    def on_epoch_end(self, *others: Any, **named: Any) -> None:
        self.method.end_epoch()

    def on_train_end(self, *others: Any, **named: Any) -> None:
        common.warn_if_warmup_never_ended(self.method)

    def on_pre_optimizer_step(self, *others: Any, optimizer: Optimizer, **named: Any) -> None:
        self.scaler.apply(optimizer)

    def on_optimizer_step(self, *others: Any, **named: Any) -> None:
        self.scaler.restore()
        if self.own_optimizer is not None:
            self.own_optimizer.step()
            self.own_optimizer.zero_grad()  # Trainer resets only the gradients of the model


class _IndexedDataset(Dataset[dict[str, Any]]):
    """A dataset of dicts that adds the position of each sample under the key INDEX."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, position: int) -> dict[str, Any]:
        return {**self.samples[position], INDEX: position}

    def __getitems__(self, positions: list[int]) -> list[dict[str, Any]]:
        """Return a batch; datasets.Dataset reads it much faster at once than sample by sample."""
        if not hasattr(self.samples, "__getitems__"):
            return [self[position] for position in positions]
        samples = self.samples.__getitems__(positions)
        return [{**sample, INDEX: position} for sample, position in zip(samples, positions, strict=True)]


def _add_index(dataset: Any, method: Method) -> _IndexedDataset:
    """Return a training set with positions; raise InputError if it has none or the method expects another size."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise InputError("this method stores values per sample: it needs a train_dataset with a length and positions")
    for part in method.parts():
        if part.num_samples not in (0, len(dataset)):
            raise InputError(
                f"the method was made for {part.num_samples} samples, train_dataset has {len(dataset)}: "
                f"use Problem(num_samples={len(dataset)})"
            )
    return _IndexedDataset(dataset)


def _pop_labels(inputs: dict[str, Tensor], name: str) -> Tensor:
    """Remove the labels from the inputs and return them."""
    if name not in inputs:
        raise InputError(
            f"the inputs have no {name!r}, only {', '.join(sorted(inputs.keys() - {INDEX}))}: add integer labels under "
            "this name, or name another column with TrainingArguments(label_names=[...])"
        )
    return inputs.pop(name)


def _logits_of(outputs: Any) -> Tensor:
    """Return the logits of a model output."""
    if not isinstance(outputs, Mapping) or "logits" not in outputs:
        raise InputError("the model output has no `logits`: a method needs a classification model")
    logits: Tensor = outputs["logits"]
    return logits


def _read_state(folder: Path) -> dict[str, Any]:
    """Return the state of the method from the folder of a checkpoint."""
    if not (folder / STATE_FILE).is_file():
        raise InputError(
            f"{folder} has no {STATE_FILE}: it was not saved by a SieveTrainer, so the state of the method is missing"
        )
    state: dict[str, Any] = torch.load(folder / STATE_FILE, map_location="cpu", weights_only=True)
    return state


def _check_supported_method(method: Method) -> None:
    """Raise InputError if the method needs more than a Trainer provides."""
    common.check_rounds(method)
    if method.networks > 1:
        raise InputError(f"this method trains {method.networks} networks, but a Trainer has one; use another method")
    if method.regularizer is not None:
        raise InputError("this method changes the inputs, which may not be numbers here; use another method")
    if method.needs_predictions:
        raise InputError(
            "this method predicts the training set again, which SieveTrainer does not support; use another method"
        )


def _check_arguments(method: Method, trainer: Trainer) -> None:
    """Raise InputError for a task, training arguments, a loss or an optimizer that do not work with a method."""
    args, optimizer = trainer.args, trainer.optimizer
    task = getattr(getattr(trainer.model, "config", None), "problem_type", None)
    if task not in (None, "single_label_classification"):
        raise InputError(f"a method needs one class per sample, but the model's problem_type is {task}")
    if args.label_names is not None and len(args.label_names) != 1:
        raise InputError(f"a method needs one label per sample, but args.label_names is {args.label_names}")
    if args.label_smoothing_factor:
        raise InputError("the method is the loss: label_smoothing_factor must be 0")
    if args.auto_find_batch_size:
        raise InputError("the method would keep the state of failed attempts: auto_find_batch_size must be False")
    if args.fp16 and method.parameter_groups():
        raise InputError("the method's own parameters cannot use scaled gradients: use bf16 instead of fp16")
    common.check_drop_last(method, args.dataloader_drop_last)
    if trainer.compute_loss_func is not None:
        raise InputError("the method is the loss: remove compute_loss_func")
    groups = optimizer.param_groups if optimizer is not None else []
    if any(set(method.parameters()).intersection(group["params"]) for group in groups):
        raise InputError("remove method.parameter_groups() from the optimizer: SieveTrainer trains them itself")
