"""Write run folders and audits with made-up numbers."""

import io
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from safetensors.numpy import save_file

from labelsieve.runs.record import errors

CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
VERSIONS = {"labelsieve": "0.1.0", "torch": "2.13.0", "python": "3.11.7"}


def make_run(
    path: Path,
    *,
    method: str = "mentornet-prop",
    seed: int = 0,
    epochs: int = 12,
    done: bool = True,
    classes: Sequence[str] = CLOTHES,
    last: float = 16.2,
    test: bool = True,
    truth: bool = True,
    **spec: Any,
) -> Path:
    """Write a run whose test error falls to `last`; an unfinished one has done half of its epochs."""
    path.mkdir(parents=True)
    known = {"data": "photos", "method": method, "criterion": None, "noise_rate": 0.4, "epochs": epochs, "warmup": 4}
    known |= {"seed": seed, "noise": "pair" if truth else None, "rate": 0.4, "test": 0.0, "valid": 0.0}
    head = {"experiment": {**known, **spec}, "data": "16164843144e4d7c", "versions": VERSIONS}
    (path / "spec.json").write_text(json.dumps(head), encoding="utf-8")
    start: dict[str, Any] = {"event": "start", "samples": 6000, "classes": len(classes), "model": "small"}
    if truth:
        start["noise"] = {"realised_rate": 0.4}
    rows = [start]
    for epoch in range(1, epochs + 1 if done else epochs // 2 + 1):
        selecting = epoch > 4 and method != "default"
        row: dict[str, Any] = {"event": "epoch", "epoch": epoch, "train_loss": 2.0 / epoch, "precision": None}
        row |= {"test_error": last + 30 / epoch - 30 / epochs} if test else {}
        row |= {"precision": 0.95 - 0.2 / epoch if selecting else 0.6} if truth else {}
        rows.append({**row, "kept": [0.6 if selecting else 1.0] * len(classes), "seconds": 1.0})
    if done:
        rows.append({"event": "end", "chosen_epoch": epochs, **errors(rows)})
        (path / "done").touch()
        size = len(classes)
        counts = (np.eye(size) * 60 + np.roll(np.eye(size), 1, 1) * 40).astype(np.int64)
        penalty = np.roll(np.eye(size), 1, 0)[None].astype(np.float32)
        save_file({"chosen/penalty": penalty} | ({"noise": counts} if truth else {}), path / "tables.safetensors")
        head_of_model = {"labelsieve": json.dumps({"classes": list(classes)})}
        save_file({"weight": np.zeros(1, np.float32)}, path / "model.safetensors", head_of_model)
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (path / "record.jsonl").write_text(text, encoding="utf-8")
    return path


def make_audit(
    run: Path,
    *,
    classes: Sequence[str] = CLOTHES,
    kind: str = "image",
    shown: int = 200,
    ids: Sequence[str] = (),
    why: str = "The model is sure of another class, and this mistake is common.",
    clean: bool = False,
    marked: int | None = None,
) -> Path:
    """Write the audit of a run; its samples are images of noise, texts or rows, `marked` of them suspects."""
    marked = 0 if clean else shown if marked is None else marked
    draw = random.Random(0)
    folder = run / "audit"
    (folder / "thumbs").mkdir(parents=True)
    size = len(classes)
    wrong = [0.0 if clean else min(0.15 + 0.05 * (k % 9), 0.6) for k in range(size)]
    matrix = np.eye(size) * (1 - np.array(wrong)) + np.roll(np.eye(size), 1, 0) * np.array(wrong)[:, None]
    summary = {
        "samples": 6000,
        "issues": 0 if clean else 2210 if marked == shown else marked,
        "classes": list(classes),
        "noise_rate": {"estimate": 0.0, "low": 0.0, "high": 0.01}
        if clean
        else {"estimate": 0.38, "low": 0.35, "high": 0.4},
        "per_class": [
            {
                "class": name,
                "samples": 600,
                "estimate": w,
                "low": max(w - 0.04, 0),
                "high": w + 0.03,
                "issues": int(600 * w),
            }
            for name, w in zip(classes, wrong, strict=True)
        ],
        "noise_matrix": matrix.tolist(),
        "penalty": None if clean else np.roll(np.eye(size), 1, 0).tolist(),
        "verdict": "The labels look clean: nothing should be done."
        if clean
        else "About 38% (35 to 40%) of the 6,000 labels look wrong, mostly between neighbouring classes.",
        "made": {"method": "self-confidence", "versions": VERSIONS},
        "confusions": [
            {"given": classes[k], "suggested": classes[k - 1], "suspects": int(600 * w)}
            for k, w in sorted(enumerate(wrong), key=lambda item: -item[1])
            if w
        ],
    }
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    lines = []
    for k in range(shown):
        given = classes[(k * k) % size]
        line: dict[str, Any] = {"index": k, "id": ids[k % len(ids)] if ids else f"{given}/{k:04}.png", "why": why}
        line |= {"given_label": given, "suggested_label": classes[(k * k - 1) % size]}
        line |= {"label_quality": (k + 1) / 500, "is_label_issue": k < marked, **sample_content(folder, kind, k, draw)}
        lines.append(json.dumps(line) + "\n")
    (folder / "gallery.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder


def add_other_issues(folder: Path) -> None:
    """Add to an audit of at least 12 samples: two pairs of near-duplicates, one with different labels, and an outlier.

    Samples 0 and 1 differ, samples 3 and 7 have the same label. The outlier is sample 2,000, which is listed last.
    """
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    summary["other_issues"] = {"near_duplicate": 4, "near_duplicate_other_label": 2, "outlier": 1}
    summary["verdict"] += " 2 samples are near-duplicates of others with another label."
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    path = folder / "gallery.jsonl"
    rows = {row["index"]: row for row in map(json.loads, path.read_text(encoding="utf-8").splitlines())}
    for one, other in ((0, 1), (1, 0), (3, 7), (7, 3)):
        shown = ("index", "id", "given_label", "image", "text", "row")
        rows[one]["twin"] = {name: rows[other][name] for name in shown if name in rows[other]}
    for index, row in rows.items():
        row["listed"] = ["label", *(["near_duplicate"] if index in (0, 1, 3, 7) else [])]
    outlier = {"index": 2000, "id": "strange.png", "label_quality": 0.99, "is_label_issue": False, "outlier_score": 0.6}
    rows[2000] = {**rows[5], "why": "It resembles none of the classes.", "listed": ["outlier"], **outlier}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows.values()), encoding="utf-8")


