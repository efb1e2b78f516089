"""The paper's experiments: its tables and figures, reproduced and compared with the printed numbers.

- tables: every cell of the paper's tables with its experiment.
- comparison: our numbers next to the printed ones, as rows of tables.
- reproduce: `labelsieve table`.
- figures, draw: `labelsieve figure`: the runs behind each figure, and drawing with matplotlib.
- noise_files: `labelsieve noise --paper`: the noisy labels of every cell.
- results: `labelsieve results`, which updates docs/results.md from the records.
"""

__all__ = ["comparison", "draw", "figures", "noise_files", "reproduce", "results", "tables"]
