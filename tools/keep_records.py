"""Copy the records of finished runs, without models, from a folder of runs to results/.

python tools/keep_records.py runs/demo results/demo
"""

import shutil
import sys
from pathlib import Path

KEPT = ("spec.json", "record.jsonl", "done")


def main() -> None:
    source, target = map(Path, sys.argv[1:])
    finished = sorted(path.parent for path in source.glob("*/done"))
    for run in finished:
        (target / run.name).mkdir(parents=True, exist_ok=True)
        for name in (*KEPT, *(path.name for path in run.glob("scores-*.safetensors"))):
            shutil.copyfile(run / name, target / run.name / name)
    print(f"{len(finished)} records in {target}")


if __name__ == "__main__":
    main()
