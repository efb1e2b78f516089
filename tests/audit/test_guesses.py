"""Guesses: reading of large tables, rejected input, and decided labels."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelsieve import estimate_noise, find_label_issues, label_quality
from labelsieve.audit import guesses
from labelsieve.audit.guesses import descending, guesses_from_probs, with_decided
from labelsieve.audit.quality import CRITERIA
from labelsieve.errors import InputError
from labelsieve.noise import pair
from tests.audit.simulated import true_class_predictions


def test_large_file_is_read_once_in_chunks(tmp_path, monkeypatch):
    labels, probs, _ = true_class_predictions(lambda k: pair(k, 0.3), count=3000)
    path = tmp_path / "probs.npy"
    np.save(path, probs.astype(np.float16))
    whole = label_quality(labels, np.load(path))
    read = []

    class Watched(np.memmap):
        def __getitem__(self, rows):
            if isinstance(rows, slice):
                read.append(rows)
            return super().__getitem__(rows)

    monkeypatch.setattr(guesses, "CHUNK", 1000)
    mapped = np.load(path, mmap_mode="r").view(Watched)
    read.clear()
    np.testing.assert_array_equal(label_quality(labels, mapped), whole)
    assert sorted((rows.start, rows.stop) for rows in read) == [(first, first + 100) for first in range(0, 3000, 100)]


def resident_file_mb():
    """Return the size of the mapped files that this process holds in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("RssFile"))) / 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_mapped_file_is_released_from_memory(tmp_path):
    path = tmp_path / "probs.npy"
    table = np.lib.format.open_memmap(path, "w+", np.float16, (200_000, 100))  # 40 MB
    table[:] = 0.01
    del table
    mapped = np.load(path, mmap_mode="r")
    before = resident_file_mb()
    found = guesses_from_probs(np.zeros(200_000, int), mapped)
    assert resident_file_mb() - before < 20
    assert mapped[0, 0] == np.float16(0.01) and len(found) == 200_000


GOOD = np.array([[0.5, 0.5], [0.9, 0.1], [0.2, 0.8]])


@pytest.mark.parametrize(
    ("labels", "probs", "message"),
    [
        ([0, 1], GOOD, "2 labels but 3 rows of pred_probs"),
        ([0, 1, 2], GOOD, "label 2 at position 2 is out of range"),
        ([0, -1, 1], GOOD, "label -1 at position 1 is out of range"),
        ([0.0, 1.0, 1.0], GOOD, "array of integers"),
        ([0, 1, 1], GOOD[:, 0], "shape \\(samples, classes\\)"),
        ([0, 1, 1], GOOD.astype(int), "must be floats"),
        ([0, 0, 0], np.ones((3, 1)), "one column"),
        ([], np.ones((0, 2)), "are empty"),
        ([0, 1, 1], GOOD * [[1], [np.nan], [1]], "row 1 of pred_probs has a value that is not finite"),
        ([0, 1, 1], GOOD * 2.7, "row 0 of pred_probs does not sum to 1"),
        ([0, 1, 1], GOOD + np.array([[0, 0], [0, 0], [1, -1]]), "row 2 of pred_probs has a probability below 0"),
    ],
)
def test_invalid_input_raises_one_line(labels, probs, message):
    labels = np.array(labels, dtype=int) if not labels else np.array(labels)
    for call in (label_quality, find_label_issues, estimate_noise):
        with pytest.raises(InputError, match=message) as caught:
            call(labels, probs)
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match=message):
        label_quality(labels, probs, criterion="all")


@given(st.integers(2, 7), st.integers(0, 10_000))
def test_decided_labels_are_certain(classes, seed):
    random = np.random.default_rng(seed)
    labels, decided = random.integers(classes, size=20), random.random(20) < 0.5
    guesses = guesses_from_probs(labels, random.dirichlet(np.ones(classes), 20).astype(np.float32))
    sure = with_decided(guesses, decided)
    assert (sure.confidence[decided] == 1).all() and (sure.likeliest[decided, 0] == labels[decided]).all()
    assert (sure.likelihood[decided].sum(1) == 1).all()
    assert all(len(set(row)) == len(row) and max(row) < classes for row in sure.likeliest.tolist())
    for name in ("confidence", "likeliest", "likelihood"):
        assert (getattr(sure, name)[~decided] == getattr(guesses, name)[~decided]).all()


@given(st.integers(1, 7), st.integers(1, 40), st.integers(0, 10**6))
def test_descending_is_a_stable_sort(kept, samples, seed):
    random = np.random.default_rng(seed)
    classes = np.stack([random.permutation(kept + 3)[:kept] for _ in range(samples)], 1)
    likelihood = random.choice([0.0, 0.1, 0.25, 0.25, 1.0], (kept, samples)).astype(np.float32)
    order = np.argsort(-likelihood, axis=0, kind="stable")
    found = descending(classes, likelihood)
    np.testing.assert_array_equal(found[0], np.take_along_axis(classes, order, 0))
    np.testing.assert_array_equal(found[1], np.take_along_axis(likelihood, order, 0))


@pytest.mark.parametrize("classes", [3, 7, 60])
def test_most_likely_classes_match_a_sort(classes):
    random = np.random.default_rng(classes)
    probs = random.dirichlet(np.full(classes, 0.5), 300).astype(np.float32)
    labels = random.integers(0, classes, 300)
    found = guesses_from_probs(labels, probs)
    order = np.argsort(-probs, axis=1)[:, :5]
    np.testing.assert_array_equal(found.likeliest, order)
    np.testing.assert_array_equal(found.likelihood, np.take_along_axis(probs, order, 1))
    np.testing.assert_array_equal(found.confidence, probs[np.arange(300), labels])


def test_threads_do_not_change_results_and_the_first_error_counts(monkeypatch):
    random = np.random.default_rng(0)
    labels, probs = random.integers(0, 7, 30_000), random.dirichlet(np.full(7, 0.3), 30_000)
    results = []
    for cores in (1, 3):
        monkeypatch.setattr("labelsieve.audit.guesses.usable_cores", lambda cores=cores: cores)
        monkeypatch.setattr("labelsieve.audit.guesses.CHUNK", 7 * 4000)
        results.append([label_quality(labels, probs, criterion=each) for each in CRITERIA])
        bad = probs.copy()
        bad[[9000, 25_000]] = np.nan
        with pytest.raises(InputError, match="row 9000 of pred_probs has a value that is not finite"):
            label_quality(labels, bad)
    np.testing.assert_array_equal(*results)


def test_guesses_about_some_samples_are_replaced():
    probs = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]])
    guesses = guesses_from_probs(np.array([0, 0, 2]), probs)
    where = np.array([False, True, False])
    other = guesses_from_probs(np.array([0]), np.array([[0.5, 0.3, 0.2]]))
    merged = guesses.replaced(where, other)
    assert merged.confidence.tolist() == pytest.approx([0.7, 0.5, 0.6])
    assert merged.likeliest[1].tolist() == [0, 1, 2] and merged.likeliest[:, 0].tolist() == [0, 0, 2]
    assert guesses.confidence.tolist() == pytest.approx([0.7, 0.1, 0.6]) and merged.labels is guesses.labels
