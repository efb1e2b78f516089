"""Adapters whose library is not installed say how to install it."""

import importlib
import sys

import pytest

ADAPTERS = {"lightning": "lightning", "huggingface": "transformers", "sklearn": "sklearn"}


@pytest.mark.parametrize(("extra", "library"), ADAPTERS.items())
def test_missing_library_is_named_with_its_extra(monkeypatch, extra, library):
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, f"labelsieve.integrations.{extra}", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Hidden(library), *sys.meta_path])
    with pytest.raises(ModuleNotFoundError, match=rf"pip install 'labelsieve\[{extra}\]'$") as raised:
        importlib.import_module(f"labelsieve.integrations.{extra}")
    assert raised.value.name.startswith(library)


class Hidden:
    """Finds modules before Python does, and refuses those of a library."""

    def __init__(self, library):
        self.library = library

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == self.library:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
