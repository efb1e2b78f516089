"""Audit the probabilities of any classifier.

A random forest predicts every label of scikit-learn's digits out of fold, from samples that it did not learn.
labelsieve turns the probabilities into an estimate of the share of wrong labels, a quality of every label, and a list
of those that are more likely wrong than right. Only NumPy is needed for this; the forest comes from scikit-learn.
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import cross_val_predict, train_test_split

import labelsieve


def main() -> None:
    X, X_test, true, y_test = train_test_split(*load_digits(return_X_y=True), random_state=0)
    wrong = np.random.default_rng(0).random(len(true)) < 0.2
    labels = np.where(wrong, (true + 1) % 10, true)

    forest = RandomForestClassifier(200, random_state=0)  # or any classifier of yours
    pred_probs = cross_val_predict(forest, X, labels, method="predict_proba")

    noise = labelsieve.estimate_noise(labels, pred_probs)
    low, high = noise.rate.low, noise.rate.high
    print(f"share of wrong labels: {noise.rate.estimate:.1%} ({low:.1%} to {high:.1%}), true {wrong.mean():.1%}")

    issues = labelsieve.find_label_issues(labels, pred_probs)  # (n) True for labels that are probably wrong
    simple = pred_probs.argmax(1) != labels  # what one would do without labelsieve
    for name, found in (("prediction is not the label", simple), ("find_label_issues", issues)):
        precision, recall = wrong[found].mean(), found[wrong].mean()
        print(f"{name:28}{found.sum():4} suspects, {precision:.1%} of them wrong, {recall:.1%} of the wrong ones found")

    quality = labelsieve.label_quality(labels, pred_probs)
    worst = quality.argmin()
    print(f"least plausible label: sample {worst}, labelled {labels[worst]}, in truth {true[worst]}")

    print("accuracy on test samples with right labels:")
    for name, kept in (("all samples", np.full(len(labels), True)), ("without the suspects", ~issues)):
        print(f"  {name:22}{forest.fit(X[kept], labels[kept]).score(X_test, y_test):.1%}")


if __name__ == "__main__":
    main()
