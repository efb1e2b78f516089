"""SieveTrainer: training, resuming, positions, learning rates and errors."""

import copy
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import Dataset, IterableDataset

from labelsieve import SieveLoss
from tests.together import together

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")
adapter = pytest.importorskip("labelsieve.integrations.huggingface")
INDEX = "labelsieve_index"

PAGE = (Path(__file__).parents[2] / "docs" / "huggingface.md").read_text(encoding="utf-8")
COUNT, BATCH, LENGTH = 384, 32, 8
STEPS = COUNT // BATCH


def texts(count=COUNT, seed=0, rate=0.4):
    """Return texts of eight tokens, most of them of their class, and labels, some changed to the next class."""
    random = torch.Generator().manual_seed(seed)
    true = torch.arange(count) % 4
    any_token = torch.randint(4, 100, (count, LENGTH), generator=random)
    own_token = 4 + 20 * true[:, None] + torch.randint(20, (count, LENGTH), generator=random)
    tokens = torch.where(torch.rand(count, LENGTH, generator=random) < 0.8, own_token, any_token)
    wrong = torch.rand(count, generator=random) < rate
    return tokens, torch.where(wrong, (true + 1) % 4, true)


class Texts(Dataset):
    """A dataset of dicts."""

    def __init__(self, tokens, labels, name="labels"):
        self.tokens, self.labels, self.name = tokens, labels, name

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, position):
        return {"input_ids": self.tokens[position], self.name: int(self.labels[position]), "note": "a text"}


class Stream(IterableDataset):
    def __iter__(self):
        yield from (Texts(*texts())[i] for i in range(COUNT))


def network(dropout=0.0):
    transformers.set_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    drop = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    config = transformers.BertConfig(vocab_size=100, max_position_embeddings=LENGTH, num_labels=4, **sizes, **drop)
    return transformers.BertForSequenceClassification(config)


def method_of(name="mentornet-prop", warmup=1, **options):
    return SieveLoss(name, num_classes=4, noise_rate=0.4, warmup=warmup, num_samples=COUNT, **options)


def arguments(folder, epochs=3, **others):
    quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "logging_strategy": "no", "save_strategy": "no"}
    given = {"per_device_train_batch_size": BATCH, "learning_rate": 2e-3, "num_train_epochs": epochs, **quiet, **others}
    return transformers.TrainingArguments(output_dir=str(folder), **given)


def trainer_of(folder, method=None, model=None, train_dataset=None, epochs=3, kind=None, **others):
    named = {key: others.pop(key) for key in ("compute_loss_func", "optimizers", "data_collator") if key in others}
    return (kind or adapter.SieveTrainer)(
        model=model or network(),
        args=arguments(folder, epochs, **others),
        train_dataset=train_dataset or Texts(*texts()),
        eval_dataset=Texts(*texts(100, seed=9, rate=0)),
        loss_fn=method or method_of(),
        **named,
    )


