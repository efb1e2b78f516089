"""The small networks: candidates for colour images, and the compact network."""

import pytest
import torch

from labelsieve.models import candidate_models, make_model


def test_colour_images_on_a_cpu_have_two_candidates():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert candidate_models((3, 32, 32), cpu) == ("small", "compact")
    assert [candidate_models(shape, cpu) for shape in ((1, 28, 28), (20,))] == [("small",), ("mlp",)]
    assert candidate_models((3, 32, 32), gpu) == ("densenet-25-12",)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 1, 1), (3, 5, 3), (3, 224, 200), (2, 65, 64)])
def test_compact_network_accepts_images_of_any_size(shape):
    network = make_model("compact", shape, 7).eval()
    inputs = torch.randn(2, *shape)
    assert network(inputs).shape == (2, 7) and sum(p.numel() for p in network.parameters()) < 25_000
    assert (network(inputs)[0] == network(inputs.flip(0))[1]).all()


def test_compact_network_reduces_large_images():
    network = make_model("compact", (3, 200, 64), 2).eval()
    coarse = torch.randn(1, 3, 50, 16)
    shapes = []
    network.layers[1].register_forward_hook(lambda module, inputs, outputs: shapes.append(outputs.shape[2:]))
    network(coarse.repeat_interleave(4, 2).repeat_interleave(4, 3))
    assert shapes == [(50, 16)]  # at most 64 pixels per side
