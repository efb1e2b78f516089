"""Files from which a training resumes: checkpoints and the record; nothing is ever unpickled."""

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from labelsieve.errors import warn_of_damage
from labelsieve.files import digest_of, disk_error, parse_json, write_atomically

KEEP = 2  # checkpoints; the older one is used if the newer one is damaged

Row = dict[str, Any]  # one line of a record


class Checkpoints:
    """The newest checkpoints of a run in their own folder: .safetensors files, and JSON manifests with the facts.

    A manifest has one digest over tensors and facts. A damaged checkpoint is not used; the one before it is.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, number: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Write tensors, then a manifest with the facts that makes them valid, then delete older checkpoints."""
        self.folder.mkdir(exist_ok=True)
        content = serialize_tensors(tensors)
        manifest = {"digest": digest_of(content, json.dumps(facts).encode()), **facts}
        write_atomically(self._tensors(number), content)
        write_atomically(self._manifest(number), json.dumps(manifest).encode())
        for old in self._numbers()[:-KEEP]:
            self._manifest(old).unlink()
            self._tensors(old).unlink(missing_ok=True)

    def newest(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the tensors and facts of the newest undamaged checkpoint, or None."""
        for number in reversed(self._numbers()):
            try:
                return self._read(number)
            except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError):
                warn_of_damage(f"{self._tensors(number)} is damaged; using the checkpoint before it")
        return None

    def _read(self, number: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return tensors and facts; raise an error if they are not those that were saved."""
        content = self._tensors(number).read_bytes()
        facts = parse_json(self._manifest(number).read_bytes())
        if facts.pop("digest") != digest_of(content, json.dumps(facts).encode()):
            raise ValueError("the digest differs")
        return load(content), facts

    def clear(self) -> None:
        """Delete the folder; another process may be doing the same."""
        for path in self.folder.glob("*"):
            path.unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            self.folder.rmdir()

    def _numbers(self) -> list[int]:
        names = (path.name for path in self.folder.glob("*.json"))
        return sorted(int(name.removesuffix(".json")) for name in names if re.fullmatch(r"[0-9]{6,9}\.json", name))

    def _tensors(self, number: int) -> Path:
        return self.folder / f"{number:06d}.safetensors"

    def _manifest(self, number: int) -> Path:
        return self.folder / f"{number:06d}.json"


class Record:
    """A file of JSON lines that is only appended to; `labelsieve.runs.record` reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, row: Row) -> None:
        """Append one line and flush it to the disk."""
        line = json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n"
        try:
            with self.path.open("ab") as file:
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise disk_error(self.path, error) from error

    def text(self) -> str:
        """Return everything that was appended."""
        return self.path.read_text(encoding="utf-8") if self.path.exists() else ""

    def restore(self, text: str) -> None:
        """Replace the content by an earlier one."""
        write_atomically(self.path, text.encode())

    def clear(self) -> None:
        """Remove everything that was appended."""
        if self.path.exists():
            os.truncate(self.path, 0)


def serialize_tensors(tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Return tensors in the safetensors format; they may share memory."""
    copies: dict[str, Tensor] = {}
    for kind in dict.fromkeys((tensor.dtype, tensor.device) for tensor in tensors.values()):
        same = {name: t.detach() for name, t in tensors.items() if (t.dtype, t.device) == kind}
        flat = torch.cat([tensor.flatten() for tensor in same.values()]).cpu()  # one transfer
        parts = flat.split([tensor.numel() for tensor in same.values()])
        copies |= {name: part.view(same[name].shape) for name, part in zip(same, parts, strict=True)}
    return save({name: copies[name].clone() for name in tensors}, metadata)


def add_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors under the names prefix/name."""
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def select_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that `add_prefix` stored under a prefix, under their original names."""
    start = f"{prefix}/"
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}
