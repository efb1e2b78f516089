"""Labelled data, wherever it comes from."""

from labelsieve.data.load import DATASETS, Reading, Sets, Trainable, load_data, source_fingerprint
from labelsieve.data.sets import Labelled

__all__ = ["DATASETS", "Labelled", "Reading", "Sets", "Trainable", "load_data", "source_fingerprint"]
