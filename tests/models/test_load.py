"""Pretrained weights from every file format, networks from user code and networks from timm."""

import math
import pickle
import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from labelsieve.errors import InputError
from labelsieve.models import make_model
from labelsieve.models.load import import_model, load_weights
from tests.models.test_make_model import IMAGE, cached_model

# ---- pretrained weights --------------------------------------------------------------------------------------------


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
def test_load_weights_reads_every_file_format(tmp_path, name):
    weights, network = weights_of(), Tiny(3)
    WRITERS[name](weights, tmp_path / name)
    assert load_weights(network, tmp_path / name) == []
    found = network.state_dict()
    assert found.keys() == weights.keys() and all(torch.equal(found[k], weights[k]) for k in weights)
    network.fc.weight.sum().backward()  # still a parameter
    assert network.fc.weight.grad is not None


def test_load_weights_reads_published_resnet_weights(tmp_path):
    """As published for ImageNet: 1,000 classes, and without batch-norm's counters."""
    weights = {k: v for k, v in cached_model("resnet-18", IMAGE, 1000).state_dict().items() if "num_batches" not in k}
    assert len(weights) == 102
    torch.save(weights, tmp_path / "resnet18.pth")
    torch.manual_seed(3)
    network = make_model("resnet-18", IMAGE, 4)
    first = network.fc.weight.clone()
    assert load_weights(network, tmp_path / "resnet18.pth") == ["fc.weight", "fc.bias"]
    assert torch.equal(network.fc.weight, first)
    assert torch.equal(network.layer4[1].conv2.weight, weights["layer4.1.conv2.weight"])


def test_classifier_of_another_size_or_missing_keeps_its_initial_values(tmp_path):
    for number, weights in enumerate([weights_of(5), {k: v for k, v in weights_of().items() if "fc" not in k}]):
        network, path = Tiny(3), tmp_path / f"{number}.npz"
        first = network.fc.weight.clone()
        write_npz(weights, path)
        assert load_weights(network, path) == ["fc.weight", "fc.bias"]
        assert torch.equal(network.fc.weight, first) and torch.equal(network.conv1.weight, weights["conv1.weight"])


@pytest.mark.parametrize(
    ("name", "layer"), [("mlp", "layers.10"), ("preact-resnet-18", "linear"), ("small", "layers.6")]
)
def test_last_linear_layer_is_the_classifier(tmp_path, name, layer):
    torch.save(make_model(name, IMAGE, 6).state_dict(), tmp_path / "a.pth")
    assert load_weights(make_model(name, IMAGE, 3), tmp_path / "a.pth") == [f"{layer}.weight", f"{layer}.bias"]


def test_half_precision_weights_are_converted(tmp_path):
    half = {k: v.half() if v.is_floating_point() else v for k, v in weights_of().items()}
    save_file(half, tmp_path / "a.safetensors")
    network = Tiny(3)
    load_weights(network, tmp_path / "a.safetensors")
    assert network.conv1.weight.dtype == torch.float32
    assert torch.equal(network.conv1.weight, half["conv1.weight"].float())


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (weights_of(extra=torch.ones(2)), "extra is in the file but not in the network; use weights of the same"),
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
        (weights_of(bn1__bias=torch.tensor([0, 0, math.nan, 0])), "bn1.bias contains values that are not finite"),
        (weights_of(bn1__bias=torch.full((4,), math.inf)), "bn1.bias contains values that are not finite"),
        (weights_of(note="text"), "'note' is not a dense tensor"),
        (weights_of(conv1__bias=torch.ones(4).to_sparse()), "'conv1.bias' is not a dense tensor"),
        ([torch.ones(2)], "contains no named weights"),
        ({}, "contains no named weights"),
        (torch.ones(2), "contains no named weights"),
    ],
)
def test_weights_that_do_not_fit_are_rejected_and_nothing_changes(tmp_path, weights, message):
    network, path = Tiny(3), tmp_path / "a.pth"
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    torch.save(weights, path)
    with pytest.raises(InputError, match=message) as caught:
        load_weights(network, path)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


class Canary:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (eval, (f"open({str(self.path)!r}, 'w').close()",))


@pytest.mark.parametrize("kind", ["zip", "legacy", "pickle", "npz"])
@pytest.mark.parametrize("forced", ["0", "1"])
def test_files_are_never_executed(tmp_path, monkeypatch, kind, forced):
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
    with pytest.raises(InputError, match=r"contains (objects other than tensors|pickled objects)") as caught:
        load_weights(Tiny(3), path)
    assert "\n" not in str(caught.value) and not trace.exists()
    if kind == "pickle":
        pickle.loads(path.read_bytes())
        assert trace.exists()  # the canary works


def test_pickled_network_is_rejected(tmp_path):
    torch.save(Tiny(3), tmp_path / "a.pth")
    with pytest.raises(InputError, match=r"save only network.state_dict\(\)"):
        load_weights(Tiny(3), tmp_path / "a.pth")


@pytest.mark.parametrize("name", ["a.safetensors", "a.npz", "a.pth", "legacy.pth"])
@pytest.mark.parametrize("keep", [0, 7, 0.5, 0.98])
def test_truncated_file_is_rejected(tmp_path, name, keep):
    path = tmp_path / name
    WRITERS[name](weights_of(), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * keep) if keep < 1 else keep])
    with pytest.raises(InputError, match=f"cannot read .*{name}: ") as caught:
        load_weights(Tiny(3), path)
    assert "\n" not in str(caught.value)


