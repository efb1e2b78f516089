"""SieveCallback: training, resuming, learning rates, distributed training and errors."""

import logging
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from labelsieve import SieveLoss

lightning = pytest.importorskip("lightning.pytorch")
Callback, LightningModule, Trainer = lightning.Callback, lightning.LightningModule, lightning.Trainer
ModelCheckpoint = lightning.callbacks.ModelCheckpoint
SieveCallback = pytest.importorskip("labelsieve.integrations.lightning").SieveCallback

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{message}")
    for message in (
        ".*does not have many workers",
        ".*LeafSpec",  # torch 2.13 of Lightning's own code
        "Be aware that when using `ckpt_path`, callbacks used",
    )
]
PAGE = (Path(__file__).parents[2] / "docs" / "lightning.md").read_text(encoding="utf-8")
CENTRES = 1.5 * torch.randn(4, 16, generator=torch.Generator().manual_seed(0))
COUNT, BATCH = 384, 32
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def clouds(count=COUNT, seed=0, rate=0.4):
    """Return samples of four clouds, their observed labels (some changed to the next class) and their true labels."""
    random = torch.Generator().manual_seed(seed)
    true = torch.arange(count) % 4
    x = CENTRES[true] + torch.randn(count, 16, generator=random)
    wrong = torch.rand(count, generator=random) < rate
    return x, torch.where(wrong, (true + 1) % 4, true), true


class Batches:
    """Batches in another order in each epoch, which can be resumed within an epoch."""

    def __init__(self, *tensors):
        self.tensors, self.epoch, self.place = tensors, 0, 0
        self.sampler = self  # Lightning calls its set_epoch

    def set_epoch(self, epoch):
        if epoch != self.epoch:
            self.epoch, self.place = epoch, 0

    def __len__(self):
        return len(self.tensors[0]) // BATCH

    def __iter__(self):
        order = torch.randperm(len(self.tensors[0]), generator=torch.Generator().manual_seed(self.epoch))
        while self.place < len(self):
            chosen = order[self.place * BATCH : (self.place + 1) * BATCH]
            self.place += 1
            yield [each[chosen] for each in self.tensors]

    def state_dict(self):
        return {"epoch": self.epoch, "place": self.place}

    def load_state_dict(self, state):
        self.epoch, self.place = state["epoch"], state["place"]


class Classifier(LightningModule):
    """As many small networks as the method needs; the method is a submodule or not."""

    def __init__(self, method, inside=True, lr=0.02, width=64):
        super().__init__()
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 4)) for _ in range(method.networks)
        )
        self.held = method if inside else [method]
        self.lr = lr

    @property
    def method(self):
        return self.held if isinstance(self.held, nn.Module) else self.held[0]

    def forward(self, x):
        logits = torch.stack([net(x) for net in self.nets])
        return logits[0] if len(self.nets) == 1 else logits

    def training_step(self, batch, number):
        return self.method(self(batch[0]), batch[1], batch[2])

    def validation_step(self, batch, number):
        self.log("error", (self.nets[0](batch[0]).argmax(-1) != batch[1]).float().mean())

    def configure_optimizers(self):
        groups = [{"params": self.nets.parameters()}, *self.method.parameter_groups()]
        return torch.optim.SGD(groups, lr=self.lr, momentum=0.9)


def method_of(name="mentornet-prop", warmup=2, **options):
    return SieveLoss(name, num_classes=4, noise_rate=0.4, warmup=warmup, num_samples=COUNT, **options)


def trainer_of(method, epochs=4, callbacks=(), predict=None, **settings):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    settings = {"enable_checkpointing": False, "max_epochs": epochs, **quiet, **settings}
    return Trainer(callbacks=[SieveCallback(method, predict), *callbacks], **settings)


def data(seed=0):
    x, y, _ = clouds(seed=seed)
    return Batches(x, y, torch.arange(COUNT))


def held_out():
    x, _, true = clouds(64, seed=9)
    return DataLoader(TensorDataset(x, true), 64)


def trained(name="mentornet-prop", epochs=4, warmup=2, inside=True, resume=None, options=(), **settings):
    """Return a trained module and its trainer."""
    lightning.seed_everything(0, verbose=False)
    method = method_of(name, warmup, **dict(options))
    module = Classifier(method, inside)
    trainer = trainer_of(method, epochs, **settings)
    trainer.fit(module, data(), held_out(), ckpt_path=resume)
    return module, trainer


def state(module):
    """Return the state of networks and method, also if the method is not a submodule."""
    return {**module.nets.state_dict(), **{f"method.{k}": v for k, v in module.method.state_dict().items()}}


