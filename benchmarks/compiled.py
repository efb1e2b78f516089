"""Compile the kernels of a training step for a GPU that this machine need not have, and list what they need.

    python -m benchmarks.compiled --capability 90

Prints launches per step, registers per thread, bytes of stack (registers that did not fit) and of shared memory, and
machine instructions of each kernel. Tensors are on the CPU and nothing is computed, so this runs without a GPU, but
says nothing about time.
"""

import argparse
import re
import subprocess
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from labelsieve.core.method import Method
from labelsieve.methods import Problem, make
from labelsieve.models import fused
from labelsieve.models.densenet import DenseNet
from labelsieve.runs.tables import markdown
from labelsieve.train import kernels
from labelsieve.train.counters import Meters, Tally
from labelsieve.train.step import Outcome

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
MOMENTUM = {"momentum": 0.9, "weight_decay": 5e-4, "nesterov": True}


@dataclass
class Compiled:
    """A kernel with the settings of a launch."""

    name: str
    grid: tuple[int, ...]  # of the first launch
    kernel: Any
    launches: int = 0

    def resources(self) -> dict[str, int]:
        """Return warps, bytes of shared memory, registers per thread, bytes of stack and machine instructions."""
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(self.kernel.asm["cubin"])
            file.flush()
            usage, code = (_disassembled(option, file.name) for option in ("-res-usage", "-sass"))
        found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
        assert found, usage
        return {
            "warps": self.kernel.metadata.num_warps,
            "shared": self.kernel.metadata.shared,
            "registers": int(found[1]),
            "stack": int(found[2]),
            "instructions": len(re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+[^/\s]", code, re.MULTILINE)),
        }


def _disassembled(option: str, path: str) -> str:
    done = subprocess.run([TOOLS / "cuobjdump", option, path], capture_output=True, text=True, check=True)
    return done.stdout


class _AbsentGPU:
    """Triton's interface to a GPU, as far as compiling needs it."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def compiling(capability: int) -> Iterator[list[Compiled]]:
    """Compile kernels instead of launching them; the list contains each of them once per kind of launch."""
    found: list[Compiled] = []
    launch = JITFunction.run

    def compile_only(function: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = launch(function, *args, grid=grid, warmup=True, **options)
        mine = [each for each in found if each.kernel is kernel]
        if not mine:
            mine = [Compiled(function.__name__, grid, kernel)]
            found.extend(mine)
        mine[0].launches += 1
        return kernel

    with (
        patch.object(driver, "_active", _AbsentGPU(capability)),
        patch.object(JITFunction, "run", compile_only),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", UserWarning)  # Triton announces changes of defaults
        yield found


def network_kernels(capability: int, images: int, classes: int) -> list[Compiled]:
    """Compile the forward and backward pass of a batch of DenseNet(25, 12)."""
    with compiling(capability) as found:
        logits = fused.logits(DenseNet(3, classes), torch.zeros(images, 3, 32, 32))
        logits.backward(torch.zeros_like(logits))
    return found


def evaluation_kernels(capability: int, images: int, classes: int) -> list[Compiled]:
    """Compile the forward pass of DenseNet(25, 12) in evaluation."""
    with compiling(capability) as found, torch.no_grad():
        fused.logits(DenseNet(3, classes).eval(), torch.zeros(images, 3, 32, 32))
    return found


def step_kernels(capability: int, method: Method, count: int, classes: int) -> list[Compiled]:
    """Compile batch, selection, loss, update and statistics of a step of a method with one network."""
    labels = torch.zeros(count, dtype=torch.int64)
    parameter = torch.zeros(1000)
    optimizer = torch.optim.SGD([parameter], torch.tensor(0.1), **MOMENTUM)
    meters, tally = Meters(1, classes, torch.device("cpu")), Tally(method, count, torch.device("cpu"))
    position = torch.tensor(0)
    with compiling(capability) as found:
        index, taken, clean = kernels.take(labels, position, count, labels, labels)
        step = method.step(torch.zeros(1, count, classes), labels)
        if kernels.decides(method, count, classes):
            step, _ = kernels.decide(method, torch.zeros(1, count, classes, dtype=torch.bfloat16), labels)
            kernels.observe(method, step, labels, torch.ones(1, dtype=torch.bool))
        finite, learns = kernels.update([parameter], [[parameter]], [parameter], step, [optimizer])
        kernels.restore(parameter, parameter, learns)
        kernels.count(meters, tally, position, Outcome(step, finite), taken, clean, index)
    return found


def table(found: Sequence[Compiled]) -> str:
    """Return a row per kernel."""
    rows = [["kernel", "launches", "grid", "warps", "shared", "registers", "stack", "instructions"]]
    for each in found:
        grid = " x ".join(str(size) for size in each.grid)
        rows.append([each.name, str(each.launches), grid, *(str(value) for value in each.resources().values())])
    return markdown(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capability", type=int, default=90, help="of the GPU, as two digits. Default: 90, an H200")
    parser.add_argument("--images", type=int, default=128, help="of a batch. Default: 128")
    parser.add_argument("--classes", type=int, default=10, help="Default: 10")
    options = parser.parse_args()
    about = options.capability, options.images, options.classes
    method = make("mentornet-prop", Problem(options.classes, 0.4, 0))
    method.start_epoch(0)
    for title, found in (
        ("Forward and backward pass", network_kernels(*about)),
        ("Forward pass in evaluation", evaluation_kernels(*about)),
        ("The rest of a step of mentornet-prop", step_kernels(options.capability, method, *about[1:])),
    ):
        print(f"{title}\n\n{table(found)}\n")


if __name__ == "__main__":
    main()
