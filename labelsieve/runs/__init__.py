"""The run folder: what a run is (spec), its data, its folder and record, reading, finding and executing it.

- spec: Experiment, the complete specification of a run
- data: datasets shared by the runs of a process, and the sets of an experiment
- folder: RunFolder, locked while it is written
- record: spec.json and record.jsonl, read and checked
- read: finished and unfinished runs, without torch
- find: finished runs by specification; descriptions of unfinished ones
- tables: comparisons of finished runs as text, Markdown, LaTeX and CSV
- track: TensorBoard, Weights & Biases and MLflow, fed from the record
- team: the processes that torchrun started for one command
- execute: prepare and run an experiment
"""

__all__ = ["data", "execute", "find", "folder", "read", "record", "spec", "tables", "team", "track"]
