"""Checkpoints: tensors in safetensors, the rest in JSON with a checksum. Nothing is ever unpickled."""

import hashlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from labelsieve.files import disk_error, write_atomically

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


Row = dict[str, Any]


class Record:
    """Appends whole lines; a line that a crash cut short is not read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, row: Row) -> None:
        line = json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n"
        try:
            with self.path.open("ab") as file:
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise disk_error(self.path, error) from error

    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def cut(self, size: int) -> None:
        """Forget what was written after the file had this size."""
        if self.path.exists():
            os.truncate(self.path, size)

    def rows(self) -> list[Row]:
        return list(read_rows(self.path))


def read_rows(path: Path) -> Iterator[Row]:
    """The whole lines of a record."""
    if path.exists():
        for line in path.read_bytes().split(b"\n")[:-1]:
            yield json.loads(line)
