"""Classify 500 photographs with onnxruntime and with `labelsieve predict`, and compare the probabilities.

    python -m benchmarks.served CLOTHING

CLOTHING is a folder with folders train/CLASS of JPEG files. A model is trained on 500 of them (as many of each class as
there are, in turn), exported as ONNX, and served in a process that imports onnxruntime, NumPy and Pillow only, with the
script of docs/export.md. Writes benchmarks/results/served.json.
"""

import json
import platform
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.record import commit_of
from labelsieve import load
from labelsieve.predict import predict_data

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks" / "results" / "served.json"
PHOTOGRAPHS = 500
SERVE = """
import json, sys
import numpy as np, onnxruntime
from PIL import Image, ImageOps
model, out, *files = sys.argv[1:]
session = onnxruntime.InferenceSession(model)
facts = session.get_modelmeta().custom_metadata_map
about, found = json.loads(facts["labelsieve"]), []
for file in files:
    photo = ImageOps.exif_transpose(Image.open(file)).convert("RGB")
    photo = photo.resize((about["width"], about["height"]), Image.Resampling.BILINEAR)
    (probabilities,) = session.run(None, {"images": np.asarray(photo)[None]})
    found.append(probabilities[0])
assert not any(name.partition(".")[0] in ("labelsieve", "torch") for name in sys.modules)
np.save(out, np.stack(found))
"""


def draw(clothing: Path, folder: Path) -> None:
    """Copy photographs of all classes in turn into folder/CLASS."""
    by_class = [sorted(place.glob("*.jpg")) for place in sorted((clothing / "train").iterdir())]
    in_turn = [file for file in chain.from_iterable(zip_longest(*by_class)) if file is not None]
    for file in in_turn[:PHOTOGRAPHS]:
        place = folder / file.parent.name
        place.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place / file.name)


def labelsieve(folder: Path, *words: str) -> None:
    subprocess.run([sys.executable, "-m", "labelsieve", *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)


def serve(folder: Path, files: list[str]) -> np.ndarray[Any, Any]:
    """Return the probabilities (n, K) that the exported model gives to files, without labelsieve and torch."""
    command = [sys.executable, "-c", SERVE, "model.onnx", "served.npy", *files]
    subprocess.run(command, cwd=folder, check=True)
    return np.load(folder / "served.npy")


def main() -> None:
    packages = ("labelsieve", "torch", "onnx", "onnxruntime", "pillow")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        draw(Path(sys.argv[1]), folder / "clothes")
        labelsieve(folder, "train", "clothes", "--device", "cpu", "--no-report", "--out", "run")
        labelsieve(folder, "export", "run", "--out", "model.onnx")
        expected, _, names = predict_data(load(folder / "run"), str(folder / "clothes"))
        files = {path.name: str(path) for path in (folder / "clothes").glob("*/*.jpg")}
        found = serve(folder, [files[Path(name).name] for name in names])
    record = {
        "commit": commit_of(),
        "versions": {"python": platform.python_version()} | {name: version(name) for name in packages},
        "photographs": len(found),
        "classes": found.shape[1],
        "largest difference of a probability": float(f"{abs(found - expected).max():.2g}"),
        "other classes": int((found.argmax(1) != expected.argmax(1)).sum()),
    }
    print(json.dumps(record, indent=1))
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
