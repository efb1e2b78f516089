"""Training: fit, its settings, its record and its checkpoints."""

from labelsieve.train.checkpoint import Checkpoints, Record
from labelsieve.train.loop import Chosen, Result, fit
from labelsieve.train.settings import Samples, Training

__all__ = ["Checkpoints", "Chosen", "Record", "Result", "Samples", "Training", "fit"]
