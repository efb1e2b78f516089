"""Adapters to other training libraries; each needs the optional dependency of the same name.

Modules:

* ``sklearn``: ``SieveClassifier``, a scikit-learn classifier.
* ``lightning``: ``SieveCallback``, a callback for Lightning's Trainer.
* ``huggingface``: ``SieveTrainer``, a Trainer for Hugging Face Transformers.
* ``common``: checks and learning-rate scaling, shared by the adapters.

Import the modules directly: importing this package imports none of the libraries.
"""

__all__: list[str] = []
