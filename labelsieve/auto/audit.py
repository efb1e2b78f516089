"""How single samples are shown to people: as thumbnails, texts or rows of a table."""

import csv
import hashlib
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from labelsieve.audit.files import (
    COLUMNS,
    EXPORTS,
    fitted,
    gallery,
    json_bytes,
    labels_csv,
    labels_parquet,
    rows,
    shown,
    summary,
    thumbnail,
)
from labelsieve.audit.findings import Findings, findings_of, span
from labelsieve.audit.guesses import Array, Guesses, guesses_of
from labelsieve.audit.inputs import Names, class_names, numbers_of, read_given, read_probabilities
from labelsieve.auto.judge import held_out_guesses, judges, noise_among, opinion_on
from labelsieve.auto.plan import cautious
from labelsieve.data import Labelled, Reading, Trainable, load_data
from labelsieve.data.images import BadImage, Frame, Pictures, decode, header
from labelsieve.data.labels import Laid
from labelsieve.data.load import find
from labelsieve.data.sets import Streamed
from labelsieve.data.table import separator_of
from labelsieve.errors import InputError, nearest
from labelsieve.files import disk_error, refuse_others, write_atomically
from labelsieve.methods import Problem, make
from labelsieve.predict import load
from labelsieve.review.decisions import standing_on_disk
from labelsieve.runs.data import Gathered, Shelf, gather, reading_of
from labelsieve.runs.execute import versions
from labelsieve.runs.find import refuse_unfinished
from labelsieve.runs.folder import read_json
from labelsieve.runs.read import HELD_OUT, TESTED, Run, read_run, read_samples
from labelsieve.runs.spec import Experiment, restored, with_defaults
from labelsieve.text import percent, printable

# Makes what is needed to show the samples of the gallery, in a folder for thumbnails: by position, what its line gets.
Views = Callable[[Findings, Path], Mapping[int, Mapping[str, Any]]]
LONGEST_TEXT = 2000  # characters
MOST_COLUMNS = 50


def views_of(source: str, reading: Reading, whole: Trainable) -> Views:
    """How the samples of a set are shown; images come from their files, upright and with their aspect."""
    if isinstance(whole, Labelled) and len(whole.shape) == 1:
        return partial(as_rows, whole)
    pictures = whole.pictures if isinstance(whole, Streamed) else find(source, reading).train
    return partial(as_thumbnails, whole, pictures if isinstance(pictures, Pictures) else None)


def as_rows(whole: Labelled, findings: Findings, folder: Path) -> dict[int, dict[str, Any]]:
    """The first columns of each row."""
    columns = (whole.columns or tuple(str(k) for k in range(whole.shape[0])))[:MOST_COLUMNS]
    return {index: {"row": dict(zip(columns, whole.images[index].tolist(), strict=False))} for index in shown(findings)}


def as_thumbnails(
    whole: Trainable, pictures: Pictures | None, findings: Findings, folder: Path
) -> dict[int, dict[str, Any]]:
    """A file for each sample; one that cannot be made is left out."""
    place = {name: at for at, name in enumerate(pictures.names)} if pictures is not None else {}
    folder.mkdir(parents=True, exist_ok=True)
    views = {}
    for index in shown(findings):
        try:
            if pictures is not None and whole.names is not None:
                pixels = upright(pictures.bytes_of(place[whole.names[index]]))
            else:
                assert isinstance(whole, Labelled)
                pixels = whole.images[index].permute(1, 2, 0).cpu().numpy()
        except BadImage:
            continue
        (folder / f"{index}.webp").write_bytes(thumbnail(pixels))
        views[index] = {"image": f"{folder.name}/{index}.webp"}
    return views


def upright(content: bytes) -> Any:
    """An encoded image, decoded at the size it is shown in."""
    found = header(content)
    height, width = fitted(found.height, found.width)
    return decode(content, Frame(height, width, 1 if found.gray else 3))


def read_texts(place: str, count: int) -> list[str]:
    """The texts of a column of a .csv file, file.csv:column."""
    path, column = text_file(place), place.rpartition(":")[2]
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file, delimiter=separator_of(file.readline()))
            file.seek(0)
            if column not in (rows.fieldnames or ()):
                raise InputError(f"{path} has no column {column!r} (it has: {', '.join(rows.fieldnames or ())})")
            texts = [row[column] or "" for row in rows]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    if len(texts) != count:
        raise InputError(f"{path} has {len(texts):,} rows but there are {count:,} samples; give one per sample")
    return [text[:LONGEST_TEXT] for text in texts]


def text_file(place: str) -> str:
    """The file of file.csv:column"""
    path = place.rpartition(":")[0]
    if not path:
        raise InputError(f"--text takes file.csv:column, got {place!r}")
    return path