def same(one, other):
    one, other = state(one), state(other)
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def error(module):
    x, _, true = clouds(1000, seed=9)
    with torch.no_grad():
        return (module.nets[0](x).argmax(-1) != true).float().mean().item()


class SaveAt(Callback):
    """Saves a checkpoint after one step."""

    def __init__(self, path, step):
        self.path, self.step = path, step

    def on_train_batch_end(self, trainer, *others):
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


def test_method_is_better_than_plain_training():
    plain, robust = (error(trained(name, 20, 5)[0]) for name in ("default", "mentornet-prop"))
    assert robust < plain - 0.15


CASES = [("mentornet-prop", ()), ("selfie", {"rounds": 1}), ("sop", ()), ("cores", ()), ("co-teaching", {"ramp": 2})]


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize(("name", "options"), CASES)
def test_resumed_training_is_bit_identical(name, options, inside, tmp_path):
    whole, _ = trained(name, inside=inside, options=options)
    saved = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
    after = ModelCheckpoint(tmp_path, "seen-{epoch}", monitor="error", save_top_k=-1)  # before the epoch ends
    within = [SaveAt(tmp_path / f"step={step}.ckpt", step) for step in (16, 41)]
    settings = {"enable_checkpointing": True, "callbacks": [saved, after, *within]}
    trained(name, inside=inside, options=options, **settings)
    names = ("epoch=0", "epoch=2", "seen-epoch=1", "step=16", "step=41")
    for checkpoint in names:
        resumed, trainer = trained(name, inside=inside, options=options, resume=tmp_path / f"{checkpoint}.ckpt")
        assert trainer.global_step == 4 * COUNT // BATCH
        assert same(whole, resumed), checkpoint


def test_method_inside_the_module_is_loaded_with_it(tmp_path):
    module, trainer = trained()
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    loaded = Classifier.load_from_checkpoint(tmp_path / "last.ckpt", method=method_of())
    assert same(module, loaded)


def test_checkpoint_without_the_method_is_rejected(tmp_path):
    module = Classifier(method_of(), inside=False)
    alone = trainer_of(module.method, 1)
    alone.callbacks.pop(0)
    module.method.start_epoch(0)
    alone.fit(module, data(), held_out())
    alone.save_checkpoint(tmp_path / "alone.ckpt")
    with pytest.raises(
        ValueError,
        match="the checkpoint was saved without SieveCallback: it does not contain the state of the method",
    ):
        trained(inside=False, resume=tmp_path / "alone.ckpt")


