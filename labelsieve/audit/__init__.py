"""Audits: which labels of a dataset are probably wrong, and how many. In NumPy, without torch.

guesses: predicted probabilities, reduced to the most likely classes of each sample.
posterior: the probability that each label is correct, and unmixing of predicted labels into true classes.
estimate: noise rate and noise matrix from the predictions for all samples, if errors depend on the class.
explain: true classes and noise that explain out-of-sample predictions; errors may depend on the sample.
held_out: noise rate and noise matrix from the predictions for held-out samples.
quality: the quality of labels, from the probabilities of any classifier.
others: near-duplicates and outliers, issues besides wrong labels.
findings: the judgment of every label, with reasons and a verdict in words.
map: the samples as points of the plane, from their features.
files: the files of an audit, its exports for other tools, and the summary on the terminal.
"""

from labelsieve.audit.estimate import Interval, Noise

__all__ = ["Interval", "Noise"]
