"""The commands: `labelsieve X` is defined in commands/X.py; those that reproduce the paper are in commands/paper.py.

Each module has `add_arguments(parser)` and `run(options)`. What a command needs is imported when it runs, so that
--help is fast. `COMMANDS` lists all commands with the line that `labelsieve --help` shows.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

COMMANDS = {
    "train": "Train a model that is robust to wrong labels.",
    "audit": "List the labels that are probably wrong, from a run, predicted probabilities or features.",
    "review": "Review the suspect labels of a run in the browser.",
    "report": "Write one HTML page about a run or an audit, or several runs side by side.",
    "predict": "Classify samples with the model of a run.",
    "export": "Write the model of a run as ONNX, torch.export or Hugging Face files, and check it.",
    "embed": "Compute the features of images or texts with a pretrained network.",
    "check": "Examine every file and row of a dataset and list what cannot be read.",
    "methods": "List the methods, their options and the criteria, or show the page of a method.",
    "noise": "Write noisy labels for a dataset.",
    "compare": "Train several methods over several seeds and compare their test errors.",
    "table": "Reproduce a table of the paper.",
    "figure": "Reproduce a figure of the paper.",
    "results": "Update the results page from the committed records.",
    "demo": "Compare methods on the embedded images, or find wrong labels of embedded photographs.",
}


class Command(NamedTuple):
    """The functions that define the options of a command, and run it."""

    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], None]


def find_command(name: str) -> Command:
    """Import the module of a command."""
    if name in ("table", "figure", "results"):
        return import_module("labelsieve.commands.paper").PAPER[name]
    module = import_module(f"labelsieve.commands.{name}")
    return Command(module.add_arguments, module.run)


__all__ = ["COMMANDS", "Command", "find_command"]
