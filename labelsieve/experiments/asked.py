"""asked: the experiments that a person's options mean."""

import os
from pathlib import Path
from typing import Any

from labelsieve import noise as label_noise
from labelsieve.devices import best_device, best_precision
from labelsieve.errors import InputError
from labelsieve.experiments.compare import compare
from labelsieve.experiments.spec import SETTINGS, Experiment, planned


def from_options(
    data: str,
    *,
    noise: str | None,
    rate: float | None,
    noise_rate: str | None,
    device: str,
    threads: int | None,
    precision: str | None,
    **given: Any,
) -> tuple[Experiment, bool]:
    """The experiment that a person's options mean, and whether its noise rate is to be found out."""
    check_noise(noise, rate)
    told = told_rate(data, noise, rate, **given) if noise_rate is None else parsed_rate(noise_rate)
    given["method"] = given["method"] or "mentornet-prop"
    device = best_device() if device == "auto" else device
    given["model"] = given["model"] or (None if data in SETTINGS else "auto")
    asked = planned(
        data,
        noise=noise,
        rate=rate,
        noise_rate=0.0 if told is None else told,
        device=device,
        precision=precision or best_precision(device),
        threads=(os.cpu_count() or 1) if threads is None else threads,
        **given,
    )
    return asked, told is None


def epoch_numbers(text: str) -> tuple[int, ...]:
    """ "25,40" -> (25, 40)"""
    try:
        return tuple(sorted({int(number) for number in text.split(",")})) if text else ()
    except ValueError:
        raise InputError(f"--scores takes epochs with commas between them, such as 25,40, got {text!r}") from None


def check_noise(noise: str | None, rate: float | None) -> None:
    """Refuse noise that is not known or not wholly said."""
    if noise is None and rate is not None:
        raise InputError("--rate is the rate of added noise: say --noise too, or --noise-rate for noise that is there")
    if noise is not None and is_matrix(noise) and rate is not None:
        raise InputError(f"{noise} says itself how many labels become wrong; leave out --rate")
    if noise is None or is_matrix(noise):
        return
    label_noise.parsed(noise)  # refuses what is not known
    if rate is None:
        raise InputError(f"say --rate, the share of labels that {noise} noise makes wrong")


def is_matrix(noise: str) -> bool:
    """Whether noise is named by a file with a transition matrix."""
    return Path(noise).suffix in (".npy", ".csv")


def compare_options(
    data: str,
    methods: list[str],
    *,
    noise: str | None,
    rate: float | None,
    noise_rate: float | None,
    device: str,
    precision: str | None,
    **given: Any,
) -> None:
    """The comparison that a person's options mean."""
    check_noise(noise, rate)
    if noise is not None and (is_matrix(noise) or noise.startswith("asymmetric")):
        raise InputError(
            f"compare adds pair, symmetry or mixed noise, not {noise}; write labels with `labelsieve noise` first, "
            "and name them with --labels"
        )
    if noise_rate is None and rate is None:
        raise InputError("say --noise-rate, the share of labels that is believed wrong")
    device = best_device() if device == "auto" else device
    compare(
        data,
        methods,
        noise=noise,
        rate=rate or 0.0,
        noise_rate=(rate or 0.0) if noise_rate is None else noise_rate,
        device=device,
        precision=precision or best_precision(device),
        **{**given, "model": given["model"] or (None if data in SETTINGS else "auto")},
    )


def told_rate(
    data: str, noise: str | None, rate: float | None, *, method: str | None, labels: str | None, **_: Any
) -> float | None:
    """The noise rate when a person names none: that of the noise they added, none for data that is clean.

    None: nobody knows, and it must be found out.
    """
    if noise and noise.partition(":")[0] in ("pair", "symmetry", "mixed") and rate is not None:
        return rate
    if method == "default" or (data == "fashion" and noise is None and labels is None):
        return 0.0
    return None


def parsed_rate(text: str) -> float | None:
    """A number, or auto: None."""
    try:
        return None if text == "auto" else float(text)
    except ValueError:
        raise InputError(f"--noise-rate is a number from 0 to 1, or auto, got {text!r}") from None