def add_map(folder: Path, points: int = 300) -> None:
    """Add a map of points on a spiral to an audit; every third of them is a suspect."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    size, turns = len(summary["classes"]), np.linspace(0, 12, points)
    places = 500 + 40 * turns * np.array([np.cos(turns), np.sin(turns)])
    lines = (folder / "gallery.jsonl").read_text(encoding="utf-8").splitlines()
    ids = {row["index"]: row["id"] for row in map(json.loads, lines)}
    columns: dict[str, Any] = {"samples": summary["samples"]}
    columns |= {"index": list(range(points)), "id": [ids.get(k, f"{k}.png") for k in range(points)]}
    columns |= {"given": [k % size for k in range(points)], "suggested": [(k - 1) % size for k in range(points)]}
    columns |= {"is_label_issue": [k % 3 == 0 for k in range(points)]}
    columns |= {name: row.round().astype(int).tolist() for name, row in zip("xy", places, strict=True)}
    (folder / "map.json").write_text(json.dumps(columns), encoding="utf-8")


def sample_content(folder: Path, kind: str, k: int, draw: random.Random) -> dict[str, Any]:
    """Return the content of one sample."""
    if kind == "text":
        words = ["parcel", "late", "and", "the", "colour", "was", "not", "what", "I", "ordered", "but", "it", "fits"]
        return {"text": " ".join(draw.choice(words) for _ in range(draw.randint(5, 180)))}
    if kind == "row":
        return {"row": {f"measure {c}": round(draw.gauss(0, 1), 3) for c in range(draw.randint(3, 20))}}
    if kind == "image":
        buffer = io.BytesIO()
        pixels = np.random.default_rng(k).integers(0, 256, (96, 96, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(buffer, "WEBP", quality=80)
        (folder / "thumbs" / f"{k}.webp").write_bytes(buffer.getvalue())
        return {"image": f"thumbs/{k}.webp"}
    return {}
