"""Labelled data, wherever it comes from."""

from labelsieve.data.resident import Labelled
from labelsieve.data.source import DATASETS, Reading, Sets, Trainable, load_data

__all__ = ["DATASETS", "Labelled", "Reading", "Sets", "Trainable", "load_data"]
