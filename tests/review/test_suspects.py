"""Files of an audit that a review reads."""

import json

import pytest

from labelsieve.errors import InputError
from labelsieve.review.suspects import read_gallery

SAMPLE = {"index": 1, "id": "a", "given_label": "cat", "suggested_label": "dog", "label_quality": 0.5}


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"index": true, "id": "a", "given_label": "cat", "suggested_label": "dog"}', '{"index": 1}']
)
def test_damaged_line_of_the_gallery_is_named(run, line):
    path = run / "audit" / "gallery.jsonl"
    path.write_text(f"{path.read_text()}{line}\n")
    with pytest.raises(InputError, match=r"gallery\.jsonl:36 is not a sample"):
        read_gallery(run)


@pytest.mark.parametrize("value", [None, "high", float("nan")])
def test_label_quality_must_be_a_finite_number(run, value):
    (run / "audit" / "gallery.jsonl").write_text(json.dumps({**SAMPLE, "label_quality": value}) + "\n")
    with pytest.raises(InputError, match=r"gallery\.jsonl:1 is not a sample"):
        read_gallery(run)


def test_gallery_is_read_in_its_order(run):
    assert [sample.index for sample in read_gallery(run)] == [*reversed(range(5, 40))]
