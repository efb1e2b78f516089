"""labelsieve predict: tables of predictions for labelled and unlabelled data."""

import csv
import re
import shutil

import numpy as np
import pytest

import labelsieve
from labelsieve.cli import execute
from labelsieve.runs.read import read_run
from tests.commands.conftest import QUICK, SMALL, picture
from tests.conftest import save_blobs


def read_table(path):
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.fixture(scope="module")
def blob_run(tmp_path_factory):
    """Train on a .npz file with a test set; return the file and the run."""
    place = tmp_path_factory.mktemp("blobs")
    data = save_blobs(place / "data.npz", 150, test=40)
    assert execute(["train", str(data), *SMALL, "--out", str(place / "run")]) == 0
    return data, place / "run"


@pytest.fixture
def fruit_run(folder, tmp_path):
    run = tmp_path / "run"
    assert execute(["train", str(folder), *SMALL, "--out", str(run)]) == 0
    return run


def test_delivered_model_predicts(blob_run, tmp_path, capsys):
    data, run = blob_run
    model = labelsieve.load(run)
    with np.load(data) as file:
        images, labels = file["test_images"], file["test_labels"]
    probs = model.predict_proba(images)
    assert probs.shape == (40, 4) and np.allclose(probs.sum(1), 1, atol=1e-5)
    assert 100 * (model.predict(images) != labels).mean() == pytest.approx(read_run(run).end["last"])
    np.save(tmp_path / "images.npy", images)
    assert execute(["predict", str(run), str(tmp_path / "images.npy"), "--out", str(tmp_path / "p.csv")]) == 0
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert lines[0] == "id,predicted_label,confidence" and len(lines) == 41
    assert lines[1].split(",")[1] == model.classes[model.predict(images)[0]]
    capsys.readouterr()
    assert execute(["predict", str(run), str(data)]) == 0
    assert capsys.readouterr().out.count("\n") == 191  # header, training set and test set


def test_images_of_another_size_are_refused(blob_run, tmp_path, capsys):
    _, run = blob_run
    assert execute(["predict", str(run), "fashion"]) == 2
    assert "trained on images of 8 x 8 pixels with 1 channels, got 28 x 28 with 1" in capsys.readouterr().err
    (tmp_path / "rows.csv").write_text("a,b,label\n1,2,x\n3,4,y\n")
    assert execute(["predict", str(run), str(tmp_path / "rows.csv")]) == 2
    assert "trained on images of 8 x 8 pixels, got rows of 2 numbers" in capsys.readouterr().err
    with pytest.raises(ValueError, match="got 9 x 9 with 1; pass a single image as"):
        labelsieve.load(run).predict(np.zeros((2, 9, 9), np.uint8))


def test_damaged_model_is_refused(tmp_path, capsys):
    (tmp_path / "model.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00{}      ")
    assert execute(["predict", str(tmp_path), "fashion"]) == 2
    assert "is not a model of labelsieve, or it is damaged" in capsys.readouterr().err


def test_labelled_folder(folder, fruit_run, tmp_path, capsys):
    table = tmp_path / "predictions.csv"
    assert execute(["predict", str(fruit_run), str(folder / "test"), "--out", str(table)]) == 0
    rows = read_table(table)
    assert len(rows) == 15 and rows[0]["id"].endswith("000.png")
    assert {row["predicted_label"] for row in rows} <= {"apple", "pear", "plum"}
    shown = capsys.readouterr().out
    assert "15 samples classified; " in shown and f"% of the predictions differ from the label: {table}" in shown