@pytest.mark.parametrize(
    ("name", "warmup", "options", "message"),
    [
        (
            "mentornet-prop",
            4,
            {},
            "the warm-up of 4 epochs is not shorter than the training of 4, so no sample would be selected or "
            "corrected; train longer, or pass a smaller warmup",
        ),
        ("f-correction", 25, {}, "the warm-up of 25 epochs is not shorter than the training of 4"),
        ("cores", 4, {}, "the warm-up of 4 epochs is not shorter than the training of 4"),
        (
            "selfie",
            2,
            {},
            "this method trains the network 3 times from the start: make it with rounds=1, or use `labelsieve train`",
        ),
        (
            "lccn",
            2,
            {},
            "this method predicts the training set again: pass SieveCallback(loss_fn, predict=...), a function "
            "that yields batches of probabilities, labels and index",
        ),
    ],
)
def test_unsupported_methods_are_rejected(name, warmup, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        trained(name, warmup=warmup, options=options)


def test_max_steps_limits_the_epochs():
    message = "the warm-up of 2 epochs is not shorter than the training of 2"
    with pytest.raises(ValueError, match=message):
        trained(epochs=-1, max_steps=2 * COUNT // BATCH)
    with pytest.raises(ValueError, match=message):
        trained(epochs=-1, max_steps=COUNT // BATCH, accumulate_grad_batches=2)
    assert trained(epochs=None, max_steps=2 * COUNT // BATCH + 1)[1].global_step == 2 * COUNT // BATCH + 1
    assert trained(warmup=25, fast_dev_run=True)[1].global_step == 1  # a trial run


class Stop(Callback):
    def on_train_epoch_end(self, trainer, module):
        trainer.should_stop = trainer.current_epoch == 2


def test_training_of_unknown_length_warns_after_a_too_long_warm_up():
    assert trained(warmup=2, epochs=-1, callbacks=[Stop()])[1].current_epoch == 3
    with pytest.warns(UserWarning, match="the training ended during the warm-up, in epoch 2 of 25"):
        trained(warmup=25, epochs=-1, callbacks=[Stop()])


class WithoutGroups(Classifier):
    def configure_optimizers(self):
        return torch.optim.SGD(self.nets.parameters(), lr=0.1)


class Mixed(Classifier):
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Adaptive(Classifier):
    def configure_optimizers(self):
        return torch.optim.AdamW([{"params": self.nets.parameters()}, *self.method.parameter_groups()], lr=0.1)


@pytest.mark.parametrize("kind", [WithoutGroups, Mixed, Adaptive])
def test_own_parameters_need_their_own_sgd_groups(kind):
    message = {
        Adaptive: "the method's own parameters need plain gradient descent: pass loss_fn.parameter_groups() to "
        "torch.optim.SGD, not to AdamW"
    }.get(
        kind,
        "no optimizer has the method's own parameters in separate groups: pass it loss_fn.parameter_groups() in "
        "addition to the parameters of the network",
    )
    module = kind(method_of("sop"))
    with pytest.raises(ValueError, match=re.escape(message)):
        trainer_of(module.method).fit(module, data(), held_out())


def test_own_parameters_are_trained():
    before, after = (method.loss.v.abs().max() for method in (method_of("sop"), trained("sop", 10)[0].method))
    assert after > 10 * before


def test_two_networks_in_one_module():
    module, trainer = trained("co-teaching", 25, options={"ramp": 3})
    assert error(module) < error(trained("default", 25)[0])
    assert trainer.callback_metrics["labelsieve/kept_share"] == pytest.approx(0.6)


class DerivedSGD(torch.optim.SGD):
    """An optimizer with its own step, so that the hooks of both classes are called."""

    def step(self, closure):
        return super().step(closure)


class Scheduled(Classifier):
    """A module whose learning rate is halved after each epoch."""

    def configure_optimizers(self):
        self.optimizer, self.rates = DerivedSGD(self.nets.parameters(), lr=0.1), []
        return [self.optimizer], [torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.5)]

    def on_before_optimizer_step(self, optimizer):
        self.rates.append(optimizer.param_groups[0]["lr"])


def test_learning_rate_is_scaled_without_affecting_the_scheduler():
    method = method_of("dmi", warmup=2, lr_scale=0.01)
    module = Scheduled(method)
    trainer_of(method, 4).fit(module, data(), held_out())
    assert module.rates[:: COUNT // BATCH] == pytest.approx([0.1, 0.05, 0.025 * 0.01, 0.0125 * 0.01])
    assert module.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**4)
    assert not module.optimizer._optimizer_step_pre_hooks


def test_scaled_learning_rate_is_used_by_the_step():
    method = method_of("dmi", warmup=2, lr_scale=0.0)
    module, learnt = Scheduled(method), []
    watch = Callback()
    watch.on_train_epoch_end = lambda trainer, module: learnt.append(module.nets[0][0].weight.detach().clone())
    trainer_of(method, 4, [watch]).fit(module, data(), held_out())
    assert not torch.equal(learnt[0], learnt[1]) and torch.equal(learnt[1], learnt[2])


class Breaks(Scheduled):
    def training_step(self, batch, number):
        if self.current_epoch == 3:
            raise RuntimeError("broken")
        return super().training_step(batch, number)


def test_interrupted_step_restores_the_learning_rate():
    method = method_of("dmi", warmup=2, lr_scale=0.01)
    module = Breaks(method)
    with pytest.raises(RuntimeError, match="broken"):
        trainer_of(method, 4).fit(module, data(), held_out())
    assert module.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**3)


def test_incomplete_batches_are_rejected_for_dmi():
    x, y, _ = clouds()
    samples = TensorDataset(x, y, torch.arange(COUNT))
    for settings, rejected in (({}, True), ({"drop_last": True}, False)):
        module = Classifier(method_of("dmi"))
        trainer = trainer_of(module.method)
        if rejected:
            with pytest.raises(ValueError, match="this method needs complete batches: the data loader must"):
                trainer.fit(module, DataLoader(samples, 50, **settings), held_out())
        else:
            trainer.fit(module, DataLoader(samples, 50, **settings), held_out())


def test_kept_share_counts_relabelled_samples():
    module, trainer = trained("selfie", options={"rounds": 1})
    share = trainer.callback_metrics["labelsieve/kept_share"]
    assert share == module.method.last.kept_share and share > 0.6


def test_kept_share_of_a_varying_number_of_samples_is_that_of_the_last_batch():
    module, trainer = trained("co-teaching+", options={"init_epoch": 0}, warmup=0)
    share = trainer.callback_metrics["labelsieve/kept_share"]
    assert share == float(module.method.last.kept_share.min()) < 0.6


def test_kept_share_is_logged():
    assert trained()[1].callback_metrics["labelsieve/kept_share"] == pytest.approx(0.6)
    assert "labelsieve/kept_share" not in trained("default")[1].callback_metrics


class MethodInValidation(Classifier):
    """A module that calls the method in validation and test steps."""

    def validation_step(self, batch, number):
        self.log("kept", self.method(self(batch[0]), batch[1]))

    test_step = validation_step


@pytest.mark.parametrize("inside", [True, False])
def test_validation_may_call_the_method_before_and_after_training(inside):
    method = method_of()
    module = MethodInValidation(method, inside)
    trainer = trainer_of(method)
    trainer.validate(module, held_out(), verbose=False)
    tested = MethodInValidation(method_of(), inside)
    trainer_of(tested.method).test(tested, held_out(), verbose=False)
    module = MethodInValidation(method_of(), inside)
    trainer = trainer_of(module.method)
    trainer.fit(module, data(), held_out())
    before = {name: value.clone() for name, value in module.method.state_dict().items()}
    trainer.validate(module, held_out(), verbose=False)
    assert all(torch.equal(value, before[name]) for name, value in module.method.state_dict().items())


def test_checkpoint_before_the_end_of_an_epoch_predicts_the_training_set_first(tmp_path):
    def fitted(resume=None, **settings):
        lightning.seed_everything(0, verbose=False)
        module = Classifier(method_of(update="repredict"), inside=True)

        def predict():
            for x, y, index in data():
                yield torch.stack([net(x) for net in module.nets]).softmax(-1), y, index

        trainer_of(module.method, predict=predict, **settings).fit(module, data(), held_out(), ckpt_path=resume)
        return module

    seen = ModelCheckpoint(tmp_path, "seen-{epoch}", monitor="error", save_top_k=-1)
    whole = fitted(callbacks=[seen], enable_checkpointing=True)
    assert same(whole, fitted(resume=tmp_path / "seen-epoch=1.ckpt"))


def test_training_set_is_predicted_in_eval_mode():
    method = method_of("lccn", refresh=5)
    module = Classifier(method)
    modes = []

    def predict():
        modes.append(module.nets.training)
        x, y, _ = clouds()
        yield module(x).softmax(-1), y, torch.arange(COUNT)

    trainer_of(method, predict=predict).fit(module, data(), held_out())
    assert modes and not any(modes) and module.nets.training
    assert method.tables()["transition"].isfinite().all()


class KeepState(Callback):
    """Saves the state of each process."""

    def __init__(self, folder):
        self.folder = folder

    def on_train_end(self, trainer, module):
        torch.save(state(module), self.folder / f"{trainer.global_rank}.pt")


class Shared(Classifier):
    """A module whose batches of 64 samples are shared by all processes."""

    def train_dataloader(self):
        x, y, _ = clouds()
        samples = TensorDataset(x, y, torch.arange(COUNT))
        processes = self.trainer.world_size
        sampler = DistributedSampler(samples, processes, self.trainer.global_rank, shuffle=False)
        return DataLoader(samples, 2 * BATCH // processes, sampler=sampler)


@pytest.mark.parametrize(("name", "inside"), [("mentornet-prop", True), ("sop", True), ("sop", False)])
def test_two_processes_equal_one_with_the_union_of_their_batches(name, inside, tmp_path):
    def fit(folder, **settings):
        folder.mkdir()
        lightning.seed_everything(0, verbose=False)
        module = Shared(method_of(name, 1), inside)
        settings |= {"num_sanity_val_steps": 0, "limit_val_batches": 0, "use_distributed_sampler": False}
        trainer_of(module.method, 3, [KeepState(folder)], **settings).fit(module, val_dataloaders=held_out())

    fit(tmp_path / "one")
    fit(tmp_path / "two", strategy="ddp_fork", devices=2)
    alone, first, second = (torch.load(tmp_path / name) for name in ("one/0.pt", "two/0.pt", "two/1.pt"))
    for key, value in alone.items():
        scale = 2**36 if key.endswith(("sums", "columns")) else 1
        assert torch.allclose(value.double(), first[key].double(), atol=1e-5 * scale), key
        assert torch.equal(first[key], second[key]), key


def test_documentation_example_runs():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    space = {}
    exec(code, space)
    assert space["trainer"].callback_metrics["labelsieve/kept_share"] == pytest.approx(0.8)


def test_other_objects_are_rejected():
    with pytest.raises(ValueError, match=r"loss_fn must be a labelsieve.SieveLoss.*, got Linear"):
        SieveCallback(torch.nn.Linear(2, 2))
