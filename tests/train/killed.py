"""Run a labelsieve command in which one process kills itself (-9) at a given step; torchrun starts it.

torchrun ... tests/train/killed.py RANK STEPS COMMAND...
"""

import os
import signal
import sys
from typing import Any

from labelsieve.cli import main
from labelsieve.train.step import Learner

if __name__ == "__main__":
    rank, steps, *command = sys.argv[1:]
    step, done = Learner.step, 0

    def count_step(self: Learner, *batch: Any) -> Any:
        global done
        if os.environ["RANK"] == rank and done == int(steps):
            os.kill(os.getpid(), signal.SIGKILL)
        done += 1
        return step(self, *batch)

    Learner.step = count_step  # type: ignore[method-assign]
    main(command)
