"""The usual networks to the parameter, weights from files of every kind, and a person's own networks."""

import math
import pickle
import sys
from functools import cache
from itertools import pairwise
from types import ModuleType

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from labelsieve.errors import InputError
from labelsieve.models import MODELS, make_model, default_model
from labelsieve.models.load import import_model, load_weights
from labelsieve.models.networks import Dropout

IMAGE = (3, 32, 32)
NEW = ["resnet-18", "resnet-34", "resnet-50", "resnet-50-original", "preact-resnet-18", "vgg-19", "mlp"]


@cache
def made(name, shape=IMAGE, num_classes=10):
    """A network that no test changes."""
    torch.manual_seed(0)
    return make_model(name, shape, num_classes)


# ---- the networks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "classes", "parameters", "tensors"),
    [
        ("resnet-18", IMAGE, 1000, 11_689_512, 122),
        ("resnet-34", IMAGE, 1000, 21_797_672, 218),
        ("resnet-50", IMAGE, 1000, 25_557_032, 320),
        ("resnet-50-original", IMAGE, 1000, 25_557_032, 320),
        ("preact-resnet-18", IMAGE, 10, 11_171_146, 102),
        ("vgg-19", IMAGE, 10, 38_975_306, 128),
        ("mlp", (20,), 3, 20 * 256 + 256 + 512 + 256 * 256 + 256 + 512 + 256 * 3 + 3, 19),
    ],
)
def test_networks_have_the_known_parameters(name, shape, classes, parameters, tensors):
    network = made(name, shape, classes)
    assert sum(p.numel() for p in network.parameters()) == parameters
    assert len(network.state_dict()) == tensors


def test_preact_resnet_has_no_norm_after_its_last_block():
    """By hand: convolutions, shortcuts, two norms per block and the linear layer are all there is."""
    widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]  # in front of the blocks, then after each
    total = 3 * 64 * 9
    for inputs, width in pairwise(widths):
        total += 9 * inputs * width + 9 * width * width + 2 * inputs + 2 * width
        total += inputs * width if inputs != width else 0
    assert total + 512 * 10 + 10 == 11_171_146 == sum(p.numel() for p in made("preact-resnet-18").parameters())


def test_vgg_has_sixteen_convolutions_with_bias_and_wide_linear_layers():
    """At 32 px one pixel is left, so the first linear layer reads 512 numbers."""
    network = made("vgg-19")
    convolutions = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert [m.out_channels for m in convolutions] == [64] * 2 + [128] * 2 + [256] * 4 + [512] * 8
    assert all(m.bias is not None for m in convolutions)
    linear = [m for m in network.modules() if isinstance(m, nn.Linear)]
    assert [(m.in_features, m.out_features) for m in linear] == [(512, 4096), (4096, 4096), (4096, 10)]
    assert [m.rate for m in network.modules() if isinstance(m, Dropout)] == [0.5, 0.5]
    assert sum(isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d) for m in network.modules()) == 18


NORM = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]


def keys_of(*layers):
    """The names of convolutions' and norms' tensors."""
    return [f"{layer}.{k}" for layer in layers for k in (["weight"] if "conv" in layer or layer[-1] == "0" else NORM)]


def test_resnet_has_torchvisions_names():
    keys = list(made("resnet-18").state_dict())
    first, second = "layer1.0", "layer1.1"
    plain = [f"{block}.{layer}" for block in (first, second) for layer in ("conv1", "bn1", "conv2", "bn2")]
    strided = [f"layer2.0.{layer}" for layer in ("conv1", "bn1", "conv2", "bn2", "downsample.0", "downsample.1")]
    expected = keys_of("conv1", "bn1", *plain, *strided)
    assert keys[: len(expected)] == expected
    assert keys[-2:] == ["fc.weight", "fc.bias"] and not any("layer1" in k and "downsample" in k for k in keys)
    deeper = made("resnet-50").state_dict()
    layers = [f"layer1.0.{layer}" for layer in ("conv1", "bn1", "conv2", "bn2", "conv3", "bn3")]
    expected = keys_of("conv1", "bn1", *layers, "layer1.0.downsample.0", "layer1.0.downsample.1", "layer1.1.conv1")
    assert list(deeper)[: len(expected)] == expected
    shapes = {
        k: tuple(deeper[k].shape) for k in ("conv1.weight", "layer3.5.conv3.weight", "layer4.0.downsample.0.weight")
    }
    assert list(shapes.values()) == [(64, 3, 7, 7), (1024, 256, 1, 1), (2048, 1024, 1, 1)]