def test_single_image(folder, fruit_run, tmp_path, capsys):
    one = folder / "test" / "pear" / "002.png"
    assert execute(["predict", str(fruit_run), str(one.parent), "--out", str(tmp_path / "all.csv")]) == 0
    capsys.readouterr()
    assert execute(["predict", str(fruit_run), str(one)]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header == "id,predicted_label,confidence" and len(lines) == 1
    assert lines[0] in (tmp_path / "all.csv").read_text().splitlines()
    one.write_bytes(b"nothing")
    assert execute(["predict", str(fruit_run), str(one)]) == 2
    assert f"cannot read {one}: " in capsys.readouterr().err


def test_unlabelled_images(folder, fruit_run, tmp_path, capsys):
    new = tmp_path / "new"
    new.mkdir()
    for number in range(3):
        picture(number, number).save(new / f"{number}.png")
    (new / "broken.png").write_bytes(b"x")
    capsys.readouterr()
    assert execute(["predict", str(fruit_run), str(new), "--out", str(tmp_path / "p.csv")]) == 0
    assert "1 unusable file or row: broken.png: " in capsys.readouterr().err
    (new / "list.csv").write_text("path\n2.png\n0.png\n")
    assert execute(["predict", str(fruit_run), str(new / "list.csv"), "--out", str(tmp_path / "q.csv")]) == 0
    one, two = (
        {row["id"]: row["predicted_label"] for row in read_table(tmp_path / name)} for name in ("p.csv", "q.csv")
    )
    assert list(two) == ["2.png", "0.png"] and len(one) == 3 and all(one[name] == two[name] for name in two)
    assert execute(["predict", str(fruit_run), str(folder), "--out", str(tmp_path / "all.csv")]) == 0
    assert len(read_table(tmp_path / "all.csv")) == 75  # training set and test set


def test_columns_are_matched_by_name(tmp_path, capsys):
    random = np.random.default_rng(0)
    labels = random.integers(2, size=120)
    values = random.normal(size=(120, 2)) + 4 * labels[:, None] * [1, -1]

    def write(name, columns):
        rows = [[{"a": v[0], "b": v[1], "label": k}[c] for c in columns] for v, k in zip(values, labels, strict=True)]
        with (tmp_path / name).open("w", newline="") as file:
            csv.writer(file).writerows([columns, *rows])
        return str(tmp_path / name)

    run, out = str(tmp_path / "run"), tmp_path / "out.csv"
    options = [*QUICK, "--epochs", "8", "--lr", "0.05", "--out", run]
    assert execute(["train", write("a.csv", ["a", "b", "label"]), *options]) == 0
    tables = []
    for name, columns in {"b.csv": ["b", "label", "a"], "c.csv": ["b", "a"], "a.csv": ["a", "b", "label"]}.items():
        assert execute(["predict", run, write(name, columns), "--out", str(out)]) == 0
        tables.append([row["predicted_label"] for row in read_table(out)])
    assert tables[0] == tables[1] == tables[2] and len(set(tables[0])) == 2
    for text, said in (
        ("a, b\n1,2\n", ""),
        ("a,b\n1,2,3\n", "new.csv:2 has 3 cells, but the header has 2"),
        ("a,b\n1,2\n1,nan\n", "new.csv:3: column 'b' contains 'nan', which is too large or not finite; correct it"),
        ("a,b\ninf,2\n", "new.csv:2: column 'a' contains 'inf', which is too large or not finite"),
        ("a,b\n1e39,2\n", "new.csv:2: column 'a' contains '1e39', which is too large or not finite"),
    ):
        (tmp_path / "new.csv").write_text(text)
        assert execute(["predict", run, str(tmp_path / "new.csv")]) == (2 if said else 0)
        assert said in capsys.readouterr().err
    for value in ("nan", "1e+39"):
        with pytest.raises(ValueError, match=f"row 1, column 0 contains {re.escape(value)}, which is too large or not"):
            labelsieve.load(run).predict(np.array([[0.0, 0.0], [float(value), 0.0]]))
    with pytest.raises(ValueError, match=r"images: all rows must have the same shape$"):
        labelsieve.load(run).predict([[1], [1, 2]])
    (tmp_path / "new.csv").write_text("a,b,label\n1,2,x\n1,2,x\n")
    assert execute(["predict", run, str(tmp_path / "new.csv")]) == 0
    assert "new.csv has labels of one class only: they are not compared with the pred" in capsys.readouterr().err
    assert execute(["predict", run, write("d.csv", ["a", "label"]), "--out", str(out)]) == 2
    assert "no column 'b'" in capsys.readouterr().err


def test_labels_that_the_model_does_not_know_are_not_errors(folder, fruit_run, tmp_path, capsys):
    (folder / "test" / "pear").rename(folder / "test" / "quince")
    table = tmp_path / "predictions.csv"
    assert execute(["predict", str(fruit_run), str(folder / "test"), "--out", str(table)]) == 0
    wrong = sum(row["predicted_label"] not in row["id"] for row in read_table(table) if "quince" not in row["id"])
    said = "5 of them with labels that the model does not know (quince); "
    assert f"15 samples classified, {said}{10 * wrong:.2f}% of the other predictions differ" in capsys.readouterr().out


def test_paths_are_classified_as_by_the_command(folder, fruit_run, tmp_path):
    paths = sorted((folder / "test").glob("*/*.png"))
    model = labelsieve.load(fruit_run)
    probs = model.predict_proba(paths)
    assert (probs == model.predict_proba([str(path) for path in paths])).all()
    assert execute(["predict", str(fruit_run), str(folder / "test"), "--out", str(tmp_path / "p.csv")]) == 0
    shown = [(row["predicted_label"], row["confidence"]) for row in read_table(tmp_path / "p.csv")]
    assert shown == [(model.classes[row.argmax()], f"{row.max():.4f}") for row in probs]
    with pytest.raises(ValueError, match="pass a list, also for one text or one path"):
        model.predict(paths[0])
    with pytest.raises(ValueError, match=r"cannot read .*none\.png"):
        model.predict([folder / "none.png"])
    with pytest.raises(ValueError, match="must have the same shape; pass paths instead"):
        model.predict([np.zeros((8, 8), np.uint8), np.zeros((9, 9), np.uint8)])


def test_columns_of_the_training_are_used(tmp_path, capsys):
    words = {"billing": "invoice charge refund", "login": "password account reset"}
    rows = [(f"{text} {i}", queue) for i in range(30) for queue, text in words.items()]

    def write(name, header, rows):
        with (tmp_path / name).open("w", newline="") as file:
            csv.writer(file).writerows([header, *rows])
        return str(tmp_path / name)

    run, out = str(tmp_path / "run"), tmp_path / "out.csv"
    columns = ["--text-column", "ticket", "--label-column", "queue"]
    assert execute(["train", write("t.csv", ["ticket", "queue"], rows), *columns, "--no-report", "--out", run]) == 0
    assert (
        execute(["predict", run, write("new.csv", ["number", "ticket"], [(1, "reset my password")]), "--out", str(out)])
        == 0
    )
    assert [row["predicted_label"] for row in read_table(out)] == ["login"]
    capsys.readouterr()
    assert execute(["predict", run, write("more.csv", ["ticket", "queue"], rows[:4]), "--out", str(out)]) == 0
    assert "4 samples classified; 0.00% of the predictions differ from the label" in capsys.readouterr().out
    other = write("other.csv", ["body"], [("refund of a charge",)])
    assert execute(["predict", run, other]) == 2 and "has no column 'ticket'" in capsys.readouterr().err
    assert execute(["predict", run, other, "--text-column", "body"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split(",")[1] == "billing"
    (tmp_path / "alone").mkdir()
    shutil.copy(tmp_path / "run" / "model.safetensors", tmp_path / "alone")
    assert execute(["predict", str(tmp_path / "alone"), other, "--text-column", "body"]) == 0
