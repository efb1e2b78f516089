"""Training of one or several networks with a method.

* ``settings``: ``Training``, the settings of a training, and ``Samples``, the interface of labelled data.
* ``loop``: ``fit``, the training loop, with its result, progress and signals.
* ``step``: ``Learner``, one training step; an update that is not finite is undone.
* ``kernels``: Triton kernels for the small work of a step on a GPU.
* ``share``: one training in several processes, and batch-norm over all of them.
* ``graph``: ``GraphRecorder``, which replays steps as CUDA graphs.
* ``counters``: ``Meters`` and ``Tally``, statistics per epoch and per sample, kept on the device.
* ``evaluate``: predictions, error rates and per-sample scores in eval mode.
* ``augment``: ``Augment``, random image augmentation on the device.
* ``checkpoint``: ``Checkpoints`` and ``Record``, the files from which a training resumes.
"""

from labelsieve.train.checkpoint import Checkpoints, Record
from labelsieve.train.loop import ChosenEpoch, Result, StopFlag, Watcher, Watchers, fit
from labelsieve.train.settings import Samples, Training

__all__ = [
    "Checkpoints",
    "ChosenEpoch",
    "Record",
    "Result",
    "Samples",
    "StopFlag",
    "Training",
    "Watcher",
    "Watchers",
    "fit",
]