@pytest.mark.parametrize(("name", "strides"), [("resnet-50-original", (2, 1)), ("resnet-50", (1, 2))])
def test_resnet_50_has_its_stride_where_it_should(name, strides):
    network = made(name)
    for layer in (network.layer2, network.layer3, network.layer4):
        assert tuple(c.stride[0] for c in (layer[0].conv1, layer[0].conv2)) == strides
        assert layer[0].conv3.stride[0] == 1 and layer[0].downsample[0].stride[0] == 2
        assert layer[1].conv1.stride[0] == layer[1].conv2.stride[0] == 1
    assert network.layer1[0].conv1.stride[0] == network.layer1[0].conv2.stride[0] == 1


def test_resnet_starts_as_torchvisions():
    network = made("resnet-34")
    for weight in (network.conv1.weight, network.layer2[1].conv1.weight, network.layer3[0].downsample[0].weight):
        fan_out = weight.shape[0] * weight[0, 0].numel()
        assert weight.std().item() == pytest.approx(math.sqrt(2 / fan_out), rel=0.05)
    norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    assert all((n.weight == 1).all() and (n.bias == 0).all() for n in norms)
    assert network.fc.weight.abs().max() <= 1 / math.sqrt(512) + 1e-6  # torch's own: uniform


def test_vgg_starts_with_zero_biases():
    network = made("vgg-19")
    assert all((m.bias == 0).all() for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear))
    assert network.features[3].weight.std().item() == pytest.approx(math.sqrt(2 / (9 * 64)), rel=0.02)


def test_a_block_adds_its_input():
    """With all weights of the block at 0, only the shortcut is left."""
    x = torch.randn(2, 64, 4, 4)
    for name, expected in (("resnet-18", x.relu()), ("preact-resnet-18", x)):
        block = make_model(name, IMAGE, 2).layer1[0].eval()
        nn.init.zeros_(block.conv2.weight)
        assert torch.equal(block(x), expected)


def test_preact_shortcut_begins_after_the_first_relu():
    block = make_model("preact-resnet-18", IMAGE, 2).layer2[0].eval()
    nn.init.zeros_(block.conv2.weight)
    block.bn1.running_mean.fill_(3.0)
    x = torch.randn(1, 64, 4, 4)
    expected = block.shortcut((x - 3).div(math.sqrt(1 + 1e-5)).relu())
    assert torch.allclose(block(x), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("resnet-18", (3, 64, 64)),
        ("resnet-18", (4, 45, 33)),
        ("resnet-50", (1, 96, 64)),
        ("resnet-50-original", (3, 64, 64)),
        ("preact-resnet-18", (3, 64, 64)),
        ("vgg-19", (3, 64, 64)),
        ("mlp", (5,)),
        ("mlp", (2, 4, 3)),
    ],
)
def test_networks_take_samples_of_several_sizes(name, shape):
    assert make_model(name, shape, 7).eval()(torch.randn(1, *shape)).shape == (1, 7)


def test_sides_shrink_as_stated():
    seen = {}
    for name in ("resnet-18", "preact-resnet-18"):
        network = make_model(name, (3, 64, 64), 2).eval()
        for stage in range(1, 5):
            layer = network.get_submodule(f"layer{stage}")
            layer.register_forward_hook(lambda m, i, y, name=name: seen.setdefault(name, []).append(y.shape[-1]))
        network(torch.zeros(1, 3, 64, 64))
    assert seen == {"resnet-18": [16, 8, 4, 2], "preact-resnet-18": [64, 32, 16, 8]}


