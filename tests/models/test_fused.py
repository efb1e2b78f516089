"""The fused kernels compared with plain layers, in float32 by Triton's interpreter, without a GPU."""

import copy

import pytest
import torch
from torch import nn

from labelsieve.models.densenet import DenseLayer, DenseNet
from labelsieve.runtime import join_adjacent

pytest.importorskip("triton", reason="Triton has no wheels for this machine")


@pytest.fixture(scope="module")
def fused():
    """Return the module with interpreted kernels."""
    if torch.cuda.is_available():
        pytest.skip("tests/test_gpu.py tests the compiled kernels")
    from labelsieve.models import fused

    return fused


def mixed(x, key=0):
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & 0xFFFFFFFF
    x = ((x ^ (x >> 15) ^ key) * 0x735A2D97) & 0xFFFFFFFF
    return x ^ (x >> 15)


def hashed(place, seed):
    """Compute the hash of the kernel with integer tensors."""
    low = mixed(seed & 0xFFFFFFFF)
    return mixed(place ^ low, mixed((seed >> 32) ^ low))


class SeededDropout(nn.Module):
    """Dropout with the masks of the kernels, which hash positions with channels padded to a multiple of 16."""

    def __init__(self, rate, seed):
        super().__init__()
        self.rate, self.seed = rate, seed

    def forward(self, x):
        if not self.training:
            return x
        channels = x.shape[1]
        columns = -(-channels // 16) * 16
        pixel = torch.arange(x.numel() // channels).view(x.shape[0], 1, *x.shape[2:])
        place = pixel * columns + torch.arange(channels).view(1, -1, 1, 1)
        keep = (hashed(place, self.seed) >> 8) >= self.rate * 2**24
        return x * keep / (1 - self.rate)


def plain_features(network, x):
    return network.norm(network.features(x)).relu().mean((2, 3))


def randomise_norms(network):
    """Randomise the norms, so that every term of their gradients is tested."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, 1, 0.3)
            nn.init.normal_(module.bias, 0, 0.3)
    return network


@pytest.mark.parametrize(
    ("depth", "growth", "channels", "side", "count", "rate"),
    [(10, 12, 3, 8, 3, 0.2), (7, 16, 1, 16, 2, 0.0), (10, 5, 4, 8, 4, 0.5)],
)
def test_features_gradients_and_statistics_match_plain_layers(fused, depth, growth, channels, side, count, rate):
    torch.manual_seed(depth)
    ours = randomise_norms(DenseNet(channels, 10, depth=depth, growth=growth, dropout=rate))
    plain = copy.deepcopy(ours)
    units = [module for module in plain.features if hasattr(module, "dropout")]
    seeds = torch.empty(2 + len(units), dtype=torch.int64).random_(generator=torch.Generator().manual_seed(5))
    for number, unit in enumerate(units):
        unit.dropout = SeededDropout(rate, int(seeds[1 + number])) if rate else nn.Identity()
    for module in ours.modules():
        if hasattr(module, "generator"):
            module.generator = torch.Generator().manual_seed(5)
    x = torch.randn(count, channels, side, side, requires_grad=True)
    x_plain = x.detach().clone().requires_grad_()
    logits, expected = fused.logits(ours, x, torch.float32), plain.classifier(plain_features(plain, x_plain))
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-4)
    gradient = torch.randn_like(expected)
    logits.backward(gradient)
    expected.backward(gradient)
    assert len(join_adjacent([parameter.grad for parameter in ours.parameters()])) == 1
    for (name, parameter), twin in zip(ours.named_parameters(), plain.parameters(), strict=True):
        error = (parameter.grad - twin.grad).norm() / twin.grad.norm()
        assert error < 1e-4, (name, error)
    assert (x.grad - x_plain.grad).norm() < 1e-4 * x_plain.grad.norm()
    for (name, buffer), twin in zip(ours.named_buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(buffer, twin, atol=1e-5, rtol=1e-4, msg=name)
    with torch.no_grad():
        torch.testing.assert_close(
            fused.features(ours.eval(), x, torch.float32), plain_features(plain.eval(), x), atol=1e-5, rtol=1e-4
        )


def test_running_statistics_can_be_disabled(fused):
    network = DenseNet(1, 10, depth=7, growth=4, dropout=0.0)
    before = copy.deepcopy(dict(network.named_buffers()))
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.track_running_stats = False
    fused.features(network, torch.randn(2, 1, 8, 8), torch.float32)
    assert all(torch.equal(buffer, before[name]) for name, buffer in network.named_buffers())


def test_unpacking_reverses_packing(fused):
    plan = fused.plan_of(3, (16, 100, 184), 7, 12, torch.device("cpu"))
    network = DenseNet(3, 10)
    real = sum(p.numel() for name, p in network.named_parameters() if not name.startswith("classifier"))
    assert plan.real == real
    values = torch.arange(1, real + 1).float()
    wide, half = fused._packed(plan, values.split([16, real - 16]), torch.float32)
    used = plan.source >= 0
    assert torch.equal(wide, half) and not wide[~used].any()  # all others are unused
    unpacked = torch.zeros(real)
    unpacked[plan.source[used].long()] = wide[used]
    assert torch.equal(unpacked, values)
    assert sum(isinstance(module, DenseLayer) for module in network.features) + 4 == len(plan.units)


def test_dropout_hash_is_uniform(fused):
    """Kept shares, neighbouring positions and seeds that differ in one bit look independent."""
    place = torch.arange(1 << 16)
    for seed in (0, 1, 2**32, 2**62 + 12345):
        one, other, third = ((hashed(place, s) >> 8) / 2**24 for s in (seed, seed ^ 1, seed ^ 2**32))
        assert abs(one.mean() - 0.5) < 0.01 and abs((one >= 0.2).double().mean() - 0.8) < 0.01
        for pair in ((one[1:], one[:-1]), (one[16:], one[:-16]), (one, other), (one, third)):
            assert abs(torch.corrcoef(torch.stack(pair))[0, 1]) < 0.02
