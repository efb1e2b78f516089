"""Every kernel compiles for a GPU; the other tests only interpret them."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton has no wheels for this machine")

ROOT = Path(__file__).parents[2]
FILES = ("labelsieve/models/fused.py", "labelsieve/train/kernels.py")


def kernels_in(path: Path) -> set[str]:
    """Return the functions that Triton compiles and that no other one calls."""
    tree = ast.parse(path.read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    compiled = {each.name for each in functions if any("triton.jit" in ast.unparse(d) for d in each.decorator_list)}
    return compiled - {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


def test_every_kernel_compiles_for_a_gpu_and_its_registers_suffice(tmp_path):
    wanted = set().union(*(kernels_in(ROOT / file) for file in FILES))
    assert {"_backward", "_conv_images", "_decide", "_update"} < wanted and "_conv_tile" not in wanted
    command = [sys.executable, "-m", "benchmarks.compiled", "--capability", "90", "--classes", "100"]
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines() if "| _" in line]
    assert {row[0] for row in rows} == wanted
    for name, launches, _, warps, _, registers, stack, instructions in rows:
        assert int(launches) > 0 and int(warps) in (4, 8, 16, 32) and int(registers) <= 255, name
        assert int(stack) <= 1000 and int(instructions) > 20, name  # registers that do not fit go to slow memory