@pytest.mark.parametrize("name", NEW)
def test_gradients_reach_every_parameter_and_eval_repeats_itself(name):
    torch.manual_seed(1)
    network, x = make_model(name, IMAGE, 5), torch.randn(4, *IMAGE)
    nn.functional.cross_entropy(network(x), torch.tensor([0, 1, 2, 3])).backward()
    for key, parameter in network.named_parameters():
        before_norm = key.endswith("bias") and parameter.ndim == 1 and name in ("vgg-19", "mlp")
        assert parameter.grad is not None, key
        assert before_norm or parameter.grad.abs().max() > 0, key  # a norm takes the bias before it away
    network.eval()
    with torch.no_grad():
        assert torch.equal(network(x[:1]), network(x[:1]))
    if any(isinstance(module, Dropout) for module in network.modules()):
        network.train()
        assert not torch.equal(network(x[:2]), network(x[:2]))


@pytest.mark.parametrize("name", [name for name in MODELS if name != "mlp"])
def test_image_networks_refuse_tables(name):
    with pytest.raises(InputError, match=f"^{name} needs images; for a table use mlp$"):
        make_model(name, (20,), 3)


def test_what_suits_the_data():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert default_model((20,), gpu) == "mlp" and default_model(IMAGE, cpu) == "small"
    assert default_model((3, 64, 64), gpu) == "densenet-25-12" and default_model((3, 64, 65), gpu) == "resnet-18"
    assert {default_model(s, d) for s in ((20,), IMAGE, (3, 224, 224)) for d in (cpu, gpu)} <= set(MODELS)


# ---- weights from a file -------------------------------------------------------------------------------------------


class Tiny(nn.Module):
    def __init__(self, num_classes, channels=3):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, num_classes)


def weights_of(num_classes=3, **changed):
    torch.manual_seed(7)
    weights = Tiny(num_classes).state_dict()
    weights["bn1.running_mean"] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    weights["bn1.num_batches_tracked"] = torch.tensor(5)
    return {**weights, **{name.replace("__", "."): tensor for name, tensor in changed.items()}}


def write_npz(weights, path):
    np.savez(path, **{name: tensor.numpy() for name, tensor in weights.items()})


