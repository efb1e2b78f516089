"""write_audit: what an audit found, as files and on the terminal."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labelsieve.audit.exports import EXPORTS
from labelsieve.audit.findings import Findings
from labelsieve.audit.guesses import Array
from labelsieve.audit.tables import COLUMNS, gallery, json_bytes, labels_csv, labels_parquet, rows, summary
from labelsieve.audit.verdict import span
from labelsieve.cells import percent, printable
from labelsieve.experiments.show import Views
from labelsieve.files import disk_error, refuse_others, write_atomically
from labelsieve.report.reviewed import standing

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
    said = len(standing(place)) if "corrected" in export else 0
    if said:
        reviewed = f"labelsieve review {shlex.quote(str(place))} --export reviewed.csv"
        print(f"corrected.csv takes no notice of the {said:,} decisions in {place}/review: {printable(reviewed)} does")
