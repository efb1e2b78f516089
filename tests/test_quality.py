"""label_quality, find_label_issues and estimate_noise with predicted probabilities or with features."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import labelsieve
from labelsieve.audit.quality import judge_labels
from labelsieve.errors import InputError
from labelsieve.features.judge import judge_features


@pytest.fixture(scope="module")
def clusters():
    """Return features (240, 8) of three separable clusters, labels of which 48 are wrong, and which are."""
    random = np.random.default_rng(0)
    true = np.arange(240) % 3
    wrong = np.arange(240) % 5 == 0
    features = 5 * np.eye(3, 8)[true] + random.normal(size=(240, 8))
    return features, np.where(wrong, (true + 1) % 3, true), wrong


def test_wrong_labels_are_found_by_features(clusters):
    features, labels, wrong = clusters
    quality = labelsieve.label_quality(labels, features=features)
    issues = labelsieve.find_label_issues(labels, features=features)
    assert quality.shape == (240,) and np.array_equal(issues, quality < 0.5)
    assert (issues & wrong).sum() >= 0.9 * wrong.sum() and (issues & wrong).sum() >= 0.9 * issues.sum()
    ranked = labelsieve.find_label_issues(labels, features=features, return_indices_ranked_by="label_quality")
    assert sorted(ranked) == np.flatnonzero(issues).tolist() and (np.diff(quality[ranked]) >= 0).all()
    noise = labelsieve.estimate_noise(labels, features=features)
    assert noise.rate.low <= 0.2 <= noise.rate.high and noise.matrix.shape == (3, 3)
    judgment = judge_features(torch.from_numpy(features).float(), labels, 3)
    assert np.array_equal(quality, judge_labels(judgment.first, judgment.second).quality)


def test_features_may_be_of_any_kind(clusters, tmp_path):
    features, labels, _ = clusters
    half = features.astype(np.float16)  # as stored by `labelsieve embed`
    np.save(tmp_path / "x.npy", half)
    expected = labelsieve.label_quality(labels, features=half.astype(np.float32))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    forms = [half, half.astype(np.float64), half.astype(">f4"), mapped, torch.from_numpy(half), half[::-1][::-1]]
    for form in [*forms, torch.from_numpy(half).double().requires_grad_()]:
        assert np.array_equal(labelsieve.label_quality(labels, features=form), expected)
    for given_labels in (labels.astype(np.uint8), torch.from_numpy(labels), labels.tolist()):
        assert np.array_equal(labelsieve.label_quality(given_labels, features=half), expected)


@settings(max_examples=15)
@given(st.lists(st.integers(0, 6), min_size=12, max_size=40).filter(lambda labels: len(set(labels)) > 1))
def test_classes_may_have_few_samples_or_none(labels):
    """Features without information: every label gets a quality, and classes keep their numbers."""
    features = np.random.default_rng(0).normal(size=(len(labels), 4))
    quality = labelsieve.label_quality(labels, features=features)
    assert quality.shape == (len(labels),) and ((quality >= 0) & (quality <= 1)).all()
    noise = labelsieve.estimate_noise(labels, features=features)
    assert noise.matrix.shape == (max(labels) + 1,) * 2 and np.isfinite(noise.matrix).all()


def test_unsuitable_arguments_are_refused(clusters):
    features, labels, _ = clusters
    probs = np.full((240, 3), 1 / 3)
    for function in (labelsieve.label_quality, labelsieve.find_label_issues, labelsieve.estimate_noise):
        for arguments in ({}, {"pred_probs": probs, "features": features}):
            with pytest.raises(InputError, match="give either pred_probs or features"):
                function(labels, **arguments)
    spoiled = features.copy()
    spoiled[7, 2] = np.nan
    far = labels.copy()
    far[5] = 1000
    for wrong_labels, wrong_features, message in (
        (labels, features[:-1], "240 labels but 239 rows of features"),
        (labels, features[:, 0], r"numbers of shape \(samples, features\), got float64 of shape \(240,\)"),
        (labels, features.astype(str), "got <U"),
        (labels, spoiled, "features: row 7, column 2 contains nan"),
        (labels, torch.from_numpy(spoiled), "row 7 of the features"),
        (labels.astype(float), features, "one-dimensional array of integers"),
        (labels - 1, features, "labels must be 0 to 1, got -1 to 1"),
        (far, features, "the largest is 1,000; number the classes from 0"),
        (labels[:0], features[:0], "too few to judge"),
        (np.zeros(240, int), features, "too few to judge"),
    ):
        with pytest.raises(InputError, match=message):
            labelsieve.label_quality(wrong_labels, features=wrong_features)
    with pytest.raises(InputError, match="criterion 'ol' needs pred_probs"):
        labelsieve.label_quality(labels, features=features, criterion="ol")
    with pytest.raises(InputError, match="return_indices_ranked_by must be"):
        labelsieve.find_label_issues(labels, features=features, return_indices_ranked_by="margin")


def test_probabilities_need_no_torch():
    code = (
        "import sys, labelsieve, numpy as np; labels = np.arange(30) % 2; "
        "labelsieve.find_label_issues(labels, np.eye(2)[labels]); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