def test_missing_and_unsupported_files_are_rejected(tmp_path):
    (tmp_path / "a.onnx").write_bytes(b"x")
    for name in ("a.onnx", "b.pth", "."):
        with pytest.raises(InputError, match=r"a \.safetensors, \.npz, \.pth or \.pt file"):
            load_weights(Tiny(3), tmp_path / name)


# ---- networks from user code ---------------------------------------------------------------------------------------

USER_MODULE = """
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

def no_arguments():
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

def three_required(shape, num_classes, depth):
    return both(shape, num_classes)

def reversed_order(num_classes, width):
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

finished = no_arguments()
size = 5
"""


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    """Make a folder with a user module the current folder."""
    (tmp_path / "user_networks.py").write_text(USER_MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize(
    "name", ["both", "by_place", "only_classes", "named", "open_ended", "no_arguments", "Network", "Holder.make"]
)
def test_user_factories_are_called_by_their_signature(user_module, name):
    network = make_model(f"user_networks:{name}", (3, 5, 4), 4)
    assert network.training and network(torch.randn(2, 3, 5, 4)).shape == (2, 4)


def test_user_factory_in_a_package_accepts_tables(user_module):
    (user_module / "package").mkdir()
    (user_module / "package" / "__init__.py").write_text("")
    (user_module / "package" / "deep.py").write_text("from user_networks import both as net\n")
    assert import_model("package.deep:net")((6,), 4)(torch.randn(2, 6)).shape == (2, 4)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("user_network:both", "there is no module 'user_network': did you mean user_networks[?]"),
        ("user_networks.py:both", "there is no module 'user_networks.py': did you mean user_networks[?]"),
        ("./user_networks.py:both", "write package.module:factory, did you mean user_networks[?]"),
        ("zzzz.q:both", "there is no module 'zzzz': put its file into .* or install it"),
        ("user_networks:bth", "user_networks has no 'bth': did you mean both[?]"),
        ("user_networks:", "write package.module:factory"),
        (":both", "write package.module:factory"),
        (
            "user_networks:size",
            "size is of type int: name the function or class that creates the network",
        ),
        ("user_networks:finished", "is a network instance: name the function or class"),
        ("user_networks:number", "user_networks:number returned an object of type int, a torch.nn.Module is needed"),
        ("user_networks:nothing", "returned None, a torch.nn.Module is needed"),
        ("user_networks:raises", r"user_networks:raises raised KeyError: 'no\\nweights'"),
        ("user_networks:ten", r"outputs \(1, 10\) for a batch of shape \(1, 3, 5, 4\), \(1, 4\) is needed"),
        ("user_networks:Pair", r"outputs an object of type tuple for a batch"),
        ("user_networks:Narrow", r"fails on a batch of shape \(1, 3, 5, 4\): RuntimeError: mat1 and mat2"),
        ("user_networks:three_required", "requires shape, num_classes, depth; it is called as factory"),
        ("user_networks:reversed_order", "requires num_classes, width; it is called as factory"),
        ("broken:net", "importing broken raised SyntaxError"),
        ("needy:net", "needy needs 'not_installed_anywhere', which is not installed"),
        ("leaves:net", "importing leaves raised SystemExit: 2"),
    ],
)
def test_errors_of_user_networks_are_one_line(user_module, spec, message):
    (user_module / "broken.py").write_text("def net(:\n")
    (user_module / "needy.py").write_text("import not_installed_anywhere\n")
    (user_module / "leaves.py").write_text("raise SystemExit(2)\n")
    with pytest.raises(InputError, match=message) as caught:
        make_model(spec, (3, 5, 4), 4)
    assert "\n" not in str(caught.value)


def install_fake_timm(monkeypatch):
    """Install a stand-in for timm and return the list of its calls."""
    module, calls = ModuleType("timm"), []

    def create_model(name, pretrained, num_classes, in_chans):
        calls.append((name, pretrained, num_classes, in_chans))
        if name != "resnet18.a1_in1k":
            raise RuntimeError(f"Unknown model ({name})")
        return nn.Sequential(nn.Conv2d(in_chans, num_classes, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    module.create_model = create_model
    monkeypatch.setitem(sys.modules, "timm", module)
    return calls


def test_timm_models(monkeypatch):
    calls = install_fake_timm(monkeypatch)
    network = make_model("timm:resnet18.a1_in1k", (2, 8, 8), 5)
    assert calls == [("resnet18.a1_in1k", False, 5, 2)] and network(torch.randn(3, 2, 8, 8)).shape == (3, 5)
    with pytest.raises(InputError, match=r"^timm:resnt raised RuntimeError: Unknown model \(resnt\)$"):
        make_model("timm:resnt", (2, 8, 8), 5)
    with pytest.raises(InputError, match=r"^timm:resnet18.a1_in1k needs images; for a table use mlp$"):
        make_model("timm:resnet18.a1_in1k", (9,), 5)


def test_missing_timm_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(InputError, match=r"^timm cannot be imported .*: pip install timm$"):
        make_model("timm:resnet18", IMAGE, 5)
