"""Symmetric cross-entropy."""

import pytest

from labelsieve.methods.sl import SymmetricCrossEntropy
from tests.methods.loops import loss_of_sample


def test_value_computed_by_hand():
    """p = (.7, .2, .1), label 0: CE .35667, reverse CE 2.76310."""
    assert loss_of_sample(SymmetricCrossEntropy(1, 0), [0.7, 0.2, 0.1], 0) == pytest.approx(0.35667, abs=1e-5)
    assert loss_of_sample(SymmetricCrossEntropy(0, 1), [0.7, 0.2, 0.1], 0) == pytest.approx(2.76310, abs=1e-5)
    assert loss_of_sample(SymmetricCrossEntropy(2, 0.5), [0.7, 0.2, 0.1], 0) == pytest.approx(
        2 * 0.35667 + 0.5 * 2.7631, abs=1e-4
    )