WRITERS = {
    "a.safetensors": save_file,
    "a.npz": write_npz,
    "a.pth": torch.save,
    "a.pt": torch.save,
    "legacy.pth": lambda weights, path: torch.save(weights, path, _use_new_zipfile_serialization=False),
    "nested.pth": lambda weights, path: torch.save({"state_dict": weights, "epoch": 3, "best": 0.5}, path),
    "model.pth": lambda weights, path: torch.save({"model": weights, "optimizer": {"lr": [0.1]}}, path),
    "parallel.pth": lambda weights, path: torch.save({f"module.{k}": v for k, v in weights.items()}, path),
    "parallel.npz": lambda weights, path: write_npz({f"module.{k}": v for k, v in weights.items()}, path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_weights_come_back_from_every_kind_of_file(tmp_path, name):
    weights, network = weights_of(), Tiny(3)
    WRITERS[name](weights, tmp_path / name)
    assert load_weights(network, tmp_path / name) == []
    found = network.state_dict()
    assert found.keys() == weights.keys() and all(torch.equal(found[k], weights[k]) for k in weights)
    network.fc.weight.sum().backward()  # still a parameter
    assert network.fc.weight.grad is not None


def test_a_whole_resnet_comes_back(tmp_path):
    """As published for ImageNet: 1,000 classes, and without batch-norm's counters."""
    weights = {k: v for k, v in made("resnet-18", IMAGE, 1000).state_dict().items() if "num_batches" not in k}
    assert len(weights) == 102
    torch.save(weights, tmp_path / "resnet18.pth")
    torch.manual_seed(3)
    network = make_model("resnet-18", IMAGE, 4)
    first = network.fc.weight.clone()
    assert load_weights(network, tmp_path / "resnet18.pth") == ["fc.weight", "fc.bias"]
    assert torch.equal(network.fc.weight, first)
    assert torch.equal(network.layer4[1].conv2.weight, weights["layer4.1.conv2.weight"])


def test_a_last_layer_for_other_classes_or_none_is_left_as_it_was(tmp_path):
    for number, weights in enumerate([weights_of(5), {k: v for k, v in weights_of().items() if "fc" not in k}]):
        network, path = Tiny(3), tmp_path / f"{number}.npz"
        first = network.fc.weight.clone()
        write_npz(weights, path)
        assert load_weights(network, path) == ["fc.weight", "fc.bias"]
        assert torch.equal(network.fc.weight, first) and torch.equal(network.conv1.weight, weights["conv1.weight"])


@pytest.mark.parametrize(
    ("name", "layer"), [("mlp", "layers.10"), ("preact-resnet-18", "linear"), ("small", "layers.6")]
)
def test_the_last_linear_layer_classifies(tmp_path, name, layer):
    torch.save(make_model(name, IMAGE, 6).state_dict(), tmp_path / "a.pth")
    assert load_weights(make_model(name, IMAGE, 3), tmp_path / "a.pth") == [f"{layer}.weight", f"{layer}.bias"]


def test_half_precision_weights_become_the_networks_type(tmp_path):
    half = {k: v.half() if v.is_floating_point() else v for k, v in weights_of().items()}
    save_file(half, tmp_path / "a.safetensors")
    network = Tiny(3)
    load_weights(network, tmp_path / "a.safetensors")
    assert network.conv1.weight.dtype == torch.float32
    assert torch.equal(network.conv1.weight, half["conv1.weight"].float())


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (weights_of(extra=torch.ones(2)), "extra is in the file but not in the network; give weights of the same"),
        ({k: v for k, v in weights_of().items() if k != "conv1.bias"}, "conv1.bias is not in the file;"),
        ({k: v for k, v in weights_of().items() if "bn1" not in k}, r"bn1.weight .* \(and 3 more tensors do not fit\)"),
        (
            Tiny(3, channels=1).state_dict(),
            "conv1.weight is 4 x 1 x 3 x 3 in the file and 4 x 3 x 3 x 3 in the network",
        ),
        (weights_of(fc__weight=torch.ones(5, 9), fc__bias=torch.ones(5)), "fc.weight is 5 x 9 in the file and 3 x 4"),
        (weights_of(fc__bias=torch.ones(5)), "fc.bias is 5 in the file and 3 in the network"),
        ({k: v for k, v in weights_of().items() if k != "fc.bias"}, "fc.bias is not in the file"),
        (weights_of(conv1__bias=torch.ones(4, dtype=torch.int8)), "conv1.bias is torch.int8 in the file"),
        (weights_of(bn1__bias=torch.tensor([0, 0, math.nan, 0])), "bn1.bias has values that are not finite"),
        (weights_of(bn1__bias=torch.full((4,), math.inf)), "bn1.bias has values that are not finite"),
        (weights_of(note="text"), "'note' is no plain tensor"),
        (weights_of(conv1__bias=torch.ones(4).to_sparse()), "'conv1.bias' is no plain tensor"),
        ([torch.ones(2)], "holds no weights by name"),
        ({}, "holds no weights by name"),
        (torch.ones(2), "holds no weights by name"),
    ],
)
def test_weights_that_do_not_fit_are_refused_and_nothing_is_changed(tmp_path, weights, message):
    network, path = Tiny(3), tmp_path / "a.pth"
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    torch.save(weights, path)
    with pytest.raises(InputError, match=message) as caught:
        load_weights(network, path)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


