"""Copy the records of finished runs, without models, from a folder of runs to results/ or into one archive.

python tools/keep_records.py runs/demo results/demo
python tools/keep_records.py /tmp/runs records.tar       unpack with tar -xf records.tar -C results/cifar10
"""

import shutil
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

KEPT = ("spec.json", "record.jsonl", "done")


def records(source: Path) -> Iterator[Path]:
    """Yield the files of all finished runs."""
    for done in sorted(source.glob("*/done")):
        yield from (done.parent / name for name in KEPT)
        yield from sorted(done.parent.glob("scores-*.safetensors"))


def keep(source: Path, target: Path) -> None:
    """Copy the records into a folder, or into a new archive if the name of the target ends with .tar."""
    files = list(records(source))
    if target.suffix == ".tar":
        with tarfile.open(target, "w") as archive:
            for path in files:
                archive.add(path, path.relative_to(source))
    else:
        for path in files:
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
    print(f"{len({path.parent for path in files})} records in {target}")


if __name__ == "__main__":
    keep(*map(Path, sys.argv[1:]))
