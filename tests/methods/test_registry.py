"""The registry of methods: names, options, errors, and a new method in a single file."""

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

import labelsieve
from labelsieve import CriteriaALL, CriteriaOL, CriteriaPL
from labelsieve.catalogue import ORDER, methods, options_of
from labelsieve.core import CRITERIA, Criterion
from labelsieve.methods import METHODS, Problem, make, register
from labelsieve.methods.mentornet import mentornet, mentornet_prop

PACKAGE = Path(labelsieve.__file__).parent
PAGES = Path(__file__).parents[2] / "docs" / "methods"
NEW_METHOD = '''
from labelsieve.core import CriteriaOL, Criterion, CrossEntropy, Method
from labelsieve.methods.problem import MakeCriterion, Problem, register, select_clean


class CriteriaNew(Criterion, name="new"):
    """Criterion in the file of a method."""

    def forward(self, probs, labels, index=None):
        return probs.amax(-1).expand(probs.shape[:-1])


@register("new-method")
def new_method(p: Problem, criterion: MakeCriterion = CriteriaNew, *, strength: float = 2.0) -> Method:
    """Do something new."""
    return Method(CrossEntropy(), select_clean(p, criterion))
'''


def test_a_method_is_added_by_one_file(tmp_path):
    """A copy of the package with one more file in methods/ has one more method and one more criterion."""
    shutil.copytree(PACKAGE, tmp_path / "labelsieve", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "labelsieve" / "methods" / "new.py").write_text(NEW_METHOD)
    listing = output_of("-m", "labelsieve", "methods", cwd=tmp_path)
    assert "new-method      Do something new." in listing and f"{'':16}options: strength=2.0" in listing
    assert "new             Criterion in the file of a method." in listing
    entry = output_of("-m", "labelsieve", "methods", "new-method", cwd=tmp_path)  # it has no page
    assert entry == ["new-method      Do something new.", f"{'':16}options: strength=2.0"]
    code = """if True:
        import labelsieve
        print(labelsieve.__file__, *labelsieve.METHODS, sep="\\n")
        method = labelsieve.SieveLoss("new-method", num_classes=3, noise_rate=0.2, strength=1.0)
        print(type(method.weigh[0].criterion).__name__)
    """
    file, *names, criterion = output_of("-c", code, cwd=tmp_path)
    assert file == str(tmp_path / "labelsieve" / "__init__.py") and criterion == "CriteriaNew"
    assert set(names) == {*METHODS, "new-method"} and names[: len(ORDER)] == list(ORDER)


def output_of(*arguments, cwd):
    """Return the lines that Python prints with the package in this folder."""
    environment = os.environ | {"PYTHONPATH": str(cwd)}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_name_can_be_registered_once():
    with pytest.raises(ValueError, match="'gce' is already registered"):
        register("gce")(METHODS["gce"])


def test_a_subclass_without_a_name_is_not_registered():
    class Unnamed(Criterion):
        pass

    assert Unnamed not in CRITERIA.values()


@pytest.mark.parametrize("name", METHODS)
def test_summary_is_the_first_line_of_the_page(name):
    assert (PAGES / f"{name}.md").read_text(encoding="utf-8").startswith(f"# {name}\n\n{methods()[name].summary}\n")


def test_options_of_a_method_include_those_of_its_criterion():
    assert options_of("mentornet") == {"floor": 0.0, "align": False}
    assert list(options_of("mentornet-prop")) == ["floor", "align", "lam", "update", "compensate"]


FROM_START = {"default", "co-teaching", "co-teaching+", "sl", "gce", "vat", "elr", "sop", "jocor"}
AFTER_WARMUP = {"active-bias", "mentornet", "mentornet-prop", "sl-prop", "selfie", "selfie-prop"}
AFTER_WARMUP |= {"f-correction", "lccn", "dmi", "cores"}


@pytest.mark.parametrize("name", sorted(FROM_START | AFTER_WARMUP))
def test_method_is_active_when_all_its_parts_are(name):
    problem = Problem(5, 0.4, warmup=6, num_samples=9)
    assert make(name, problem).active_from == (0 if name in FROM_START else 6)
    assert make(name, problem, "all").active_from == (0 if name in {"co-teaching", "co-teaching+", "jocor"} else 6)


def test_options_change_the_first_active_epoch():
    problem, no_warmup = Problem(5, 0.4, warmup=6, num_samples=9), Problem(5, 0.4, warmup=0, num_samples=9)
    assert make("gce", problem, k=0.5).active_from == 6
    assert make("gce", problem, k=0.5, prune_from=40).active_from == 40
    assert make("gce", no_warmup, k=0.5, prune_every=10).active_from == 10  # nothing is pruned before the first epoch
    assert make("f-correction", problem, estimate="patrini").active_from == 0  # in the second round
    assert make("f-correction", no_warmup).active_from == make("lccn", no_warmup).active_from == 1


def test_recipes_accept_criteria():
    problem = Problem(5, 0.4, warmup=0)
    logits, labels = torch.randn(20, 5), torch.randint(5, (20,))
    ours, theirs = mentornet(problem, CriteriaALL).step(logits, labels), mentornet_prop(problem).step(logits, labels)
    assert torch.equal(ours.loss, theirs.loss)
    assert mentornet(problem, partial(CriteriaALL, lam=2.0)).weigh[0].criterion.lam == 2.0
    assert isinstance(mentornet(problem).weigh[0].criterion, CriteriaOL)
    assert isinstance(mentornet(problem, CriteriaPL).weigh[0].criterion, CriteriaPL)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"name": "mentornett"}, "did you mean mentornet"),
        ({"name": "mentornet", "criterion": "alll"}, "did you mean all"),
        ({"name": "mentornet", "lam": 1.0}, "mentornet has no option 'lam'; its options: floor, align"),
        ({"name": "mentornet-prop", "lamda": 1.0}, "its options: floor, align, lam, update, compensate"),
        ({"name": "mentornet-prop", "lam": -1.0}, "lam must be a number of at least 0"),
        ({"name": "mentornet-prop", "lam": "much"}, "option lam cannot be 'much'; its default is 1.0"),
        ({"name": "mentornet-prop", "align": "yes"}, "option align cannot be 'yes'; use true or false"),
        ({"name": "mentornet-prop", "criterion": "ol", "lam": 1.0}, "with criterion ol has no option 'lam'"),
        ({"name": "selfie"}, "num_samples"),
        ({"name": "selfie", "rounds": 1.5}, "option rounds cannot be 1.5"),
        ({"name": "selfie", "history": "long"}, "option history cannot be 'long'"),
        ({"name": "selfie", "recompute": 1}, "option recompute cannot be 1"),
        ({"name": "f-correction", "estimate": "guess"}, "stack, patrini"),
        ({"name": "co-teaching", "ramp": 0}, "ramp must be at least 1"),
        ({"name": "gce", "q": 0}, "q must be in"),
        ({"name": "jocor", "agreement": 2}, "agreement must be in"),
    ],
)
def test_invalid_names_and_options_are_an_error(arguments, reason):
    with pytest.raises(ValueError, match=reason):
        make(problem=Problem(5, 0.4), **arguments)
