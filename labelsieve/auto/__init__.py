"""Automatic training and audits: the noise rate is estimated, the labels are judged and corrected.

- plan: the stages of an automatic training, and the trainings in each
- judge: which finished trainings judge the labels of a run, and the noise that they estimate
- train: work through the stages
- audit: the audit of a finished run
- pred_probs: the audit of labels and predicted probabilities from files
- samples: thumbnails, texts and rows that show single samples
"""

__all__ = ["audit", "judge", "plan", "pred_probs", "samples", "train"]