def error(trainer):
    result = trainer.predict(trainer.eval_dataset)
    return float((result.predictions.argmax(-1) != result.label_ids).mean())


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def copied(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def test_method_is_better_than_plain_training(tmp_path):
    errors = {}
    for name in ("default", "mentornet-prop"):
        method, data = method_of(name, warmup=3), Texts(*texts(800))
        trainer = trainer_of(tmp_path, method, train_dataset=data, epochs=15, learning_rate=3e-3)
        trainer.train()
        errors[name] = error(trainer)
    assert errors["mentornet-prop"] < errors["default"] - 0.12


class Recorded(adapter.SieveTrainer):
    """Keeps the training batches."""

    def training_step(self, model, inputs, *others):
        self.batches = [*getattr(self, "batches", []), {k: v.clone() for k, v in inputs.items()}]
        return super().training_step(model, inputs, *others)


@pytest.mark.parametrize("accumulated", [1, 5])
def test_accumulated_gradients_equal_a_plain_loop(accumulated, tmp_path):
    """With 12 batches per epoch, the last step of an epoch has fewer than the others."""
    method, model = method_of(), network()
    ours = copy.deepcopy(model)
    plain = {"optim": "sgd", "learning_rate": 0.1, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    logged = {"logging_strategy": "steps", "logging_steps": 1}
    trainer = trainer_of(
        tmp_path, method, model, kind=Recorded, epochs=2, gradient_accumulation_steps=accumulated, **plain, **logged
    )
    trainer.train()
    reference, losses = method_of(), []
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
    for epoch in range(2):
        reference.start_epoch(epoch)
        batches = trainer.batches[epoch * STEPS : (epoch + 1) * STEPS]
        for start in range(0, STEPS, accumulated):
            some = batches[start : start + accumulated]
            optimizer.zero_grad()
            parts = [reference(ours(b["input_ids"]).logits, b["labels"]) / len(some) for b in some]
            for part in parts:
                part.backward()
            optimizer.step()
            losses.append(sum(part.item() for part in parts))
    reference.end_epoch()
    assert [entry["loss"] for entry in trainer.state.log_history if "loss" in entry] == pytest.approx(losses, abs=1e-4)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, ours.state_dict()[name])
    assert same(method.state_dict(), reference.state_dict())


CASES = [("mentornet-prop", {}), ("selfie", {"rounds": 1}), ("sop", {}), ("cores", {})]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_resumed_training_is_bit_identical(name, options, tmp_path):
    def trained(folder, resume=None, **others):
        method = method_of(name, **options)
        trainer = trainer_of(tmp_path / folder, method, network(0.1), seed=3, **others)
        trainer.train(resume_from_checkpoint=resume)
        return trainer.model.state_dict(), method.state_dict()

    weights, memory = trained("whole")
    trained("steps", save_strategy="steps", save_steps=6)
    trained("epochs", save_strategy="epoch")
    places = [f"steps/checkpoint-{6 * k}" for k in (1, 2, 3)] + [f"epochs/checkpoint-{STEPS}"]
    for place in places:  # within the first epoch, at its end, within the second
        resumed_weights, resumed_memory = trained("resumed", resume=tmp_path / place)
        assert same(weights, resumed_weights) and same(memory, resumed_memory), place
    for resume in (True, str(tmp_path / places[0])):
        resumed_weights, _ = trained("epochs", resume=resume)
        assert same(weights, resumed_weights)


def test_checkpoint_without_the_method_is_rejected(tmp_path):
    trainer = trainer_of(tmp_path, save_strategy="epoch", epochs=2)
    trainer.train()
    last = tmp_path / f"checkpoint-{2 * STEPS}"
    (last / "labelsieve.pt").unlink()
    message = f"{last} has no labelsieve.pt: it was not saved by a SieveTrainer, so the state of the method is missing"
    with pytest.raises(ValueError, match=re.escape(message)):
        trainer_of(tmp_path, epochs=2).train(resume_from_checkpoint=True)
    with pytest.raises(ValueError, match="No valid checkpoint found in output directory"):
        trainer_of(tmp_path / "empty", epochs=2).train(resume_from_checkpoint=True)


UNSUPPORTED = [
    (
        {"name": "selfie"},
        {},
        "this method trains the network 3 times from the start: make it with rounds=1, or use `labelsieve train`",
    ),
    ({"name": "co-teaching"}, {}, "this method trains 2 networks, but a Trainer has one; use another method"),
    ({"name": "vat"}, {}, "this method changes the inputs, which may not be numbers here; use another method"),
    (
        {"name": "lccn"},
        {},
        "this method predicts the training set again, which SieveTrainer does not support; use another method",
    ),
    (
        {"name": "dmi"},
        {},
        "this method needs complete batches: the data loader must drop an incomplete last batch "
        "(drop_last=True; dataloader_drop_last=True in TrainingArguments)",
    ),
    ({}, {"label_smoothing_factor": 0.1}, "loss_fn is the loss: label_smoothing_factor must be 0"),
    (
        {},
        {"auto_find_batch_size": True},
        "the loss would keep the state of failed attempts: auto_find_batch_size must be False",
    ),
    (
        {},
        {"label_names": ["start", "end"]},
        "a method needs one label per sample, but args.label_names is ['start', 'end']",
    ),
    (
        {},
        {"compute_loss_func": F.cross_entropy},
        "loss_fn is the loss: remove compute_loss_func",
    ),
    (
        {"name": "sop"},
        {"train_dataset": Texts(*texts(40))},
        "the loss was made for 384 samples, train_dataset has 40: pass num_samples=40",
    ),
    (
        {"name": "sop"},
        {"train_dataset": Stream(), "max_steps": 3},
        "this method stores values per sample: it needs a train_dataset with a length and positions",
    ),
]


@pytest.mark.parametrize(("of_method", "settings", "message"), UNSUPPORTED)
def test_unsupported_settings_are_rejected(of_method, settings, message, tmp_path):
    with pytest.raises(ValueError, match=re.escape(message)):
        trainer_of(tmp_path, method_of(**of_method), **settings)


@pytest.mark.parametrize("limit", [{"epochs": 2}, {"max_steps": 2 * STEPS}])
def test_warm_up_as_long_as_the_training_is_rejected(limit, tmp_path):
    message = (
        "the warm-up of 2 epochs is not shorter than the training of 2, so no sample would be selected or corrected; "
        "train longer, or pass a smaller warmup"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        trainer_of(tmp_path, method_of(warmup=2), **limit).train()


def test_small_batches_and_a_training_that_ends_in_the_warm_up_cause_warnings(tmp_path):
    with pytest.warns(UserWarning, match="batch size 2 is too small for this noise rate"):
        trainer_of(tmp_path, method_of(warmup=0), per_device_train_batch_size=2, max_steps=4).train()
    with pytest.warns(UserWarning, match="the training ended during the warm-up, in epoch 0 of 1"):
        trainer_of(tmp_path, train_dataset=Stream(), max_steps=5).train()  # the length of its epochs is unknown


def test_second_training_with_one_method_causes_a_warning(tmp_path):
    trainer = trainer_of(tmp_path, method_of("sop"))
    trainer.train()
    with pytest.warns(UserWarning, match="epoch 0 after epoch 2: a loss stores the state of one training"):
        trainer.train()
    assert trainer.loss_fn.current_epoch == 2


def test_other_tasks_and_inputs_are_rejected(tmp_path):
    model = network()
    model.config.problem_type = "multi_label_classification"
    with pytest.raises(ValueError, match="one class per sample, but the model's problem_type is multi_label"):
        trainer_of(tmp_path, model=model)
    with pytest.raises(ValueError, match=r"loss_fn must be a labelsieve.SieveLoss\(.*\), got str"):
        trainer_of(tmp_path, method="mentornet-prop")

    def without_labels(some):
        return {"input_ids": torch.stack([each["input_ids"] for each in some])}

    with pytest.raises(ValueError, match="the inputs have no 'labels', only input_ids: add integer labels under this"):
        trainer_of(tmp_path, data_collator=without_labels).train()


def test_optimizer_trial_and_collator_that_do_not_fit_are_rejected(tmp_path):
    method = method_of("sop")
    optimizer = torch.optim.SGD(method.parameter_groups())
    with pytest.raises(ValueError, match=re.escape("remove loss_fn.parameter_groups() from the optimizer")):
        trainer_of(tmp_path, method, optimizers=(optimizer, None))
    with pytest.raises(ValueError, match="the loss would keep the state of earlier trials"):
        trainer_of(tmp_path).train(trial={"learning_rate": 0.1})

    def only_tokens(some):
        return {name: torch.stack([torch.as_tensor(each[name]) for each in some]) for name in ("input_ids", "labels")}

    with pytest.raises(ValueError, match="the data collator dropped the column labelsieve_index"):
        trainer_of(tmp_path, method_of("elr"), data_collator=only_tokens).train()


def test_fp16_is_rejected_for_methods_with_parameters(tmp_path):
    args = arguments(tmp_path)
    args.fp16 = True  # set here, since TrainingArguments rejects it without a GPU
    trainer = SimpleNamespace(args=args, model=None, optimizer=None, compute_loss_func=None)
    message = "the method's own parameters cannot use scaled gradients: use bf16 instead of fp16"
    with pytest.raises(ValueError, match=message):
        adapter._check_arguments(method_of("sop"), trainer)
    adapter._check_arguments(method_of(), trainer)


class Bare(torch.nn.Module):
    def forward(self, input_ids, labels=None):
        return (torch.zeros(len(input_ids), 4),)


def test_model_without_logits_is_rejected(tmp_path):
    with pytest.raises(ValueError, match="the model output has no `logits`: a method needs a classification model"):
        trainer_of(tmp_path, model=Bare()).train()


def test_own_parameters_are_trained_by_plain_gradient_descent(tmp_path):
    """The network uses AdamW; no gradient remains for the next step."""
    method = method_of("sop")
    before = copied(method)
    trainer_of(tmp_path, method, epochs=6).train()
    assert method.loss.v.abs().max() > 10 * before["loss.v"].abs().max()
    assert method.loss.u.grad is None


def test_evaluation_is_plain_cross_entropy_and_does_not_change_the_method(tmp_path):
    method = method_of()
    trainer = trainer_of(tmp_path, method, per_device_eval_batch_size=100)
    before_any_epoch = trainer.evaluate()["eval_loss"]
    assert before_any_epoch > 1
    trainer.train()
    memory = copied(method)
    measured = trainer.evaluate()["eval_loss"]
    tokens, labels = texts(100, seed=9, rate=0)
    with torch.no_grad():
        wanted = F.cross_entropy(trainer.model.eval()(tokens).logits, labels)
    assert measured == pytest.approx(wanted.item(), rel=1e-5)
    assert same(memory, method.state_dict())


def test_evaluation_during_training_changes_nothing(tmp_path):
    methods = method_of(), method_of()
    models = network(), network()
    for method, model, strategy in zip(methods, models, ({}, {"eval_strategy": "steps", "eval_steps": 5}), strict=True):
        trainer_of(tmp_path, method, model, **strategy).train()
    assert same(methods[0].state_dict(), methods[1].state_dict())
    assert same(models[0].state_dict(), models[1].state_dict())


class Positions(adapter.SieveTrainer):
    """Compares the batches with the samples at their positions."""

    def compute_loss(self, model, inputs, *others, **named):
        if model.training:
            index = inputs[INDEX]
            assert torch.equal(inputs["input_ids"], texts()[0][index]) and torch.equal(
                inputs["labels"], texts()[1][index]
            )
            self.seen = [*getattr(self, "seen", []), *index.tolist()]
        return super().compute_loss(model, inputs, *others, **named)


def as_table(name="labels"):
    datasets = pytest.importorskip("datasets")
    tokens, labels = texts()
    return datasets.Dataset.from_dict({"input_ids": tokens.tolist(), name: labels.tolist(), "note": ["a"] * COUNT})


@pytest.mark.parametrize("kind", ["torch", "datasets", "datasets, shuffled"])
def test_positions_identify_the_samples(kind, tmp_path):
    dataset = Texts(*texts()) if kind == "torch" else as_table("label")
    if "shuffled" in kind:
        back = torch.randperm(COUNT).argsort()
        dataset = dataset.select(back.argsort().tolist()).select(back.tolist())
    trainer = trainer_of(tmp_path, method_of("selfie", rounds=1), train_dataset=dataset, kind=Positions, epochs=2)
    trainer.train()
    assert sorted(trainer.seen) == sorted([*range(COUNT), *range(COUNT)])
    assert (trainer.loss_fn.relabel.history != -1).all()
    trainer.evaluate(as_table("label") if "datasets" in kind else None)


def test_methods_without_an_index_accept_a_stream(tmp_path):
    trainer = trainer_of(tmp_path, train_dataset=Stream(), max_steps=2 * STEPS)
    trainer.train()
    assert trainer.loss_fn.weigh[0].kept_share == pytest.approx(0.6)


def test_label_names_selects_the_labels(tmp_path):
    trainer = trainer_of(
        tmp_path, train_dataset=Texts(*texts(), "target"), label_names=["target"], remove_unused_columns=True
    )
    trainer.train()
    trainer.eval_dataset = Texts(*texts(100, seed=9, rate=0), "target")
    assert trainer.evaluate()["eval_loss"] > 0


def test_kept_share_is_logged_with_the_loss(tmp_path):
    for name, wanted in (("mentornet-prop", [1.0, 0.6, 0.6]), ("default", [])):
        trainer = trainer_of(tmp_path, method_of(name, warmup=1), logging_strategy="epoch", eval_strategy="epoch")
        trainer.train()
        shares = [row["labelsieve/kept_share"] for row in trainer.state.log_history if "labelsieve/kept_share" in row]
        assert shares == pytest.approx(wanted)


class Rates(transformers.TrainerCallback):
    def __init__(self):
        self.used, self.left = [], []

    def on_pre_optimizer_step(self, *others, optimizer, **named):
        self.used.append(optimizer.param_groups[0]["lr"])

    def on_step_end(self, *others, optimizer, **named):
        self.left.append(optimizer.param_groups[0]["lr"])


def test_learning_rate_is_scaled_without_affecting_the_scheduler(tmp_path):
    trainer = trainer_of(
        tmp_path, method_of("dmi", warmup=1, lr_scale=0.01), dataloader_drop_last=True, learning_rate=0.36
    )
    trainer.add_callback(rates := Rates())
    trainer.train()
    falling = [0.36 * (1 - step / (3 * STEPS)) for step in range(3 * STEPS + 1)]
    assert rates.left == pytest.approx(falling[1:])
    assert rates.used[:STEPS] == pytest.approx(falling[:STEPS])
    assert rates.used[STEPS:] == pytest.approx([0.01 * rate for rate in falling[STEPS:-1]])


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator is found")
def test_documentation_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    space = {}
    exec(code, space)
    assert space["loss_fn"].weigh[0].kept_share == pytest.approx(0.8)


def in_two_processes(folder, name):
    """Train in one of two processes, save after each epoch, and resume from the first epoch."""
    rank = str(torch.distributed.get_rank())
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    os.environ["OMP_NUM_THREADS"] = "1"
    for kind in (accelerate.state.AcceleratorState, accelerate.state.PartialState, accelerate.state.GradientState):
        kind._reset_state()
    whole = unions(folder, name, BATCH // 2, save_strategy="epoch")
    return whole, unions(folder, name, BATCH // 2, resume=str(folder / f"checkpoint-{STEPS}"))


def unions(folder, name, size, resume=None, **others):
    """Return the states of model and method after a training with batches of this size."""
    plain = {"optim": "sgd", "learning_rate": 0.1, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    backend = {"ddp_backend": "gloo"} if size < BATCH else {}
    trainer = trainer_of(
        folder, method_of(name), epochs=2, per_device_train_batch_size=size, **plain, **backend, **others
    )
    trainer.train(resume_from_checkpoint=resume)
    return copied(trainer.model), copied(trainer.loss_fn)


@pytest.mark.parametrize("name", ["mentornet-prop", "sop"])
def test_two_processes_equal_one_with_the_union_of_their_batches(name, tmp_path):
    alone = unions(tmp_path / "one", name, BATCH)
    two = together(2, tmp_path, in_two_processes, tmp_path / "two", name)
    for which, state in enumerate(alone):
        for key, value in state.items():
            (whole, resumed), (other, _) = two
            scale = 2**36 if key.endswith(("sums", "columns")) else 1
            assert torch.allclose(value.double(), whole[which][key].double(), atol=1e-4 * scale), key
            assert torch.equal(whole[which][key], other[which][key]), key
            assert torch.equal(whole[which][key], resumed[which][key]), key
