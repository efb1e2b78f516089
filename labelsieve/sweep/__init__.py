"""Sweeps: many experiments, run on CPUs, on one GPU or on a cluster, and comparisons of methods.

- sweep: run experiments that are not finished, several at a time.
- watch: the sweep with its progress on the terminal.
- gpu: several experiments at a time on one GPU.
- ray, address: experiments on many machines; the address of a cluster, and whether one answers there.
- embed: the features of a dataset, computed on many machines.
- compare: `labelsieve compare` and `labelsieve demo`.
"""

__all__ = ["address", "compare", "embed", "gpu", "ray", "sweep", "watch"]
