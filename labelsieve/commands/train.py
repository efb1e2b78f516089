"""labelsieve train: train one model, with the noise rate given or estimated from the data."""

import os
import shlex
import sys
import time
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from labelsieve.catalogue import refuse_unknown
from labelsieve.commands import options as shared
from labelsieve.errors import InputError
from labelsieve.runs.spec import OPEN_SETTINGS, Experiment, experiment_for, parse_options
from labelsieve.text import parse_integer, parse_number

if TYPE_CHECKING:
    from labelsieve.runs.data import Shelf
    from labelsieve.runs.team import Team


def add_arguments(parser: ArgumentParser) -> None:
    shared.add_data(parser, default="fashion")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="run folder. Default: runs/ and a name made from all settings"
    )
    parser.add_argument(
        "--method",
        metavar="NAME",
        help="method; see `labelsieve methods`. Default: mentornet-prop, or chosen by the noise that is found",
    )
    parser.add_argument(
        "--criterion",
        metavar="NAME",
        help="what selects clean samples, such as ol, pl, all or margin. Default: that of the method",
    )
    parser.add_argument("--lam", type=shared.number, metavar="λ", help="weight of the penalty label in Criteria_ALL")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="option of the method; repeatable"
    )
    parser.add_argument(
        "--noise-rate",
        metavar="RATE",
        help="share of labels that are wrong, from 0 to below 1, or auto: estimate it. Default: the rate of added "
        "noise, else auto",
    )
    parser.add_argument(
        "--final",
        action=BooleanOptionalAction,
        default=True,
        help="if noise rate and method are chosen automatically: train once more on all samples with corrected labels "
        "and deliver that model",
    )
    parser.add_argument(
        "--finetune",
        action="store_true",
        help="on photographs: after the linear head, train the whole pretrained network on corrected labels and "
        "deliver it; best on a GPU",
    )
    parser.add_argument(
        "--scores", default="", metavar="EPOCHS", help="save the scores of all samples after these epochs"
    )
    parser.add_argument(
        "--log",
        action="append",
        default=[],
        metavar="NAME",
        help="show the curves in tensorboard, wandb or mlflow while training; repeatable (docs/tracking.md)",
    )
    parser.add_argument("--seed", type=shared.integer, default=0, metavar="N", help="random seed. Default: 0")
    parser.add_argument(
        "--report",
        action=BooleanOptionalAction,
        default=True,
        help="list the suspect labels (audit/labels.csv) and write a page (report.html) at the end",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the stages and the estimated time; train nothing")
    shared.add_reading(parser, streaming=True)
    shared.add_noise(parser)
    shared.add_training(parser)
    shared.add_config(parser, like=True)
    machine = shared.add_machine(parser)
    machine.add_argument(
        "--threads",
        type=shared.integer,
        metavar="N",
        help="CPU threads; they change the last bits of the results. Default: one for small networks, else all cores",
    )


def run(options: Namespace) -> None:
    from labelsieve.runs.find import refuse_running
    from labelsieve.runs.track import parse_trackers

    began = time.perf_counter()
    experiment, noise_is_unknown = requested_experiment(options)
    refuse_unknown(experiment.method, experiment.criterion, dict(experiment.options))
    shared.warn_about_threads(options.threads)
    if os.environ.get("RANK", "0") == "0":
        if options.out is not None:
            refuse_running(options.out)
        shared.save_config(options)
    options.log = parse_trackers(options.log)
    from labelsieve.runs.execute import follow  # imports torch, after all that can be checked without it
    from labelsieve.runs.team import teamed

    experiment = replace(experiment, **shared.machine_settings(options))
    with teamed(experiment.device) as team:
        if team is None or team.leads:
            _lead(options, experiment, noise_is_unknown, team, began)
        else:
            follow(team)


def _lead(
    options: Namespace, experiment: Experiment, noise_is_unknown: bool, team: "Team | None", began: float
) -> None:
    """Train in this process, or in all those of a team."""
    from labelsieve.auto.forecast import forecast
    from labelsieve.auto.request import (
        is_finished_request,
        make_request,
        request_facts,
        save_request,
        with_default_backbone,
        with_threads,
    )
    from labelsieve.auto.train import Runner, mend, print_finished, train
    from labelsieve.runs.data import Shelf
    from labelsieve.runs.find import refuse_running
    from labelsieve.runs.track import track_finished

    if options.backbone is None and options.model in (None, "linear"):
        experiment = with_default_backbone(experiment, options.finetune)
    if not noise_is_unknown and (experiment.backbone or experiment.features):
        print(
            f"--noise-rate trains a network on the features with {experiment.method}. Without it, linear heads judge "
            "every label, which finds more of the wrong ones (docs/auto.md)."
        )
    path = options.out or Path("runs") / (experiment.name() + ("-auto" if noise_is_unknown else ""))
    refuse_running(path)
    damaged = not options.dry_run and mend(path)
    shelf = Shelf()
    unsettled = shared.open_settings(options)
    all_unsettled = [*unsettled, *(["threads"] if options.threads is None else [])]
    facts = request_facts(experiment, all_unsettled, options.method, options.final, options.finetune)
    if not options.dry_run and not damaged and is_finished_request(path, facts):
        print_finished(path)
        track_finished(path, options.log)
    else:
        request = make_request(
            experiment,
            unsettled,
            noise_is_unknown=noise_is_unknown,
            method=options.method,
            final=options.final,
            shelf=shelf,
            finetune=options.finetune,
        )
        if options.threads is None:
            request = with_threads(request, shelf)
        if request.is_head_only:
            _warn_about_unused(experiment, unsettled)
        if options.dry_run:
            print(forecast(request, path, shelf, began))
            return
        train(request, path, Runner(shelf, options.command_line, team, options.log))
        save_request(path, facts)
    _finish(path, shelf, options.cache, options.report)


def requested_experiment(options: Namespace) -> tuple[Experiment, bool]:
    """Return the experiment given by the options, on an open device, and whether its noise rate is unknown."""
    rate = _noise_rate(options)
    settings = shared.experiment_settings(options)
    settings |= {
        "method": options.method or "mentornet-prop",
        "options": _method_options(options),
        "noise_rate": 0.0 if rate is None else rate,
        "scores": _epoch_numbers(options.scores),
        "threads": Experiment.threads if options.threads is None else options.threads,  # chosen when the data is known
    }
    if options.features is not None and options.backbone not in (None, "none"):
        raise InputError("--features replaces the samples by features; omit --backbone")
    settings["backbone"] = None if options.backbone == "none" else options.backbone
    return experiment_for(settings.pop("data"), **settings), rate is None


def _warn_about_unused(experiment: Experiment, unsettled: Collection[str]) -> None:
    """Say which settings of a training the user has given for a head that is fitted until it converges."""
    from labelsieve.auto.plan import NOT_FOR_HEADS

    usual = experiment_for(experiment.data)
    given = [name for name in OPEN_SETTINGS if name not in unsettled]
    given += [name for name in NOT_FOR_HEADS if getattr(experiment, name) != getattr(usual, name)]
    if given:
        *most, last = (f"--{name.replace('_', '-')}" for name in given)
        names = f"{', '.join(most)} and {last} have" if most else f"{last} has"
        why = "linear heads on features are fitted to all samples until they converge"
        print(f"warning: {names} no effect: {why} (docs/auto.md)", file=sys.stderr)


def _finish(path: Path, shelf: "Shelf", cache: str | None, report: bool) -> None:
    """Write audit and report, and print the next command."""
    from labelsieve.auto.audit import audit_run
    from labelsieve.report.page import write_report

    quoted = shlex.quote(str(path))
    if report:
        print(f"report: {write_report((path,), None, 200, partial(audit_run, shelf=shelf, cache=cache))}")
        print(f"review the suspect labels: labelsieve review {quoted}")
    else:
        print(f"audit the labels and write a report: labelsieve report {quoted}")


def _noise_rate(options: Namespace) -> float | None:
    """Return the noise rate given by the options; None if it must be estimated."""
    shared.check_noise(options.noise, options.rate)
    if options.noise_rate is not None:
        try:
            return None if options.noise_rate == "auto" else parse_number(options.noise_rate)
        except ValueError:
            raise InputError(
                f"--noise-rate must be a number from 0 to 1, or auto, got {options.noise_rate!r}"
            ) from None
    known_kind = options.noise and options.noise.partition(":")[0] in ("pair", "symmetry", "mixed")
    if known_kind and options.rate is not None:
        return float(options.rate)
    clean_data = options.data == "fashion" and options.noise is None and options.labels is None
    return 0.0 if options.method == "default" or clean_data else None


def _method_options(options: Namespace) -> tuple[tuple[str, object], ...]:
    """Return --lam and every --set name=value as pairs."""
    return parse_options([*([] if options.lam is None else [f"lam={options.lam}"]), *options.set])


def _epoch_numbers(text: str) -> tuple[int, ...]:
    """ "25,40" -> (25, 40)"""
    try:
        return tuple(sorted({parse_integer(number) for number in text.split(",")})) if text else ()
    except ValueError:
        raise InputError(f"--scores takes epochs separated by commas, such as 25,40, got {text!r}") from None
