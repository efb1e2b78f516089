"""Automatic training and audits: the noise rate is estimated, the labels are judged and corrected.

- plan: the stages of an automatic training, and the trainings in each
- heads: the stage in which linear heads judge all labels by features
- judge: which finished trainings judge the labels of a run, and the noise that they estimate
- request: what to train, given the options and the data
- train: work through the stages
- forecast: the cost of an automatic training
- audit: the audit of a finished run, and its score where noise was added
- files: the audit of labels, and of predicted probabilities or features, from files
- samples: thumbnails, texts and rows that show single samples
"""

__all__ = ["audit", "files", "forecast", "heads", "judge", "plan", "request", "samples", "train"]