class Canary:
    """Leaves a trace when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (eval, (f"open({str(self.path)!r}, 'w').close()",))


@pytest.mark.parametrize("kind", ["zip", "legacy", "pickle", "npz"])
@pytest.mark.parametrize("forced", ["0", "1"])
def test_nothing_in_a_file_is_executed(tmp_path, monkeypatch, kind, forced):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", forced)
    trace = tmp_path / "executed"
    contents = {**weights_of(), "canary": Canary(trace)}
    path = tmp_path / ("a.npz" if kind == "npz" else "a.pth")
    if kind == "npz":
        np.savez(path, canary=np.array([Canary(trace)], dtype=object))
    elif kind == "pickle":
        path.write_bytes(pickle.dumps(contents))
    else:
        torch.save(contents, path, _use_new_zipfile_serialization=kind == "zip")
    with pytest.raises(InputError, match=r"holds (more than tensors|no plain arrays)") as caught:
        load_weights(Tiny(3), path)
    assert "\n" not in str(caught.value) and not trace.exists()
    if kind == "pickle":
        pickle.loads(path.read_bytes())
        assert trace.exists()  # so the canary works


def test_a_pickled_network_is_refused(tmp_path):
    torch.save(Tiny(3), tmp_path / "a.pth")
    with pytest.raises(InputError, match=r"save network.state_dict\(\) alone"):
        load_weights(Tiny(3), tmp_path / "a.pth")


@pytest.mark.parametrize("name", ["a.safetensors", "a.npz", "a.pth", "legacy.pth"])
@pytest.mark.parametrize("keep", [0, 7, 0.5, 0.98])
def test_a_file_that_is_cut_off_is_refused(tmp_path, name, keep):
    path = tmp_path / name
    WRITERS[name](weights_of(), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * keep) if keep < 1 else keep])
    with pytest.raises(InputError, match=f"cannot read .*{name}: ") as caught:
        load_weights(Tiny(3), path)
    assert "\n" not in str(caught.value)


def test_no_file_and_files_of_other_kinds_are_refused(tmp_path):
    (tmp_path / "a.onnx").write_bytes(b"x")
    for name in ("a.onnx", "b.pth", "."):
        with pytest.raises(InputError, match=r"a \.safetensors, \.npz, \.pth or \.pt file"):
            load_weights(Tiny(3), tmp_path / name)


# ---- a person's own networks ---------------------------------------------------------------------------------------

OWN = """
import math
from torch import nn

def both(shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), num_classes))

def by_place(size, classes, /, bias=True):
    return both(size, classes)

def only_classes(classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))

def named(width=8, num_classes=1000):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(width), nn.Linear(width, num_classes))

def open_ended(*, weights=None, **options):
    return only_classes(options["num_classes"])

def alone():
    return only_classes(4)

class Network(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.layers = only_classes(num_classes)
        self.dropout = nn.Dropout()

    def forward(self, x):
        return self.dropout(self.layers(x))

class Holder:
    make = Network

def ten():
    return only_classes(10)

def three_needed(shape, num_classes, depth):
    return both(shape, num_classes)

def other_way_round(num_classes, width):
    return only_classes(num_classes)

def number(shape, num_classes):
    return 3

def nothing(shape, num_classes):
    pass

def raises(shape, num_classes):
    raise KeyError("no\\nweights")

class Pair(nn.Module):
    def forward(self, x):
        return x, x

class Narrow(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x):
        return self.layer(x)

finished = alone()
size = 5
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder with a person's own module, as the current folder."""
    (tmp_path / "own_networks.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize(
    "name", ["both", "by_place", "only_classes", "named", "open_ended", "alone", "Network", "Holder.make"]
)
def test_own_networks_are_called_by_their_signature(own, name):
    network = make_model(f"own_networks:{name}", (3, 5, 4), 4)
    assert network.training and network(torch.randn(2, 3, 5, 4)).shape == (2, 4)


def test_own_networks_take_tables_and_live_in_packages(own):
    (own / "package").mkdir()
    (own / "package" / "__init__.py").write_text("")
    (own / "package" / "deep.py").write_text("from own_networks import both as net\n")
    assert import_model("package.deep:net")((6,), 4)(torch.randn(2, 6)).shape == (2, 4)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("own_network:both", "there is no module 'own_network': did you mean own_networks[?]"),
        ("own_networks.py:both", "there is no module 'own_networks.py': did you mean own_networks[?]"),
        ("./own_networks.py:both", "write package.module:factory, did you mean own_networks[?]"),
        ("zzzz.q:both", "there is no module 'zzzz': put its file into .* or install it"),
        ("own_networks:bth", "own_networks has no 'bth': did you mean both[?]"),
        ("own_networks:", "write package.module:factory"),
        (":both", "write package.module:factory"),
        ("own_networks:size", "own_networks:size is of type int: give the function or class that makes the network"),
        ("own_networks:finished", "is a finished network: give the function or class"),
        ("own_networks:number", "own_networks:number gave a int, a torch.nn.Module is needed"),
        ("own_networks:nothing", "gave nothing, a torch.nn.Module is needed"),
        ("own_networks:raises", r"own_networks:raises raised KeyError: 'no\\nweights'"),
        ("own_networks:ten", r"gives \(1, 10\) for a batch of shape \(1, 3, 5, 4\), \(1, 4\) is needed"),
        ("own_networks:Pair", r"gives a tuple for a batch"),
        ("own_networks:Narrow", r"cannot take a batch of shape \(1, 3, 5, 4\): RuntimeError: mat1 and mat2"),
        ("own_networks:three_needed", "needs shape, num_classes, depth; it is called as factory"),
        ("own_networks:other_way_round", "needs num_classes, width; it is called as factory"),
        ("broken:net", "importing broken raised SyntaxError"),
        ("needy:net", "needy needs 'not_installed_anywhere', which is not installed"),
        ("leaves:net", "importing leaves raised SystemExit: 2"),
    ],
)
def test_what_is_wrong_with_an_own_network_is_told_in_one_line(own, spec, message):
    (own / "broken.py").write_text("def net(:\n")
    (own / "needy.py").write_text("import not_installed_anywhere\n")
    (own / "leaves.py").write_text("raise SystemExit(2)\n")
    with pytest.raises(InputError, match=message) as caught:
        make_model(spec, (3, 5, 4), 4)
    assert "\n" not in str(caught.value)


