"""A folder of photographs, from the command to corrected labels.

The example writes a folder of photographs of clothes, in which a quarter of the labels is wrong, and runs the commands
that you would run on your own folder. With `labelsieve review runs/mine` you would decide about the suspects in the
browser; here a careful reviewer is simulated, whose decisions are imported. Needs `pip install '.[photos]'` in a clone.
"""

import csv
import io
import subprocess
import sys
import tempfile
import zipfile
from importlib.resources import files
from pathlib import Path

SIMILAR = {"dress": "longsleeve", "longsleeve": "t-shirt", "t-shirt": "longsleeve"}
SIMILAR |= {"pants": "shorts", "shorts": "pants"}


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        true = write_photos(folder / "photos")  # {name: true label} of the training photographs
        labelsieve("train photos/ --out runs/mine", folder)
        suspects = [row for row in read(folder / "runs/mine/audit/labels.csv") if row["is_label_issue"] == "true"]
        with (folder / "decisions.csv").open("w", newline="") as file:
            rows = [(row["id"], true[Path(row["id"]).name], "true") for row in suspects]
            csv.writer(file).writerows([("name", "label", "decided"), *rows])
        labelsieve("review runs/mine --import decisions.csv", folder)
        labelsieve("review runs/mine --export reviewed.csv", folder)
        labelsieve("train photos/ --labels reviewed.csv --out runs/better", folder)

        before = {path.name: path.parent.name for path in folder.glob("photos/train/*/*")}  # the folder is the label
        after = {Path(row["name"]).name: row["label"] for row in read(folder / "reviewed.csv")}
    print(f"{len(suspects)} of {len(true)} labels were reviewed")
    print(f"wrong labels: {wrong(before, true)} before, {wrong(after, true)} after the review")


def labelsieve(arguments: str, folder: Path) -> None:
    """Run a command as in a terminal, and print it with the lines that matter here."""
    print(f"$ labelsieve {arguments}")
    command = [sys.executable, "-m", "labelsieve", *arguments.split()]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    for line in done.stdout.splitlines():
        if line.startswith(("noise rate:", "test error:")) or arguments.startswith("review"):
            print(f"  {line}")


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write_photos(folder: Path) -> dict[str, str]:
    """Write the embedded photographs as folder/SPLIT/LABEL/NAME with wrong labels; return the true ones."""
    true, seen = {}, dict.fromkeys(SIMILAR, 0)
    with zipfile.ZipFile(io.BytesIO(files("labelsieve.data").joinpath("photos.zip").read_bytes())) as archive:
        for row in csv.DictReader(io.StringIO(archive.read("photos.csv").decode())):
            name, label = Path(row["image"]).name, row["label"]
            if row["split"] == "train":
                true[name] = label
                seen[label] = seen.get(label, 0) + 1
                label = SIMILAR.get(label, label) if seen[label] % 10 < 3 else label  # three of ten
            target = folder / row["split"] / label / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(row["image"]))
    return true


def wrong(labels: dict[str, str], true: dict[str, str]) -> int:
    return sum(labels[name] != true[name] for name in true)


if __name__ == "__main__":
    main()
