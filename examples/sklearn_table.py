"""A table of numbers with scikit-learn.

A third of the labels of scikit-learn's digits become the next digit. `SieveClassifier` estimates the share of wrong
labels and leaves doubtful samples out of the training; logistic regression and the same network learn all labels.
`label_quality_` ranks the labels, so that the wrong ones can be looked up. Needs `pip install '.[sklearn]'` in a clone.
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from labelsieve.integrations.sklearn import SieveClassifier


def main() -> None:
    X, X_test, true, y_test = train_test_split(*load_digits(return_X_y=True), random_state=0)
    wrong = np.random.default_rng(0).random(len(true)) < 1 / 3
    labels = np.where(wrong, (true + 1) % 10, true)  # what a careless annotator wrote

    models = {
        "logistic regression": make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
        "same network, plain": SieveClassifier(method="default", noise_rate=0.0, epochs=30, random_state=0),
        "SieveClassifier": SieveClassifier(epochs=30, random_state=0),
    }
    print("accuracy on test samples with right labels:")
    for name, model in models.items():
        print(f"  {name:22}{model.fit(X, labels).score(X_test, y_test):.1%}")

    sieve = models["SieveClassifier"]
    suspects = sieve.label_quality_.argsort()[: wrong.sum()]  # the most suspicious labels first
    print(f"share of wrong labels: estimated {sieve.noise_rate_:.1%}, true {wrong.mean():.1%}")
    print(f"wrong labels among the {len(suspects)} most suspicious: {wrong[suspects].mean():.1%}")


if __name__ == "__main__":
    main()
