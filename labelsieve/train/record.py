"""Record: the run's story, one JSON object a line."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from labelsieve.files import disk_error

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
