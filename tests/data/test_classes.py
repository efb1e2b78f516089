"""Labels of any kind become class indices."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labelsieve.data.classes import encode_labels, missing_labels
from labelsieve.errors import InputError


@pytest.mark.parametrize(
    ("labels", "numbers", "classes"),
    [
        (["dog", "cat", "dog", "eel"], [1, 0, 1, 2], ("cat", "dog", "eel")),
        (["10", "9", "0", "9"], [2, 1, 0, 1], ("0", "9", "10")),
        (["1.0", "0.0", "2.0"], [1, 0, 2], ("0", "1", "2")),
        (["01", "02", "10"], [0, 1, 2], ("01", "02", "10")),
        ([" a", " b", " a"], [0, 1, 0], ("a", "b")),
        (["-1", "1", "1"], [0, 1, 1], ("-1", "1")),
        (["True", "False"], [1, 0], ("False", "True")),
        ([True, False, True], [1, 0, 1], ("false", "true")),
        ([7, 3.0, 7], [1, 0, 1], ("3", "7")),
        (np.array([2, 0, 1], dtype=">u2"), [2, 0, 1], ("0", "1", "2")),
        (np.array([1.0, 0.0]), [1, 0], ("0", "1")),
        (np.array([b"b", b"a"]), [1, 0], ("a", "b")),
        ([2**63 - 1, 0], [1, 0], ("0", str(2**63 - 1))),
    ],
)
def test_labels_of_any_kind_are_encoded(labels, numbers, classes):
    found = encode_labels(labels, "mine")
    assert found[0].tolist() == numbers and found[1] == classes and found[0].dtype == torch.int64


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        (["01", "1", "2"], "'01' and '1' look like one class"),
        (["1.0", "1", "2"], "'1.0' and '1' look like one class"),
        ([" cat", "cat", "dog"], "' cat' and 'cat' look like one class"),
        (["Cat", "dog", "cat"], "'Cat' and 'cat' look like one class"),
        (["caf\u00e9", "cafe\u0301"], "look like one class"),
        (["0", "1", "1.5"], "position 2: label '1.5' is not an integer"),
        ([0.0, 1.5], "position 1: label 1.5 is not an integer"),
        ([0.0, float("inf")], "label inf is not an integer"),
        (["0", "1", "9" * 25], "is too large"),
        (["0", "1", "9" * 9000], "is too large"),
        ([0, 2**63], "is too large"),
        (["0", "1", "cat"], "mix numbers .'0'. and words .'cat'."),
        (["a", 1], "got number and str"),
        (["a", "", "b"], "position 1 has no label"),
        ([float("nan"), 1.0], "position 0 has no label"),
        (["a", "a"], "only the class 'a'"),
        ([], "no labels"),
        ([str(k) for k in range(21)], "seems to be an id"),
        ([1j, 2j], "got complex"),
        ([b"\xff", b"a"], "not UTF-8"),
    ],
)
def test_ambiguous_labels_are_an_error(labels, reason):
    with pytest.raises(InputError, match=reason) as caught:
        encode_labels(labels, "mine")
    assert "mine" in str(caught.value) and len(str(caught.value)) < 300


def test_missing_labels():
    labels = ["", " ", "NA", "N/A", "NaN", "nan", "None", "null", None, float("nan"), "none", "a", 0, False]
    assert missing_labels(labels).tolist() == [True] * 10 + [False] * 4


@given(st.lists(st.sampled_from(["ant", "bee", "cow", "dog"]), min_size=1, max_size=40))
def test_indices_and_names_agree(labels):
    if len(set(labels)) < 2:
        return
    numbers, classes = encode_labels(labels, "mine")
    assert [classes[k] for k in numbers] == labels and list(classes) == sorted(set(labels))
