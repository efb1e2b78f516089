"""What must hold on a GPU too; runs where there is one, with pytest or as a plain script."""

import warnings

import torch

from labelsieve import METHODS, Problem, make
from labelsieve.core.criteria import CriteriaALL
from labelsieve.models import make_model
from labelsieve.models.networks import make_networks
from labelsieve.noise import corrupt, pair
from labelsieve.train import Training, fit
from labelsieve.train.learner import Learner
from labelsieve.train.loop import lend_generator
from labelsieve.train.meters import Meters

try:
    import pytest

    pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
except ImportError:  # as a plain script
    pass


def batch(size=128, classes=10, shape=(3, 32, 32)):
    random = torch.Generator().manual_seed(0)
    x = torch.randn(size, *shape, generator=random)
    return x.cuda(), torch.randint(classes, (size,), generator=random).cuda(), torch.arange(size).cuda()


def past_the_warm_up(name, options, labels, index):
    """A method in its first epoch after the warm-up, on the GPU."""
    method = make(name, Problem(10, 0.4, 1, num_samples=128), **options).cuda()
    probs = torch.rand(method.networks, 128, 10).softmax(-1).cuda()
    method.start_epoch(0)
    method.end_epoch(lambda: iter([(probs, labels, index)]))
    method.start_epoch(1)
    return method


def test_a_step_never_waits_for_the_host():
    """CUDA itself raises at the first synchronisation."""
    every = [*((name, {}) for name in METHODS), ("gce", {"k": 0.5}), ("mentornet-prop", {"compensate": "iteration"})]
    x, y, index = batch()
    for name, options in every:
        for precision in ("fp32", "bf16"):
            method = past_the_warm_up(name, options, y, index)
            networks = make_networks(lambda: make_model("densenet-25-12", (3, 32, 32), 10), method.networks, 0)
            networks = networks.cuda().train()
            lend_generator(networks, torch.Generator(x.device))
            lend_generator(method, torch.Generator(x.device))
            learner = Learner(networks, method, Training(precision=precision))
            meters = Meters(method.networks, 10, x.device)
            learner.step(x, y, index)
            torch.cuda.synchronize()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it calls itself a prototype
                torch.cuda.set_sync_debug_mode("error")
            try:
                for _ in range(3):
                    meters.add(learner.step(x, y, index), y, y)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            assert meters.read(clean_known=True).first_bad_step is None, name


def test_penalty_labels_and_selection_agree_with_the_cpu():
    for classes in (2, 10, 1000, 10_000):
        random = torch.Generator().manual_seed(classes)
        logits, labels = 3 * torch.randn(64, classes, generator=random), torch.randint(classes, (64,), generator=random)
        here = make("mentornet-prop", Problem(classes, 0.4, 0))
        there = make("mentornet-prop", Problem(classes, 0.4, 0)).cuda()
        for epoch in range(3):
            for method, x, y in ((here, logits, labels), (there, logits.cuda(), labels.cuda())):
                method.start_epoch(epoch)
                method(x, y)
        assert torch.allclose(here.tables()["penalty"], there.tables()["penalty"].cpu(), atol=1e-6)
        kept = here.step(logits, labels).decision.weight, there.step(logits.cuda(), labels.cuda()).decision.weight.cpu()
        assert (kept[0] == kept[1]).float().mean() > 0.96


def test_stacks_on_the_gpu_are_exact_in_any_order():
    """Atomic float sums would differ from run to run; whole numbers do not."""
    probs = (3 * torch.randn(1, 20_000, 10, generator=torch.Generator().manual_seed(0))).softmax(-1).cuda()
    labels = torch.randint(10, (20_000,), generator=torch.Generator().manual_seed(1)).cuda()
    valid = torch.ones(1, 20_000, dtype=torch.bool, device="cuda")
    first, second = CriteriaALL(10).cuda(), CriteriaALL(10).cuda()
    order = torch.randperm(20_000, device="cuda")
    first.stack(probs, labels, valid)
    second.stack(probs[:, order], labels[order], valid)
    assert torch.equal(first.sums, second.sums)


def test_fit_learns_on_the_gpu():
    from labelsieve.data import load_data

    train, test = load_data("fashion")
    noisy = train.relabelled(corrupt(train.labels, pair(10, 0.4), seed=0)).to(torch.device("cuda"))
    method = make("mentornet-prop", Problem(10, 0.4, 10))
    training = Training(epochs=20, lr=0.02, precision="bf16")
    result = fit(
        lambda number: make_networks(lambda: make_model("small", (1, 28, 28), 10), 1, number).cuda(),
        method,
        noisy,
        test.to(torch.device("cuda")),
        training=training,
    )
    assert result.rows[-1]["test_error"] < 22 and result.rows[-1]["precision"] > 0.9


def test_a_step_that_is_not_finite_changes_nothing_on_the_gpu():
    networks = make_networks(lambda: make_model("densenet-25-12", (3, 32, 32), 10), 1, 0).cuda().train()
    method = make("mentornet-prop", Problem(10, 0.4, 0)).cuda()
    learner = Learner(networks, method, Training())
    x, y, index = batch()
    learner.step(x, y, index)
    state = [*networks.state_dict().values(), *method.state_dict().values()]
    before = [tensor.clone() for tensor in state]
    assert not learner.step(x * float("inf"), y, index).finite.any()
    assert all(torch.equal(tensor, then) for tensor, then in zip(state, before, strict=True))


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print(f"{name}: ok", flush=True)
