"""publish: a table in one of the formats, on the terminal or in a file."""

import sys
from pathlib import Path

from labelsieve.errors import InputError, nearest
from labelsieve.files import write_atomically
from labelsieve.report.formats import FORMATS, Document, written


def refuse_unwritable(form: str, save: Path | None) -> None:
    """Refuse at once what would otherwise fail after hours."""
    if form not in FORMATS:
        raise InputError(f"unknown format {form!r}: {nearest(form, FORMATS)}")
    if save is not None and (save.is_dir() or not save.absolute().parent.is_dir()):
        raise InputError(f"cannot write {save}: its folder is not there, or it is one itself")


def publish(document: Document, form: str, save: Path | None) -> None:
    """Write it, and say where if that is not the terminal."""
    text = written(document, form)
    if save is None:
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        write_atomically(save, text.encode())
        print(f"table: {save}")
