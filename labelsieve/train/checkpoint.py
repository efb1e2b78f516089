"""Checkpoints: tensors in safetensors, the rest in JSON with a checksum. Nothing is ever unpickled."""

import hashlib
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from labelsieve.files import write_atomically

KEEP = 2  # should the newest be damaged, the one before it is used


class Checkpoints:
    """The newest checkpoints of a run in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, number: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Write the tensors, then the manifest that makes them count, then drop what is too old."""
        self.folder.mkdir(exist_ok=True)
        content = to_bytes(tensors)
        manifest = {"sha256": hashlib.sha256(content).hexdigest(), **facts}
        write_atomically(self._tensors(number), content)
        write_atomically(self._manifest(number), json.dumps(manifest).encode())
        for old in self._numbers()[:-KEEP]:
            self._manifest(old).unlink()
            self._tensors(old).unlink(missing_ok=True)

    def newest(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The newest checkpoint that is whole, or None."""
        for number in reversed(self._numbers()):
            try:
                content = self._tensors(number).read_bytes()
                manifest = json.loads(self._manifest(number).read_bytes())
                if hashlib.sha256(content).hexdigest() == manifest.pop("sha256"):
                    return load(content), manifest
            except (OSError, ValueError, KeyError, SafetensorError):
                pass
            warnings.warn(f"{self._tensors(number)} is damaged; the checkpoint before it is used", stacklevel=2)
        return None

    def clear(self) -> None:
        """Remove the folder: a finished run needs no checkpoint."""
        if self.folder.exists():
            for path in self.folder.iterdir():
                path.unlink()
            self.folder.rmdir()

    def _numbers(self) -> list[int]:
        return sorted(int(path.stem) for path in self.folder.glob("[0-9]*.json"))

    def _tensors(self, number: int) -> Path:
        return self.folder / f"{number:06d}.safetensors"

    def _manifest(self, number: int) -> Path:
        return self.folder / f"{number:06d}.json"


def to_bytes(tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Safetensors of copies: tensors that share memory may not be saved together."""
    return save(on_host(tensors), metadata)


def on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies in the host's memory, with one transfer for all tensors of a type and device."""
    copies: dict[str, Tensor] = {}
    for kind in dict.fromkeys((tensor.dtype, tensor.device) for tensor in tensors.values()):
        same = {name: t.detach() for name, t in tensors.items() if (t.dtype, t.device) == kind}
        flat = torch.cat([tensor.flatten() for tensor in same.values()]).cpu()
        parts = flat.split([tensor.numel() for tensor in same.values()])
        copies |= {name: part.view(same[name].shape) for name, part in zip(same, parts, strict=True)}
    return {name: copies[name].clone() for name in tensors}


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What `prefixed` put under a prefix."""
    return {
        name.removeprefix(f"{prefix}/"): tensor for name, tensor in tensors.items() if name.startswith(f"{prefix}/")
    }
