"""Read labelled data from files and folders.

`load_data` is the entry point. It finds out what a source is, lists its samples without decoding them (`load.find`),
and decodes each image once.

Modules:
    load: find, list and decode a source; the registry of formats; fingerprints of raw data.
    folder: image folders with one folder per class, or without labels; helpers for other folder layouts.
    table: CSV and TSV files of image paths, texts or numbers, with or without labels.
    parquet: Parquet files and datasets saved with `datasets.save_to_disk`.
    columns: turn the rows of any table into labelled sets.
    arrays: .npz and .npy files, also of features for other data.
    published: the embedded images of Fashion-MNIST and photographs of clothes, Tiny ImageNet, ANIMAL-10N, Clothing1M.
    cifar: CIFAR-10, CIFAR-100 and the labels of CIFAR-N.
    pickles: read pickle files without executing them.
    images: decode images, and sets of encoded images.
    sets: labelled sets of texts (`Texts`), in memory (`Labelled`) and on disk (`Streamed`).
    cache: decoded images in a memory-mapped file.
    classes: convert labels to class indices.
    labels: read and write label files.
    check: the report of `labelsieve check`.
"""

from labelsieve.data.load import DATASETS, ReadOptions, load_data, source_fingerprint
from labelsieve.data.sets import Labelled, Sets, Streamed, Trainable

__all__ = ["DATASETS", "Labelled", "ReadOptions", "Sets", "Streamed", "Trainable", "load_data", "source_fingerprint"]
