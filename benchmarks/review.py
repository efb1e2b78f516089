"""What a review costs: decide about 200 suspect photographs with the keyboard, one by one and by pairs of labels.

    python -m benchmarks.review --name after
    python -m benchmarks.review --name before --package ../another-checkout

drives the review page of a version of the package in Chromium, and adds the figures to benchmarks/results/review.json.
The photographs are 600 made-up JPEG files of 1600 x 1200 pixels in four classes; 200 of them have the label of the next
class, and `labelsieve audit --pred-probs` finds them. The reviewer accepts every suggestion. One by one, an action is a
key; the next picture counts as shown once it is complete and a part of the page, to the next frame, and the wait ends
when the page also accepts the next key. By pairs, the actions are g, then Ctrl-a and a for every pair, and a wait ends
when the next pair is drawn and its visible pictures are complete. A page without a grid has no figures by pairs. `load`
is the mean number of processes that ran or waited in the last minute.
"""

import argparse
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks" / "results" / "review.json"
CLASSES = ("coat", "dress", "hat", "shirt")
COUNT, WRONG, SIZE = 600, 200, (1600, 1200)
VIEW = {"width": 1400, "height": 900}

WAITING = """
const done = (condition) => new Promise((resolve) => {
  const look = () => (condition() ? resolve() : requestAnimationFrame(look));
  look();
});
const key = (name, ctrlKey = false) =>
  document.body.dispatchEvent(new KeyboardEvent("keydown", {key: name, ctrlKey, bubbles: true}));
const visible = (image) => image.getBoundingClientRect().top < innerHeight;
const complete = (selector) =>
  [...document.querySelectorAll(selector)].filter(visible).every((image) => image.complete && image.naturalWidth > 0);
"""
ONE_BY_ONE = (
    """async (count) => {"""
    + WAITING
    + """
  const original = () => typeof ready === "undefined" || document.querySelector("#view img").src.includes("/pictures/");
  const shown = () => !samples[current] || (complete("#view img") && original());
  await done(() => acceptsKeys() && shown());
  const width = document.querySelector("#view img").naturalWidth;
  const [waits, appeared] = [[], []];
  while (waits.length < count) {
    const before = samples[current].index;
    const began = performance.now();
    key("a");
    await done(() => samples[current]?.index !== before && shown());
    appeared.push(performance.now() - began);
    await done(acceptsKeys);
    waits.push(performance.now() - began);
  }
  return [waits, width, appeared];
}"""
)
BY_PAIRS = (
    """async (count) => {"""
    + WAITING
    + """
  await done(() => ready && acceptsKeys());
  const waits = [];
  const step = async (act, condition) => {
    const began = performance.now();
    act();
    await done(() => !saving && condition() && complete("#cells img"));
    waits.push(performance.now() - began);
  };
  await step(() => key("g"), () => cells.length > 0);
  const width = document.querySelector("#cells img").naturalWidth;
  while (decisions.size < count) {
    const before = decisions.size;
    await step(() => key("a", true), () => selected.size === cells.length);
    await step(() => key("a"), () => decisions.size > before && selected.size === 0);
  }
  return [waits, width];
}"""
)


def write_data(folder: Path) -> None:
    """Write the photographs, their labels and the probabilities that a classifier could have given."""
    rng = np.random.default_rng(0)
    true = np.arange(COUNT) % len(CLASSES)
    wrong = rng.permutation(COUNT)[:WRONG]
    given = true.copy()
    given[wrong] = (true[wrong] + 1) % len(CLASSES)
    noise = rng.integers(0, 60, (SIZE[1] // 8, SIZE[0] // 8, 3), dtype=np.uint8)
    texture = Image.fromarray(noise).resize(SIZE)
    for index, label in enumerate(given):
        place = folder / "clothes" / CLASSES[label]
        place.mkdir(parents=True, exist_ok=True)
        colour = Image.new("RGB", SIZE, tuple(int(each) for each in rng.integers(40, 180, 3)))
        Image.blend(colour, texture, 0.4).save(place / f"{index:04}.jpg", quality=85)
    order = np.argsort([f"{CLASSES[label]}/{index:04}" for index, label in enumerate(given)])  # as the folder is listed
    probs = np.full((COUNT, len(CLASSES)), 0.02) + 0.02 * rng.random((COUNT, len(CLASSES)))
    probs[np.arange(COUNT), true] = 0.9
    np.save(folder / "probs.npy", (probs / probs.sum(1, keepdims=True))[order])
    np.save(folder / "labels.npy", given[order])


def labelsieve(package: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "labelsieve", *words]


def audit(package: Path, folder: Path, out: str) -> None:
    """Audit the labels with the package, which writes its own thumbnails."""
    files = ["--labels", "labels.npy", "--pred-probs", "probs.npy", "--data", "clothes", "--out", out]
    environment = {**os.environ, "PYTHONPATH": str(package)}
    command = labelsieve(package, "audit", *files)
    subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=True)


def review(package: Path, folder: Path, out: str, script: str, browser: Any) -> dict[str, Any] | None:
    """Decide about all suspects on the page; return the actions and their waits, or None without a grid."""
    command = labelsieve(package, "review", out, "--no-browser")
    environment = {**os.environ, "PYTHONPATH": str(package)}
    server = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        found = re.search(r"http://\S+", server.stdout.readline() if server.stdout else "")
        assert found is not None
        context = browser.new_context(viewport=VIEW)
        context.add_cookies([{"name": "reviewer", "value": "", "domain": "127.0.0.1", "path": "/"}])
        page = context.new_page()
        page.set_default_timeout(600_000)
        page.goto(found[0])
        page.wait_for_selector("#view img")
        if script is BY_PAIRS and not page.evaluate("typeof drawGrid === 'function'"):
            return None
        waits, width, *appeared = page.evaluate(script, WRONG)
        decided = page.evaluate("decisions.size")
        context.close()
        assert decided >= WRONG, decided
        return {
            "decisions": decided,
            "actions": len(waits),
            **{name: value for shown in appeared for name, value in milliseconds("shown", shown).items()},
            **milliseconds("wait", waits),
            "wait_s_total": round(sum(waits) / 1000, 1),
            "picture_width": width,
        }
    finally:
        server.kill()
        server.communicate()


def milliseconds(name: str, values: Sequence[float]) -> dict[str, int]:
    """Return the median and the 95% quantile of some durations."""
    return {
        f"{name}_ms_median": round(statistics.median(values)),
        f"{name}_ms_95": round(float(np.quantile(values, 0.95))),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", required=True, help="of this measurement in the record")
    parser.add_argument("--package", type=Path, default=ROOT, help="checkout to measure")
    options = parser.parse_args()
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        write_data(folder)
        chromium = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        measured: dict[str, Any] = {"load": round(os.getloadavg()[0], 1)}
        for task, script in (("one by one", ONE_BY_ONE), ("by pairs", BY_PAIRS)):
            out = task.replace(" ", "-")
            audit(options.package.resolve(), folder, out)
            measured[task] = review(options.package.resolve(), folder, out, script, browser)
        versions = {"python": platform.python_version(), "chromium": browser.version}
        browser.close()
    record |= {"machine": f"{os.cpu_count()} cores, {platform.machine()}", "versions": versions, options.name: measured}
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(measured, indent=1))


if __name__ == "__main__":
    main()
