"""SieveTrainer: a Hugging Face Trainer with a SieveLoss."""

from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset, IterableDataset

from labelsieve.core.method import Method
from labelsieve.errors import InputError, missing_extra
from labelsieve.integrations import common
from labelsieve.loss import SieveLoss, check_warmup

try:
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_utils import get_last_checkpoint
except ModuleNotFoundError as error:
    raise missing_extra("huggingface", error) from None

INDEX = "labelsieve_index"  # the column with the positions of the samples
STATE_FILE = "labelsieve.pt"  # the state of the method in the folder of a checkpoint


class SieveTrainer(Trainer):  # type: ignore[misc]
    """A Trainer with a SieveLoss: `SieveTrainer(model=..., args=..., train_dataset=..., loss_fn=loss_fn)`.

    The arguments other than `loss_fn` are those of `transformers.Trainer`. The kept share is logged with the loss.

    Args:
        loss_fn: a `labelsieve.SieveLoss`.

    Examples:
        >>> from transformers import BertConfig, BertForSequenceClassification, TrainingArguments
        >>> from labelsieve.integrations.huggingface import SieveTrainer
        >>> config = BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, num_labels=4)
        >>> data = [{"input_ids": torch.tensor([1, 2, 3]), "labels": 0}] * 64
        >>> loss_fn = labelsieve.SieveLoss("mentornet-prop", num_classes=4, noise_rate=0.2, warmup=1)
        >>> trainer = SieveTrainer(
        ...     model=BertForSequenceClassification(config),
        ...     args=TrainingArguments("out", num_train_epochs=3, per_device_train_batch_size=32, report_to=[]),
        ...     train_dataset=data,
        ...     loss_fn=loss_fn,
        ... )
    """

    def __init__(self, *args: Any, loss_fn: SieveLoss, **kwargs: Any) -> None:
        common.check_loss(loss_fn)
        super().__init__(*args, **kwargs)
        _check_supported_method(loss_fn)
        _check_arguments(loss_fn, self)
        self.loss_fn = loss_fn
        self.label_names = self.args.label_names or ["labels"]
        self.model_accepts_loss_kwargs = False  # the loss is the mean of a batch, and Trainer averages over batches
        if loss_fn.needs_index:
            self.train_dataset: Any = _add_index(self.train_dataset, loss_fn)
        self.add_callback(_EpochCallback(loss_fn))

    def train(self, resume_from_checkpoint: str | Path | bool | None = None, trial: Any = None, **kwargs: Any) -> Any:
        """Train, or resume from a checkpoint of a SieveTrainer."""
        if trial is not None:
            raise InputError("the loss would keep the state of earlier trials: make a SieveTrainer for each trial")
        if resume_from_checkpoint is True:
            resume_from_checkpoint = get_last_checkpoint(self.args.output_dir) or True
        if isinstance(resume_from_checkpoint, str | PathLike):
            resume_from_checkpoint = fspath(resume_from_checkpoint)
            self.loss_fn.load_state_dict(_read_state(Path(resume_from_checkpoint)))
        self.loss_fn.to(self.args.device).train()
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
        elif self.loss_fn.needs_index and index is None:
            raise InputError(f"the data collator dropped the column {INDEX}, which the method needs")
        else:
            loss = self.loss_fn(logits, labels, index)
        return (loss, outputs) if return_outputs else loss

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model and, in a checkpoint of the Trainer, the state of the method."""
        super().save_model(output_dir, _internal_call)
        if _internal_call and output_dir is not None and self.args.should_save:
            torch.save(self.loss_fn.state_dict(), Path(output_dir) / STATE_FILE)

    def log(self, logs: dict[str, float], *others: Any, **named: Any) -> None:
        """Log values, and the kept share together with the training loss."""
        super().log({**logs, **(common.kept_share(self.loss_fn) if "loss" in logs else {})}, *others, **named)

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        if INDEX not in self._signature_columns:
            self._signature_columns.append(INDEX)


class _EpochCallback(TrainerCallback):  # type: ignore[misc]
    """Starts and ends the epochs of a method, scales the learning rate and trains the method's own parameters."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self.next_epoch = 0
        self.scaler = common.LearningRateScaler(method)
        groups = method.parameter_groups()
        self.own_optimizer = torch.optim.SGD(groups, lr=0.0) if groups else None

    def on_train_begin(self, args: Any, state: Any, *others: Any, **named: Any) -> None:
        check_warmup(self.method, state.num_train_epochs)
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
                f"the loss was made for {part.num_samples} samples, train_dataset has {len(dataset)}: "
                f"pass num_samples={len(dataset)}"
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
    return outputs["logits"]


def _read_state(folder: Path) -> dict[str, Any]:
    """Return the state of the method from the folder of a checkpoint."""
    if not (folder / STATE_FILE).is_file():
        raise InputError(
            f"{folder} has no {STATE_FILE}: it was not saved by a SieveTrainer, so the state of the method is missing"
        )
    return torch.load(folder / STATE_FILE, map_location="cpu", weights_only=True)


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
        raise InputError("loss_fn is the loss: label_smoothing_factor must be 0")
    if args.auto_find_batch_size:
        raise InputError("the loss would keep the state of failed attempts: auto_find_batch_size must be False")
    if args.fp16 and method.parameter_groups():
        raise InputError("the method's own parameters cannot use scaled gradients: use bf16 instead of fp16")
    common.check_drop_last(method, args.dataloader_drop_last)
    if trainer.compute_loss_func is not None:
        raise InputError("loss_fn is the loss: remove compute_loss_func")
    groups = optimizer.param_groups if optimizer is not None else []
    if any(set(method.parameters()).intersection(group["params"]) for group in groups):
        raise InputError("remove loss_fn.parameter_groups() from the optimizer: SieveTrainer trains them itself")
