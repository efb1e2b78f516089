"""labelsieve check: examine every file and row of a dataset, and list what cannot be read."""

from argparse import ArgumentParser, Namespace

from labelsieve.commands import options as shared


def add_arguments(parser: ArgumentParser) -> None:
    shared.add_data(parser)
    shared.add_size(shared.add_columns(parser))


def run(options: Namespace) -> None:
    from labelsieve.data.check import check

    shared.refuse_ambiguous(options.data)
    check(options.data, shared.reading(options, size=options.size))