def fake_timm(monkeypatch):
    """Stands in for timm, and keeps what it was asked for."""
    module, asked = ModuleType("timm"), []

    def create_model(name, pretrained, num_classes, in_chans):
        asked.append((name, pretrained, num_classes, in_chans))
        if name != "resnet18.a1_in1k":
            raise RuntimeError(f"Unknown model ({name})")
        return nn.Sequential(nn.Conv2d(in_chans, num_classes, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    module.create_model = create_model
    monkeypatch.setitem(sys.modules, "timm", module)
    return asked


def test_networks_of_timm(monkeypatch):
    asked = fake_timm(monkeypatch)
    network = make_model("timm:resnet18.a1_in1k", (2, 8, 8), 5)
    assert asked == [("resnet18.a1_in1k", False, 5, 2)] and network(torch.randn(3, 2, 8, 8)).shape == (3, 5)
    with pytest.raises(InputError, match=r"^timm:resnt raised RuntimeError: Unknown model \(resnt\)$"):
        make_model("timm:resnt", (2, 8, 8), 5)
    with pytest.raises(InputError, match=r"^timm:resnet18.a1_in1k needs images; for a table use mlp$"):
        make_model("timm:resnet18.a1_in1k", (9,), 5)


def test_timm_that_is_not_installed_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(InputError, match=r"^timm cannot be import_model .*: pip install timm$"):
        make_model("timm:resnet18", IMAGE, 5)


def test_unknown_names_are_refused_with_the_nearest():
    for wrong, right in (("resnet18", "resnet-18"), ("vgg19", "vgg-19"), ("preact-resnet", "preact-resnet-18")):
        with pytest.raises(InputError, match=f"unknown model '{wrong}': did you mean {right}[?]"):
            make_model(wrong, IMAGE, 10)


def test_the_papers_network_without_dropout():
    torch.manual_seed(0)
    network = make_model("benchmarks.no_dropout:densenet", (3, 32, 32), 10)
    torch.manual_seed(0)
    usual = make_model("densenet-25-12", (3, 32, 32), 10)
    assert all(map(torch.equal, network.parameters(), usual.parameters()))
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(network(x), network(x)) and not torch.equal(usual(x), usual(x))


def test_the_papers_network_as_torch_initialises_it():
    network, usual = (
        make_model(name, (3, 32, 32), 10) for name in ("benchmarks.torch_init:densenet", "densenet-25-12")
    )
    assert type(network) is type(usual) and network.fused
    assert [p.shape for p in network.parameters()] == [p.shape for p in usual.parameters()]
    for layer, other in zip(network.modules(), usual.modules(), strict=True):
        if isinstance(layer, nn.Conv2d | nn.Linear):
            bound = 1 / math.sqrt(layer.weight[0].numel())  # torch draws evenly up to it
            assert 0.9 * bound < layer.weight.abs().max() <= bound < 0.9 * other.weight.abs().max()
