"""Features of images and texts from pretrained networks.

Modules:
    backbones: our own networks and static word vectors as backbones; `find_backbone`.
    hub: backbones from timm and Hugging Face's transformers.
    store: features on disk, by the content of the samples.
    embed: compute the features of a dataset, each sample once, and write them to a file.
    judge: linear heads that judge labels by features.
    neighbours: nearest neighbours, near-duplicates and outliers.
"""
