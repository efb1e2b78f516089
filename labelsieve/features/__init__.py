"""Features of images and texts from pretrained networks.

Modules:
    installed: which backbones are installed.
    backbones: our own networks and static word vectors as backbones; `find_backbone`.
    hub: backbones from timm and Hugging Face's transformers.
    store: features on disk, by the content of the samples.
    export: write features to a file.
    embed: compute the features of a dataset, each sample once.
    neighbours: nearest neighbours, near-duplicates and outliers.
"""
