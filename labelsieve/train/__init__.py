"""Training: fit, its settings, its record and its checkpoints."""

from labelsieve.train.checkpoint import Checkpoints
from labelsieve.train.loop import Chosen, Result, fit
from labelsieve.train.protocol import Samples, Training
from labelsieve.train.record import Record

__all__ = ["Checkpoints", "Chosen", "Record", "Result", "Samples", "Training", "fit"]
