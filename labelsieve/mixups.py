"""When a label counts as mixed up with another class: the same for an audit's verdict and a report's words."""

COMMON = 0.05  # share of a label's samples that seem to be one other class, from which it is worth saying
BOTH_WAYS = 0.25  # as large a share the other way round: two classes that the model itself may not tell apart
