"""Which labels are wrong: scores, estimates and tables, in NumPy alone."""

from labelsieve.audit.estimate import Interval, Noise, estimate_noise, noise_of
from labelsieve.audit.quality import find_label_issues, label_quality

__all__ = ["Interval", "Noise", "estimate_noise", "find_label_issues", "label_quality", "noise_of"]