def views_of_text(texts: Sequence[str]) -> Views:
    return partial(as_texts, texts)


def as_texts(texts: Sequence[str], findings: Findings, folder: Path) -> dict[int, dict[str, Any]]:
    return {index: {"text": texts[index]} for index in shown(findings)}


LISTED = 10  # suspects on the terminal
EXCERPT = 100  # characters of a text there


def write_audit(
    findings: Findings,
    penalty: Array | None,
    made: Mapping[str, Any],
    views: Views | None,
    out: Path,
    export: Sequence[str],
    texts: Sequence[str] | None = None,
) -> None:
    """Write all files, the summary last, and say what was found; `texts` are the samples themselves."""
    refuse_other_files(out, [EXPORTS[name][0] for name in export])
    try:
        out.mkdir(parents=True, exist_ok=True)
        for old in (out / "thumbs").glob("[0-9]*.webp"):  # of an audit before
            old.unlink()
        seen = views(findings, out / "thumbs") if views else {}
    except OSError as error:
        raise disk_error(out, error) from error
    write_atomically(out / "labels.csv", labels_csv(findings, texts))
    table = labels_parquet(findings, texts)
    if table is not None:
        write_atomically(out / "labels.parquet", table)
    else:
        (out / "labels.parquet").unlink(missing_ok=True)
    write_atomically(out / "gallery.jsonl", gallery(findings, seen))
    for name in export:
        file, made_by = EXPORTS[name]
        write_atomically(out / file, made_by(findings, seen))
    whole = summary(findings, penalty, made)
    write_atomically(out / "summary.json", json_bytes(whole))
    print(printed(findings, whole, out, [EXPORTS[name][0] for name in export], texts))


def refuse_other_files(out: Path, exports: Sequence[str]) -> None:
    """A person's own labels.csv, or a file of another name that is written here, is not written over."""
    refuse_others(out / "labels.csv", ",".join(COLUMNS), ",".join((*COLUMNS, "text")))
    if not (out / "labels.csv").exists():  # the first that an audit writes
        for name in ("labels.parquet", "gallery.jsonl", "summary.json", *exports):
            refuse_others(out / name)


def printed(
    findings: Findings, whole: Mapping[str, Any], out: Path, files: Sequence[str], texts: Sequence[str] | None = None
) -> str:
    """Verdict, noise per class, and the most suspicious samples."""
    width = min(30, max(len(printable(name)) for name in findings.classes))
    lines = [printable(findings.verdict), "", f"{'label':{width}}  samples      wrong  between              issues"]
    shares = sorted(zip(whole["per_class"], findings.noise.per_class, strict=True), key=lambda row: -row[1].estimate)
    for row, share in shares[:30]:
        between = span(share).removeprefix("between ")
        name = printable(row["class"])[:width]
        lines.append(
            f"{name:{width}}  {row['samples']:7,}  {percent(share.estimate):>9}  {between:19}  {row['issues']:6,}"
        )
    lines += ["", "between: the range of several estimates; the truth may lie outside"]
    lines += [printable(findings.basis)] if findings.basis else []
    if whole["decided"]:
        lines += [f"{whole['decided']:,} labels were decided on by a person and count as right"]
    lines += ["", "the most suspicious:"]
    for row in rows(findings, findings.order[:LISTED].tolist()):
        lines.append(printable(f"{row['label_quality']:.3f}  {row['id']}  {row['why']}"))
        if texts is not None:
            lines.append(f"       {excerpt(texts[row['index']])}")
    listed = ", ".join(["labels.csv", *files])
    return "\n".join([*lines, "", f"{len(findings):,} samples in {out}: {listed}"])


