"""Files of an audit that a review reads."""

import json

import pytest

from labelsieve.errors import InputError
from labelsieve.review.suspects import read_gallery, read_judged

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


def test_cut_table_of_labels_is_refused_without_its_seal(run):
    assert len(read_judged(run)) == 40
    path = run / "audit" / "labels.csv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:30]))
    with pytest.raises(InputError, match=r"labels\.csv has 29 rows, unlike summary\.json; run labelsieve audit"):
        read_judged(run)


def test_table_of_labels_with_a_sample_twice_is_refused(run):
    path = run / "audit" / "labels.csv"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:-1], lines[1]]))
    (run / "audit" / "sha256sums").unlink(missing_ok=True)
    with pytest.raises(InputError, match=r"labels\.csv contains a sample twice; run labelsieve audit"):
        read_judged(run)


def test_gallery_is_read_in_its_order(run):
    assert [sample.index for sample in read_gallery(run)] == [*reversed(range(5, 40))]


def test_a_loop_of_links_is_no_image_outside_of_the_audit(run):
    (run / "audit" / "thumbs").mkdir(exist_ok=True)
    (run / "audit" / "thumbs" / "loop.webp").symlink_to("loop.webp")
    (run / "audit" / "gallery.jsonl").write_text(json.dumps({**SAMPLE, "image": "thumbs/loop.webp"}) + "\n")
    assert read_gallery(run)[0].image == run / "audit" / "thumbs" / "loop.webp"
