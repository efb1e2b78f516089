"""SieveClassifier: the conventions of scikit-learn, results, errors and documentation."""

import copy
import json
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("sklearn")
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from benchmarks.sklearn_digits import guards, table
from labelsieve.errors import Diverged, InputError
from labelsieve.integrations.sklearn import SieveClassifier, _folds
from labelsieve.methods import METHODS
from labelsieve.noise import corrupt, pair
from tests.conftest import LONG_WAIT, blobs

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs" / "sklearn.md").read_text(encoding="utf-8")
FAST = {"epochs": 6, "noise_rate": 0.1, "batch_size": 32, "random_state": 0}


def quick(**settings):
    return SieveClassifier(**{**FAST, **settings})


def clouds(count=120, classes=3, seed=0):
    """Return rows of four columns with very different scales, and their labels."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    rows = 4.0 * np.eye(classes, 4)[labels] + random.normal(size=(count, 4))
    return rows * [1e-3, 1.0, 1e3, 1.0] + [0.0, 5.0, 1e4, -1.0], labels


def noisy_digits(rate, seed=0):
    """Return training digits with noisy and clean labels, and test digits with clean labels."""
    X, y = load_digits(return_X_y=True)
    test = np.arange(len(y)) % 4 == 3
    labels = corrupt(torch.from_numpy(y[~test]), pair(10, rate), seed).numpy()
    return X[~test], labels, y[~test], X[test], y[test]


def pictures(count=120, seed=0):
    """Return uint8 images (n, 8, 8) and their classes."""
    made = blobs(count, seed)
    return made.images[:, 0].numpy(), made.labels.numpy()


def own_network(shape, num_classes):
    return nn.Sequential(nn.Linear(shape[0], 16), nn.ReLU(), nn.Linear(16, num_classes))


# ---- conventions of scikit-learn


@pytest.mark.filterwarnings("ignore:noise_rate=.auto. estimates little")
def test_scikit_learn_estimator_checks():
    check_estimator(SieveClassifier(), on_skip=None)


def test_clone_has_the_same_settings_and_is_not_fitted():
    model = quick(options={"lam": 0.5}, model=own_network).fit(*clouds())
    again = clone(model)
    assert again.get_params() == model.get_params()
    assert not hasattr(again, "network_")


def test_pickles_and_copies_predict_the_same():
    X, y = clouds()
    model = quick().fit(X, y)
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert np.array_equal(other.predict_proba(X), model.predict_proba(X))


def test_labels_may_be_strings_or_any_integers():
    X, y = clouds()
    names = np.array(["cat", "dog", "eel"])
    model = quick().fit(X, names[y])
    assert model.classes_.tolist() == ["cat", "dog", "eel"]
    assert set(model.predict(X)) <= set(names)
    assert model.score(X, names[y]) > 0.9
    shifted = quick().fit(X, 10 * y - 7)
    assert shifted.classes_.tolist() == [-7, 3, 13]
    assert np.array_equal(shifted.predict_proba(X), model.predict_proba(X))


def test_data_frames_in_a_pipeline():
    pandas = pytest.importorskip("pandas")
    X, y = clouds()
    frame = pandas.DataFrame(X, columns=list("abcd"))
    labels = pandas.Series(["cat", "dog", "eel"]).iloc[y].reset_index(drop=True)
    pipeline = make_pipeline(StandardScaler(), quick()).set_output(transform="pandas").fit(frame, labels)
    assert pipeline.score(frame, labels) > 0.9
    alone = quick().fit(frame, labels)
    assert alone.feature_names_in_.tolist() == list("abcd")
    assert (alone.predict(frame) == pipeline.predict(frame)).mean() > 0.98  # features are standardised in both cases


def test_searches_and_cross_validation():
    X, y = clouds(90)
    search = GridSearchCV(quick(), {"noise_rate": [0.0, 0.3]}, cv=2).fit(X, y)
    assert search.best_estimator_.noise_rate_ == search.best_params_["noise_rate"]
    assert cross_val_score(quick(), X, y, cv=3).shape == (3,)


# ---- results


def test_noise_rate_is_estimated_and_error_is_lower_than_plain():
    """In the benchmark record, plain training has errors of 19 to 26% and this classifier of 4 to 6%."""
    X, labels, clean, X_test, y_test = noisy_digits(0.4)
    plain = SieveClassifier(method="default", noise_rate=0.4, random_state=0).fit(X, labels)
    model = SieveClassifier(random_state=0).fit(X, labels)
    assert model.score(X_test, y_test) > plain.score(X_test, y_test) + 0.05
    assert abs(model.noise_rate_ - (labels != clean).mean()) < 0.1
    suspects = model.label_quality_ < 0.5
    assert (labels != clean)[suspects].mean() > 0.8
    assert suspects[labels != clean].mean() > 0.8
    following = (np.arange(10) - 1) % 10  # source class of the wrong labels of each class
    assert (model.penalty_.argmax(1) == following).sum() >= 9


def test_wide_features_in_half_precision():
    """Embeddings have more columns than there are samples, and are stored in half precision."""
    random = np.random.default_rng(0)
    true = np.arange(240) % 3
    X = (0.25 * random.normal(size=(3, 1280))[true] + random.normal(size=(240, 1280))).astype(np.float16)
    wrong = np.arange(240) % 5 == 0
    model = SieveClassifier(epochs=15, random_state=0).fit(X[:180], np.where(wrong, (true + 1) % 3, true)[:180])
    assert model.score(X[180:], true[180:]) > 0.9 and 0.05 < model.noise_rate_ < 0.35
    assert model.label_quality_[wrong[:180]].mean() < model.label_quality_[~wrong[:180]].mean() - 0.3


def test_noise_rate_of_clean_labels_is_low():
    X, labels, *_ = noisy_digits(0.0)
    model = SieveClassifier(epochs=30, random_state=0).fit(X, labels)
    assert model.noise_rate_ < 0.1


def test_random_state_makes_results_bit_identical():
    X, y = clouds()
    models = [quick(noise_rate="auto", random_state=seed).fit(X, y) for seed in (3, 3, 4)]
    first, same, other = (model.predict_proba(X) for model in models)
    assert np.array_equal(first, same) and not np.array_equal(first, other)
    assert models[0].noise_rate_ == models[1].noise_rate_
    assert np.array_equal(models[0].label_quality_, models[1].label_quality_)
    drawn = quick(random_state=np.random.RandomState(3)).fit(X, y)
    assert np.array_equal(drawn.predict_proba(X), quick(random_state=3).fit(X, y).predict_proba(X))


def test_number_of_threads_has_no_effect_and_is_restored():
    X, y = clouds()
    alone = quick().fit(X, y).predict_proba(X)
    torch.set_num_threads(2)
    try:
        together = quick().fit(X, y).predict_proba(X)
        assert torch.get_num_threads() == 2
        with pytest.raises(InputError):
            quick(method="none").fit(X, y)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    np.testing.assert_allclose(together, alone, rtol=1e-12)


def process_state():
    """Return the global state that fit must not change."""
    numpy_state = np.random.get_state()[1:3]  # noqa: NPY002
    return torch.random.get_rng_state().tolist(), str(numpy_state), torch.get_num_threads()


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_without_changing_global_state(method):
    X, y = clouds()
    before = process_state()
    model = quick(method=method).fit(X, y)
    assert process_state() == before
    assert model.n_iter_ == (18 if "selfie" in method else 6)  # SELFIE trains three times
    assert (model.penalty_ is not None) == method.endswith("-prop")
    assert model.label_quality_.shape == (len(X),)
    assert model.predict_proba(X).shape == (len(X), 3)


def test_first_of_two_networks_is_delivered():
    X, y = clouds()
    model = quick(method="co-teaching", criterion="all", options={"ramp": 2, "lam": 0.5}).fit(X, y)
    assert model.penalty_.shape == (3, 3)
    assert np.array_equal(model.predict_proba(X).argmax(1), model.network_(scaled(model, X)).argmax(1).numpy())


def scaled(model, X):
    return torch.from_numpy(model.scaler_.transform(X)).float()


def test_predictions_do_not_depend_on_the_batch():
    X, y = clouds()
    model = quick().fit(X, y)
    alone = np.concatenate([model.predict_proba(row[None]) for row in X[:9]])
    np.testing.assert_allclose(alone, model.predict_proba(X)[:9], rtol=1e-12, atol=1e-12)


def test_images():
    images, labels = pictures()
    model = quick(epochs=20).fit(images, labels)
    assert model.score(images, labels) > 0.9
    coloured = np.repeat(images[..., None], 3, axis=3)
    coloured.setflags(write=False)
    assert quick(model="compact").fit(coloured, labels).predict(coloured).shape == (120,)


def test_model_may_be_a_callable():
    X, y = clouds()
    model = quick(model=own_network, epochs=20).fit(X, y)
    assert isinstance(model.network_[0], nn.Linear)
    assert model.score(X, y) > 0.9


def test_align_and_floor_are_defaults_that_options_override():
    X, y = clouds()
    y = np.random.default_rng(0).permutation(y)  # so that the selection has an effect
    guarded, named, bare = (
        quick(noise_rate=0.3, options=options).fit(X, y).predict_proba(X)
        for options in (None, {"align": True, "floor": 0.5}, {"align": False, "floor": 0.0})
    )
    assert np.array_equal(guarded, named) and not np.array_equal(guarded, bare)


# ---- errors


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "mentornet-pro"}, "unknown method 'mentornet-pro': did you mean mentornet-prop?"),
        ({"criterion": "al"}, "unknown criterion 'al': did you mean all?"),
        ({"model": "mpl"}, "unknown model 'mpl': did you mean mlp?"),
        ({"model": "small"}, "small needs images; for a table use mlp"),
        ({"model": 3}, "model must be a name or a callable (shape, num_classes) -> Module, got 3"),
        (
            {"model": lambda shape, num_classes: nn.Linear(4, 7)},
            "the model must return 3 logits per sample, its output has shape (1, 7)",
        ),
        ({"model": lambda shape, num_classes: 7}, "model must return an nn.Module, got 7"),
        (
            {"model": lambda shape, num_classes: nn.Sequential(nn.Linear(4, 3), nn.Softmax(1))},
            "the model must return logits, but its output looks like probabilities: remove the softmax",
        ),
        (
            {"model": lambda shape, num_classes: nn.Linear(9, 3)},
            "the model fails on samples of shape (4,): mat1 and mat2 shapes cannot be multiplied",
        ),
        ({"options": {"lamb": 1.0}}, "mentornet-prop has no option 'lamb'; its options: floor, align, "),
        ({"options": [1]}, 'options must be a dict such as {"lam": 0.5}, got [1]'),
        ({"noise_rate": 1}, 'noise_rate must be a number from 0 to below 1, or "auto", got 1'),
        ({"noise_rate": "some"}, "noise_rate must be a number from 0 to below 1, or \"auto\", got 'some'"),
        ({"device": "nowhere"}, "device 'nowhere' cannot be used here"),
    ],
)
def test_errors_of_settings_are_one_line(settings, words):
    with pytest.raises(InputError) as error:
        quick(**settings).fit(*clouds())
    assert str(error.value).startswith(words)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "kind", "words"),
    [
        ({"epochs": 0}, ValueError, "epochs == 0, must be >= 1."),
        ({"batch_size": 1}, ValueError, "batch_size == 1, must be >= 2."),
        ({"lr": 0.0}, ValueError, "lr == 0.0, must be > 0."),
        ({"weight_decay": -1.0}, ValueError, "weight_decay == -1.0, must be >= 0."),
        ({"warmup": -1}, ValueError, "warmup == -1, must be >= 0."),
        ({"epochs": 2.5}, TypeError, "epochs must be an instance of int, not float."),
        ({"method": None}, TypeError, "method must be an instance of str, not NoneType."),
    ],
)
def test_values_out_of_range_raise_scikit_learn_errors(settings, kind, words):
    with pytest.raises(kind) as error:
        quick(**settings).fit(*clouds())
    assert str(error.value) == words


@pytest.mark.parametrize("settings", [{"warmup": 6}, {"warmup": 50}])
def test_warm_up_as_long_as_the_training_is_rejected(settings):
    with pytest.raises(InputError, match="is not shorter than the training of 6, so no sample would be"):
        quick(**settings).fit(*clouds())


def test_single_epoch_selects():
    X, y = clouds()
    one, plain = (quick(epochs=1, noise_rate=0.4, method=name).fit(X, y) for name in ("mentornet", "default"))
    assert not np.array_equal(one.predict_proba(X), plain.predict_proba(X))


def test_too_small_batches_cause_a_warning():
    with pytest.warns(UserWarning, match="batch size 4 is too small for this noise rate"):
        quick(batch_size=4, noise_rate=0.2).fit(*clouds())
    X, y = clouds()
    wrong = np.where(np.arange(len(y)) % 5 == 0, (y + 1) % 3, y)
    with pytest.warns(UserWarning, match="batch size 2 is too small for this noise rate"):
        quick(batch_size=2, noise_rate="auto").fit(X, wrong)


def test_very_large_features_are_predicted_or_rejected():
    X, y = clouds()
    model = quick().fit(X, y)
    far = X.copy()
    far[:, 0] = 1e40
    assert np.allclose(model.predict_proba(far).sum(1), 1)
    far[:, 0] = 1e307
    with pytest.raises(InputError, match="X has values that are too large compared with those passed to fit"):
        model.predict_proba(far)
    with pytest.raises(InputError, match=r"column 2 of X has values too large to standardise; scale it first"):
        quick().fit(X * [1, 1, 1e200, 1], y)


def test_divergence_names_the_parameter_and_keeps_the_fitted_model():
    X, y = clouds()
    model = quick().fit(X, np.array(["cat", "dog", "eel"])[y])
    before = model.predict(X)
    with pytest.raises(Diverged, match=r"Lower lr \(it was 1e\+30\)"):
        model.set_params(lr=1e30).fit(X, y)
    assert np.array_equal(model.predict(X), before)


def test_float32_is_converted_to_float64():
    X, y = clouds()
    X = X.astype(np.float32)
    assert np.array_equal(quick().fit(X, y).predict_proba(X), quick().fit(X.astype(float), y).predict_proba(X))


def test_single_class_is_rejected():
    with pytest.raises(ValueError, match="needs at least two classes, y has one class: 'cat'"):
        quick().fit(clouds()[0], ["cat"] * 120)


def test_classes_smaller_than_the_folds_cause_a_warning():
    X, y = clouds()
    y[3:] = np.minimum(y[3:], 1)
    with pytest.warns(UserWarning, match="fewer than 5 samples, the smallest has 1; pass the share of wrong"):
        assert quick(noise_rate="auto").fit(X, y).predict(X).shape == (120,)
    assert quick().fit(X, y).predict(X).shape == (120,)


def test_folds_of_small_classes_divide_the_samples_evenly():
    numbers = np.array([0] * 9 + [1] * 3 + [2])
    with pytest.warns(UserWarning, match="the smallest has 1"):
        folds = list(_folds(numbers, 0))
    assert sorted(np.concatenate([inside for _, inside in folds])) == list(range(13))
    assert all(sorted([*outside, *inside]) == list(range(13)) for outside, inside in folds)
    assert {(numbers[inside] == 0).sum() for _, inside in folds} == {1, 2}


def test_images_and_features_are_distinguished():
    images, labels = pictures()
    with pytest.raises(InputError, match=r"X: images must be uint8, 0 to 255, of shape \(n, height, width\)"):
        quick().fit(images / 255, labels)
    model = quick(epochs=1).fit(images, labels)
    with pytest.raises(InputError, match=r"fitted to samples of shape \(1, 8, 8\), got \(1, 8, 6\)"):
        model.predict(images[:, :, :6])
    with pytest.raises(InputError, match="fit and predict need the same kind of X"):
        model.predict(images[:, 0])
    with pytest.raises(ValueError, match="X has 3 features, but SieveClassifier is expecting 4 features as input"):
        quick(epochs=1).fit(*clouds()).predict(clouds()[0][:, :3])


def test_sample_weight_is_rejected():
    with pytest.raises(TypeError, match="sample_weight"):
        quick().fit(*clouds(), sample_weight=np.ones(120))


# ---- documentation


def test_documentation_example_runs():
    (code,) = re.findall(r"```python\n(.*?)```", DOCS, re.S)
    code = code.replace("random_state=0).fit(", "random_state=0, epochs=20).fit(")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=LONG_WAIT
    )
    assert done.returncode == 0, done.stderr
    assert re.match(r"noise rate 0\.\d\d, accuracy 0\.\d\d\nmost suspicious: \[", done.stdout)


def test_documented_figures_match_the_record():
    record = json.loads((ROOT / "benchmarks" / "results" / "sklearn_digits.json").read_text())
    assert table(record["rows"]) in DOCS
    assert f"test errors range {guards(record['guards'])} them" in " ".join(DOCS.split())
