"""The catalogue, which reads the source, agrees with the methods and criteria that Python has imported."""

import inspect
import subprocess
import sys

import pytest

from labelsieve import catalogue
from labelsieve.core import CRITERIA
from labelsieve.errors import InputError
from labelsieve.methods import METHODS, keywords, make
from labelsieve.methods.problem import Problem
from labelsieve.noise import KINDS
from tests.conftest import LONG_WAIT


def test_methods_are_those_that_are_registered():
    assert list(catalogue.methods()) == list(METHODS)
    for name, entry in catalogue.methods().items():
        recipe = METHODS[name]
        own = inspect.signature(recipe).parameters["criterion"].default
        assert entry.summary == " ".join(inspect.getdoc(recipe).split("\n\n")[0].split())
        assert catalogue.options_of(name) == keywords(recipe) | keywords(own)


def test_criteria_are_those_that_are_registered():
    assert list(catalogue.criteria()) == list(CRITERIA)
    for name, entry in catalogue.criteria().items():
        assert entry.summary == " ".join(CRITERIA[name].__doc__.split("\n\n")[0].split())
        assert entry.options == keywords(CRITERIA[name])


def test_kinds_of_noise_are_those_that_exist():
    assert list(catalogue.NOISES) == list(KINDS)


@pytest.mark.parametrize("criterion", [None, *CRITERIA])
@pytest.mark.parametrize("method", METHODS)
def test_unknown_options_are_those_that_make_refuses(method, criterion):
    problem = Problem(3, 0.2, num_samples=4)
    for option in ("lam", "update", "floor", "rounds", "nothing"):
        try:
            catalogue.refuse_unknown(method, criterion, [option])
            error = ""
        except InputError as refused:
            error = str(refused)
        value = {**catalogue.options_of(method), **keywords(CRITERIA.get(criterion))}.get(option, 1.0)
        if error:
            with pytest.raises(InputError) as raised:
                make(method, problem, criterion, **{option: value})
            assert str(raised.value) == error
        else:
            make(method, problem, criterion, **{option: value})


def test_an_expression_as_a_default_is_shown_as_text():
    assert catalogue._value(catalogue.ast.parse("2 * LIMIT", mode="eval").body) == "2 * LIMIT"


def test_methods_command_does_not_import_torch():
    code = "import sys; from labelsieve.cli import execute; execute(['methods']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LONG_WAIT)
    assert done.returncode == 0 and "mentornet-prop" in done.stdout
