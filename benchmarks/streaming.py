"""Images per second from disk: a torch DataLoader with Pillow compared with Streamed, without and with its cache.

python benchmarks/streaming.py [images]

Writes JPEG files of 500 x 375 pixels with photo-like content to a temporary folder; each loader delivers them as RGB
images of 224 x 224 pixels in batches of uint8 on the host. Figures are medians over rounds in which the loaders take
turns; the files are in the page cache and worker processes have started. CPU time per image, which hardly depends on
the load of the machine, is that of this process only, so it is missing for worker processes. Writes
benchmarks/results/streaming.json.
"""

import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from labelsieve.data.cache import open_cache
from labelsieve.data.images import DECODER, FileReader, Frame, Pictures
from labelsieve.data.sets import Streamed, usable_cores

HEIGHT, WIDTH, FRAME = 375, 500, Frame(224, 224, 3)
BATCH, ROUNDS = 64, 5
WORKERS = (0, 1, 2, 4)
Figures = dict[str, list[float]]
RESULTS = Path(__file__).parent / "results" / "streaming.json"


def natural(random: np.random.Generator) -> Image.Image:
    """Return a random image with the power spectrum of photographs and correlated channels."""
    noise = random.normal(size=(HEIGHT, WIDTH, 1)) + 0.3 * random.normal(size=(HEIGHT, WIDTH, 3))
    frequency = np.hypot(np.fft.fftfreq(HEIGHT)[:, None], np.fft.rfftfreq(WIDTH))[..., None]
    waves = np.fft.rfft2(noise, axes=(0, 1)) / (frequency + 1 / WIDTH) ** 1.2
    pixels = np.fft.irfft2(waves, (HEIGHT, WIDTH), axes=(0, 1))
    return Image.fromarray(np.clip(128 + 55 * pixels / pixels.std(), 0, 255).astype(np.uint8))


def written(folder: Path, count: int) -> Pictures:
    """Write labelled JPEG files."""
    random = np.random.default_rng(0)
    names = [f"{number}.jpg" for number in range(count)]
    for name in names:
        natural(random).save(folder / name, quality=90)
    return Pictures(names, FileReader(folder, names), torch.zeros(count, dtype=torch.int64), ("one",))


class Plain(Dataset[Tensor]):
    """Reads images as most training scripts do."""

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        self.paths = [folder / name for name in names]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        with Image.open(self.paths[index]) as image:
            small = image.convert("RGB").resize((FRAME.width, FRAME.height), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(small))


def plain_epoch(folder: Path, pictures: Pictures, workers: int) -> Callable[[], None]:
    loader = DataLoader(
        Plain(folder, pictures.names), BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )

    def epoch() -> None:
        for _ in loader:
            pass

    return epoch


def streamed_epoch(data: Streamed) -> Callable[[], None]:
    def epoch() -> None:
        for _ in data.staged(torch.randperm(len(data)), BATCH):
            pass

    return epoch


def measured(epochs: dict[str, Callable[[], None]], count: int) -> tuple[Figures, Figures]:
    """Return images per second and CPU milliseconds per image of each loader, in rounds in which they take turns."""
    rates: Figures = {name: [] for name in epochs}
    costs: Figures = {name: [] for name in epochs}
    for epoch in epochs.values():
        epoch()
    for _ in range(ROUNDS):
        for name, epoch in epochs.items():
            start, used = time.perf_counter(), time.process_time()
            epoch()
            rates[name].append(count / (time.perf_counter() - start))
            costs[name].append((time.process_time() - used) / count * 1000)
    return rates, costs


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 384
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pictures = written(folder, count)
        size = sum(path.stat().st_size for path in folder.iterdir()) / count
        cache = open_cache(folder, pictures, FRAME, usable_cores())
        data = [Streamed(pictures, FRAME, pictures.labels, pictures.classes, workers=workers) for workers in WORKERS]
        epochs = {f"DataLoader, {workers} workers": plain_epoch(folder, pictures, workers) for workers in WORKERS}
        epochs |= {f"Streamed, {kind.workers} workers": streamed_epoch(kind) for kind in data}
        epochs |= {f"cached, {kind.workers} workers": streamed_epoch(replace(kind, cache=cache)) for kind in data}
        rates, costs = measured(epochs, count)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    best = max(rate for name, rate in medians.items() if name.startswith("DataLoader"))
    cost = {
        name: None if name.startswith("DataLoader") and " 0 " not in name else round(statistics.median(values), 3)
        for name, values in costs.items()
    }
    machine = {
        "device": "cpu",
        "processor": platform.processor() or platform.machine(),
        "cores": usable_cores(),
        "load": round(os.getloadavg()[0], 2),
        "images": count,
        "bytes per image": round(size),
        "batch": BATCH,
        "rounds": ROUNDS,
        "decoder": DECODER,
        **{package: version(package) for package in ("torch", "pillow", "numpy")},
        "python": platform.python_version(),
    }
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    print(
        f"{'loader':24}{'images/s':>10}{'lowest':>10}{'highest':>10}{'CPU ms/image':>14}{'times best DataLoader':>28}"
    )
    for name, values in rates.items():
        figures = f"{medians[name]:10,.0f}{min(values):10,.0f}{max(values):10,.0f}"
        print(f"{name:24}{figures}{cost[name] or '':>14}{medians[name] / best:28.2f}")
    rows = {
        name: {
            "median": round(medians[name]),
            "all": [round(value) for value in values],
            "CPU ms per image": cost[name],
            "times the best DataLoader": round(medians[name] / best, 2),
        }
        for name, values in rates.items()
    }
    RESULTS.write_text(json.dumps({**machine, "images per second": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