def excerpt(text: str) -> str:
    """The beginning of a text, on one line."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= EXCERPT else line[: EXCERPT - 1] + "…"


def say_decisions(place: Path, export: Sequence[str]) -> None:
    """Corrected labels are what the audit suggests: who has decided otherwise wants another file."""
    said = len(standing_on_disk(place)) if "corrected" in export else 0
    if said:
        reviewed = f"labelsieve review {shlex.quote(str(place))} --export reviewed.csv"
        print(f"corrected.csv takes no notice of the {said:,} decisions in {place}/review: {printable(reviewed)} does")


def audit_files(
    labels: Path,
    pred_probs: Path,
    classes: Path | None,
    text: str | None,
    data: str | None,
    out: Path,
    export: Sequence[str],
) -> None:
    """The audit of labels and probabilities in files."""
    probs, columns = read_probabilities(pred_probs)
    whole = None if data is None else samples_in(data, len(probs), pred_probs)
    told = class_names(classes, probs.shape[1]) or columns
    numbers, names = named_labels(labels, probs.shape[1], told, None if whole is None else tuple(whole.classes))
    guesses = guesses_of(numbers, probs)
    shown, ids, texts = None, None, None
    if data is not None and whole is not None:
        shown, ids = views_of(data, Reading(), whole), whole.names and list(whole.names)
    elif text is not None:
        texts = read_texts(text, len(guesses))
        shown = views_of_text(texts)
    of_labels = fingerprint(guesses.labels, names)
    refuse_other_decisions(out, of_labels)
    made = {"method": "pred-probs", "versions": versions(), "statistics": False, "fingerprint": of_labels}
    made |= {"labels": str(labels), "pred_probs": str(pred_probs), "data": data, "text": text and text_file(text)}
    write_audit(findings_of(guesses, names, ids, unlearnt=True), None, made, shown, out, export, texts)
    say_decisions(out, export)
    quoted = printable(shlex.quote(str(out)))
    print(f"look at them: labelsieve report {quoted}\ngo through:   labelsieve review {quoted}")
    if shown is None:
        print("the samples themselves are shown there if the same command names them by --text or --data")


def samples_in(data: str, count: int, pred_probs: Path) -> Trainable:
    """What the probabilities are of."""
    whole = load_data(data, Reading()).train
    if len(whole) != count:
        raise InputError(f"{data} has {len(whole):,} samples but {pred_probs} has {count:,} rows")
    return whole


def named_labels(path: Path, count: int, told: Names | None, of_data: Names | None) -> tuple[Array, Names]:
    """Labels as numbers, and the names of the classes; where nobody told these, it is said how they are taken."""
    known = told or (of_data if of_data and len(of_data) == count else None)
    numbers, names, guessed = numbers_of(read_given(path), known, path, count)
    if guessed or (known and not told):
        listed = printable(", ".join(names[:LISTED])) + (", ..." if count > LISTED else "")
        print(f"columns are taken as: {listed}; say --classes if that is not so")
    return numbers, names


def fingerprint(labels: Array, names: Sequence[str]) -> str:
    """Tells these labels from others."""
    return hashlib.sha256(repr(names).encode() + labels.astype(np.int64).tobytes()).hexdigest()[:16]


def refuse_other_decisions(out: Path, labels: str) -> None:
    """Decisions that a person made about other labels would change the wrong ones of these."""
    if not (out / "review" / "decisions.jsonl").exists() or not (out / "summary.json").exists():
        return
    if read_json(out / "summary.json").get("made", {}).get("fingerprint") != labels:
        raise InputError(f"{out}/review holds decisions about other labels; name another --out, or move it away")


LEARNS_ALL = ("default", "active-bias")  # methods that learn every label, as it is
UNSEEN = "The model did not learn from it."
REMARKS = {HELD_OUT: UNSEEN, TESTED: UNSEEN}
LEFT_OUT = "The model mostly set it aside as doubtful."


def audit_options(
    run: str,
    labels: str | None,
    pred_probs: Path | None,
    classes: Path | None,
    text: str | None,
    data: str | None,
    out: Path | None,
    export: Sequence[str],
    model: str | None,
) -> None:
    """Audit what the options name and say what was found."""
    for name in export:
        if name not in EXPORTS:
            raise InputError(f"there is no export {name!r}: {nearest(name, EXPORTS)}")
    if run and pred_probs is None:
        audit_run(Path(run), out, data, labels, export, model)
    elif pred_probs is not None and labels is not None and out is not None and not run:
        audit_files(Path(labels), pred_probs, classes, text, data, out, export)
    else:
        raise InputError("say which run to audit: labelsieve audit RUN; or give --labels, --pred-probs and --out")


def audit_run(
    path: Path, out: Path | None, data: str | None, labels: str | None, export: Sequence[str], model: str | None
) -> None:
    """The audit of a finished run."""
    refuse_unfinished(path)
    done, samples = read_run(path), read_samples(path)
    gathered, experiment = data_of(path, done, samples, data, labels)
    if samples is not None and len(samples["label"]) != len(gathered.whole):
        raise InputError(f"{path}/samples.safetensors has {len(samples['label']):,} samples, the data another number")
    whole, plain = gathered.whole, believes_all(experiment)
    names = whole.names and list(whole.names)
    if samples is None:
        print("the run has no per-sample statistics (it is of an older version): its model predicts all samples anew")
        findings = judged(path, predicted(path, gathered, model), whole.classes, names, plain=plain)
    else:
        findings = findings_in(path, samples, whole.classes, names, plain=plain)
    made = {"method": done.method, "versions": versions(), "statistics": samples is not None}
    views = views_of(experiment.data, reading_of(experiment), gathered.whole)
    write_audit(findings, penalty_of(done), made, views, out or path / "audit", export)
    say_decisions(path, export)


def findings_in(
    run: Path,
    samples: Mapping[str, Array],
    classes: Sequence[str],
    names: Sequence[str] | None = None,
    *,
    plain: bool = False,
) -> Findings:
    """What a finished run, from the statistics of its samples, and its probes say of every label."""
    guesses, training, unlearnt = opinion_on(run, samples, len(classes))
    remarks = remarks_of(samples)
    if unlearnt and not (samples["split"] == HELD_OUT).any():
        return findings_of(guesses, tuple(classes), names, remarks=remarks, unlearnt=True)
    known = {"training": training, "unlearnt": unlearnt, "remarks": remarks, "plain": plain}
    return judged(run, guesses, classes, names, **known)


def judged(run: Path, guesses: Guesses, classes: Sequence[str], names: Sequence[str] | None, **known: Any) -> Findings:
    """Every label, and the share that is wrong: where samples were not learnt from, those say more about it."""
    held = held_out_guesses(judges(run))
    seen = noise_among(held)
    rate, count = (cautious(seen.rate), len(held)) if held is not None and seen else (None, 0)
    told = told_to(read_run(run, with_tables=False))
    return findings_of(guesses, tuple(classes), names, rate=rate, held_out=count, told=told, **known)


def told_to(run: Run) -> float:
    """The share of wrong labels that a person named for a run that selects by it."""
    named = selects(run.method, run.spec.get("criterion")) and "chosen" not in run.start
    return float(run.spec["noise_rate"]) if named else 0.0


def selects(method: str, criterion: str | None) -> bool:
    """Whether a method leaves samples out by the noise rate that it is told."""
    return bool(make(method, Problem(2, 0.0, num_samples=1), criterion).selecting)


def believes_all(experiment: Experiment) -> bool:
    """Whether the network learnt from all labels alike, and so the wrong ones by heart."""
    if selects(experiment.method, experiment.criterion):
        return experiment.noise_rate == 0
    return experiment.method in LEARNS_ALL


def laid_in(samples: Mapping[str, Array]) -> Laid:
    """What the label file of a run said, where it had one."""
    decided = torch.from_numpy(samples["decided"]) if "decided" in samples else None
    return Laid(torch.from_numpy(samples["label"]).long(), decided)


def data_of(
    path: Path, run: Run, samples: Mapping[str, Array] | None, data: str | None, labels: str | None
) -> tuple[Gathered, Experiment]:
    """The data that the run was trained on, wherever it lies now.

    The labels of its label file are among its samples, so that the file may be gone or written anew.
    """
    changed = {name: value for name, value in (("data", data), ("labels", labels)) if value is not None}
    experiment = replace(restored(with_defaults(run.spec)), device="cpu", precision="fp32", **changed)  # type: ignore[arg-type]
    known = None if samples is None or labels is not None or experiment.noise else laid_in(samples)
    try:
        gathered = gather(experiment, Shelf(), known)
    except InputError as error:
        raise InputError(
            f"{error} (the data of {path}: --data says where it is now, --labels its label file)"
        ) from None
    was = read_json(path / "spec.json").get("data")
    if gathered.fingerprint != was:
        raise InputError(
            f"{path} was trained on other data than {experiment.data}: its fingerprint is {was}, this one's "
            f"{gathered.fingerprint}; name the data of the run with --data"
        )
    return gathered, experiment


def predicted(path: Path, gathered: Gathered, model: str | None) -> Guesses:
    """The delivered model's guesses for every sample of the data's training set."""
    probs = load(path, model=model).predict_set(gathered.whole)
    labels = gathered.whole.labels.clone()
    labels[gathered.places.train] = gathered.train.labels
    if gathered.places.valid is not None and gathered.valid is not None:
        labels[gathered.places.valid] = gathered.valid.labels
    return guesses_of(labels.numpy(), probs)


def remarks_of(samples: Mapping[str, Array]) -> list[str]:
    """What the training has to say of a sample besides the model's guess."""
    left_out = (samples["seen"] > 0) & (samples["mean_selected"] < 0.5)
    return [
        REMARKS.get(split) or (LEFT_OUT if out else "")
        for split, out in zip(samples["split"].tolist(), left_out.tolist(), strict=True)
    ]


def penalty_of(run: Run) -> Array | None:
    """The penalty labels (K, K) that the run learnt, mean over its networks."""
    for name in ("chosen/penalty", "last/penalty"):
        if name in run.tables:
            return np.asarray(run.tables[name].mean(0))
    return None
