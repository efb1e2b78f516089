"""Virtual adversarial training."""

import pytest
import torch
from torch import nn

from labelsieve.methods import Problem, make
from labelsieve.methods.vat import VirtualAdversarial, unit
from labelsieve.models.networks import Dropout


class Softmax(nn.Module):
    """A linear softmax model, (1, B, K)."""

    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x):
        return (x @ self.weight.T).unsqueeze(0)


def test_direction_is_that_of_the_largest_curvature():
    """For a linear softmax model the KL's Hessian is W' (diag p - p p') W; power iteration finds its top direction."""
    torch.manual_seed(0)
    weight = torch.tensor([[3.0, 0.2, 0.0], [-1.0, 0.1, 0.3]], dtype=torch.float64)
    model, x = Softmax(weight), torch.tensor([[0.1, -0.2, 0.3]], dtype=torch.float64)
    vat = VirtualAdversarial(radius=0.5, iterations=20, xi=1e-3)
    vat.generator = torch.Generator().manual_seed(0)
    fixed = model(x).detach().log_softmax(-1).double()
    found = vat.adversarial_direction(model, x, fixed)[0]
    p = fixed.exp()[0, 0]
    values, vectors = torch.linalg.eigh(weight.T @ (p.diag() - p.outer(p)) @ weight)
    assert abs(torch.dot(found, vectors[:, values.argmax()])).item() == pytest.approx(1, abs=1e-2)
    assert found.norm().item() == pytest.approx(1, abs=1e-5)


def test_inputs_move_by_the_radius_and_batch_norm_statistics_stay():
    class Spy(nn.Sequential):
        seen = None

        def forward(self, x):
            Spy.seen = x.detach()
            return super().forward(x).unsqueeze(0)

    model = Spy(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).train()
    x = torch.randn(10, 6)
    logits = model(x)
    statistics = model[1].running_mean.clone(), model[1].num_batches_tracked.clone()
    penalty = VirtualAdversarial(radius=2.0)(model, x, logits)
    assert torch.allclose((Spy.seen - x).norm(dim=1), torch.full((10,), 2.0), atol=1e-3)
    assert penalty > 0 and penalty.requires_grad
    assert torch.equal(model[1].running_mean, statistics[0]) and model[1].num_batches_tracked == statistics[1]
    assert model[1].track_running_stats


@pytest.mark.parametrize(
    ("dropout", "dtype", "expected"),
    [(0.5, torch.bfloat16, True), (0.0, torch.bfloat16, False), (0.5, torch.float16, False)],
)
def test_direction_is_computed_in_bfloat16_only_if_dropout_is_active(dropout, dtype, expected):
    class Spy(nn.Sequential):
        def forward(self, x):
            lower.append(torch.is_autocast_enabled("cpu"))
            return super().forward(x).unsqueeze(0)

    lower = []
    model = Spy(nn.Linear(6, 8), nn.Dropout(dropout), nn.Linear(8, 3))
    with torch.autocast("cpu", dtype):
        x = torch.randn(10, 6)
        penalty = VirtualAdversarial(radius=2.0)(model, x, model(x))
    assert lower == [True, expected, True] and penalty.isfinite()


def test_with_dropout_bfloat16_gives_nearly_the_direction_of_float32():
    """Without dropout it does not: the step of 0.01 is lost when it is added to the inputs."""
    torch.manual_seed(0)
    cosines = {}
    for rate in (0.0, 0.5):
        network = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), Dropout(rate), nn.Linear(256, 5))
        x, found = torch.randn(50, 64), []
        for lower in (False, True):
            network[2].generator = torch.Generator().manual_seed(1)
            vat = VirtualAdversarial(radius=1.0)
            vat.generator = torch.Generator().manual_seed(2)
            with torch.autocast("cpu", torch.bfloat16, enabled=lower):
                fixed = network(x).detach().float().log_softmax(-1)
                found.append(vat.adversarial_direction(network, x, fixed))
        cosines[rate] = torch.cosine_similarity(*found).mean().item()
    assert cosines[0.5] > 0.98 and cosines[0.0] < 0.9


def test_validation_loss_has_no_adversarial_term():
    model, x, y = Softmax(torch.randn(3, 6)), torch.randn(8, 6), torch.randint(3, (8,))
    method = make("vat", Problem(3, 0.1))
    method.start_epoch(0)
    training_loss = method(model(x), y, model=model, inputs=x)
    with torch.no_grad():
        assert training_loss > method(model(x), y) == method.eval()(model(x), y)


def test_unit_does_not_under_or_overflow():
    tiny, huge = torch.full((1, 4), 1e-30), torch.full((1, 4), 1e30)
    assert unit(huge).norm().item() == pytest.approx(1, abs=1e-5)
    assert unit(tiny).isfinite().all()
