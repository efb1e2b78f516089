"""Decisions of other tools: files as Label Studio, FiftyOne and cleanlab write them, there and back.

The files in exports/ were written by the converter of label-studio-sdk 2.1.2 for six tasks of the run below.
"""

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from labelsieve.auto.files import audit_files
from labelsieve.cli import execute
from labelsieve.errors import InputError
from labelsieve.review.decisions import DecisionLog, decisions_path, read_decisions
from labelsieve.review.export import export_labels
from labelsieve.review.imports import import_decisions, read_answers
from tests.review.conftest import CLASSES, logged_decisions, make_audited_run, make_decision, read_labels

EXPORTS = Path(__file__).parent / "exports"
CONFIG = (
    '<View><Image name="image" value="$image"/><Choices name="label" toName="image">'
    + "".join(f'<Choice value="{name}"/>' for name in CLASSES)
    + "</Choices></View>"
)


def outcomes(run: Path) -> list[tuple]:
    """Return what was logged about each sample: index, decision, label, reviewer."""
    return sorted((d["index"], d["decision"], d["label"], d["reviewer"]) for d in logged_decisions(run))


# samples 39, 36: cat; 38, 35: eel; 37, 34: dog. The suggestion is the next class, cat after eel
LABEL_STUDIO = [
    (36, "other", "eel", "bob@example.org"),
    (37, "keep", None, "ann@example.org"),
    (38, "accept", "cat", "bob@example.org"),
    (38, "keep", None, "ann@example.org"),
    (39, "keep", None, "ann@example.org"),  # she had chosen dog an hour before
]
SKIPPED = (35, "unsure", None, "bob@example.org")  # only the full export has skipped tasks


@pytest.mark.parametrize("name", ["label-studio.json", "label-studio-min.json", "label-studio.csv"])
def test_label_studio_exports(run, name, capsys):
    assert execute(["review", str(run), "--import", str(EXPORTS / name)]) == 0
    full = name == "label-studio.json"
    assert outcomes(run) == ([SKIPPED] if full else []) + LABEL_STUDIO
    line = capsys.readouterr().out
    assert line.count("\n") == 1 and f"{5 + full} decisions imported (1 suggestions accepted, 1 other labels" in line
    logged = logged_decisions(run)
    assert {each["tab"] for each in logged} == {"import label-studio"}
    assert {each["action"] for each in logged} == {f"import {name}"}
    assert [each["time"] for each in logged if each["index"] == 39] == ["2026-01-02T10:00:00.000000Z"]
    assert all(each["id"] == f"{CLASSES[each['index'] % 3]}/{each['index']}.png" for each in logged)


def test_importing_again_changes_nothing(run, tmp_path):
    for name in ("label-studio.json", "label-studio.json", "label-studio-min.json", "label-studio.csv"):
        line = import_decisions(run, EXPORTS / name)
    assert len(logged_decisions(run)) == 6 and "0 decisions imported; 5 were imported before" in line
    log = DecisionLog(decisions_path(run))
    log.append(lambda past: [make_decision(36, "accept", "dog")])  # a person changes her mind on the page
    log.append(lambda past: [make_decision(37, "undo")])
    import_decisions(run, EXPORTS / "label-studio.json")
    assert len(logged_decisions(run)) == 8 and read_decisions(run)[36].label == "dog" and 37 not in read_decisions(run)
    tasks = json.loads((EXPORTS / "label-studio.json").read_text())
    tasks[3]["annotations"][0]["result"][0]["value"]["choices"] = ["cat"]  # and in Label Studio, again
    (tmp_path / "newer.json").write_text(json.dumps(tasks))
    assert "1 decisions imported (1 kept); 5 were imported before" in import_decisions(run, tmp_path / "newer.json")
    assert read_decisions(run)[36].decision == "keep"


@pytest.mark.parametrize(
    ("person", "name"),
    [
        (7, "Label Studio user 7"),
        ({"id": 7, "email": "", "username": ""}, "Label Studio user 7"),
        (None, ""),
        ("x" * 80, "x" * 64),
    ],
)
def test_reviewers_of_label_studio(run, tmp_path, person, name):
    tasks = json.loads((EXPORTS / "label-studio.json").read_text())[2:3]
    tasks[0]["annotations"][0]["completed_by"] = person
    (tmp_path / "tasks.json").write_text(json.dumps(tasks))
    import_decisions(run, tmp_path / "tasks.json")
    assert outcomes(run) == [(37, "keep", None, name)]


def test_reviewer_of_a_file_without_names_is_that_of_the_option(run, tmp_path):
    table = write_table(tmp_path / "t.csv", ["index", "label"], [3, "dog"])
    assert execute(["review", str(run), "--import", str(table), "--reviewer", "Ann Lee"]) == 0
    assert execute(["review", str(run), "--import", str(EXPORTS / "label-studio.csv"), "--reviewer", "Ann Lee"]) == 0
    assert {each[3] for each in outcomes(run)} == {"Ann Lee", "ann@example.org", "bob@example.org"}


def test_label_studio_tasks_without_index_are_found_by_their_file(run, tmp_path):
    tasks = json.loads((EXPORTS / "label-studio.json").read_text())[2:4]
    tasks[0]["data"] = {"image": "/data/local-files/?d=pictures/dog/37.png"}
    tasks[1]["data"] = {"image": "https://example.org/cat/36.png?token=1"}
    (tmp_path / "tasks.json").write_text(json.dumps(tasks))
    import_decisions(run, tmp_path / "tasks.json")
    assert [each[0] for each in outcomes(run)] == [36, 37]


def fiftyone_sample(path, label, tags=(), label_tags=(), **fields):
    truth = {"_id": {"$oid": "5f"}, "_cls": "Classification", "tags": list(label_tags), "label": label}
    head = {"_id": {"$oid": "60"}, "filepath": path, "tags": list(tags), "_media_type": "image", "metadata": None}
    return {**head, "ground_truth": truth, **fields}


def test_fiftyone_samples(run, tmp_path):
    samples = [
        fiftyone_sample("data/cat/39.png", "dog"),  # changed, to the suggestion
        fiftyone_sample("/somewhere/else/eel/38.png", "dog"),  # changed, to another class
        fiftyone_sample("/exported/data/37.png", "dog", ["train", "reviewed"]),  # confirmed by a tag
        fiftyone_sample("data/36.png", "cat", [], ["Validated"]),  # by a tag of the label
        fiftyone_sample("data/35.png", "cat", ["unsure"]),
        fiftyone_sample("data/34.png", "dog", ["train"]),  # as it was: nobody decided
        {**fiftyone_sample("data/33.png", "cat"), "ground_truth": None},
        fiftyone_sample("data/renamed-2.png", "eel", index=31),
    ]
    (tmp_path / "samples.json").write_text(json.dumps({"samples": samples}))
    line = import_decisions(run, tmp_path / "samples.json")
    assert outcomes(run) == [
        (31, "accept", "eel", ""),
        (35, "unsure", None, ""),
        (36, "keep", None, ""),
        (37, "keep", None, ""),
        (38, "other", "dog", ""),
        (39, "accept", "dog", ""),
    ]
    assert "6 decisions imported" in line and "0 decisions imported" in import_decisions(run, tmp_path / "samples.json")


@pytest.mark.parametrize("classes", [CLASSES, None])
def test_fiftyone_classification_labels(run, tmp_path, classes):
    def target(label):
        return CLASSES.index(label) if classes else label

    labels = {
        "39": target("dog"),
        "dog/37": {"label": target("cat"), "confidence": 1.0},
        "34": target("dog"),
        "33": None,
    }
    (tmp_path / "labels.json").write_text(json.dumps({"classes": classes, "labels": labels}))
    import_decisions(run, tmp_path / "labels.json")
    assert outcomes(run) == [(37, "other", "cat", ""), (39, "accept", "dog", "")]


def write_table(path: Path, *rows) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return path


@pytest.mark.parametrize("column", ["corrected_label", "label"])
@pytest.mark.parametrize("by", ["index", "", "filename"])
def test_cleanlab_columns(run, tmp_path, column, by):
    def key(index):
        return f"{CLASSES[index % 3]}/{index}.png" if by == "filename" else index

    table = write_table(
        tmp_path / "issues.csv",
        [by, "is_label_issue", "label_score", "given_label", "predicted_label", column],
        [key(39), "True", 0.01, "cat", "dog", "dog"],
        [key(38), "True", 0.02, "eel", "cat", "dog"],
        [key(37), "True", 0.02, "dog", "eel", "dog"],  # an issue whose label is confirmed
        [key(36), "False", 0.9, "cat", "cat", "cat"],  # no issue, label as it was
        [key(35), "True", 0.1, "eel", "cat", ""],  # not looked at
    )
    assert "3 decisions imported" in import_decisions(run, table)
    assert outcomes(run) == [(37, "keep", None, ""), (38, "other", "dog", ""), (39, "accept", "dog", "")]
    assert {each["tab"] for each in logged_decisions(run)} == {"import cleanlab"}


def test_columns_without_names_are_in_the_order_of_the_data(run, tmp_path):
    rows = [["False", CLASSES[k % 3]] for k in range(40)]
    rows[5] = ["True", "cat"]
    table = write_table(tmp_path / "issues.csv", ["is_label_issue", "label"], *rows)
    import_decisions(run, table)
    assert outcomes(run) == [(5, "accept", "cat", "")]
    short = write_table(tmp_path / "short.csv", ["is_label_issue", "label"], *rows[:39])
    with pytest.raises(InputError, match="neither index nor name, and 39 rows for 40 samples"):
        import_decisions(run, short)


def damaged_files() -> dict[str, tuple[str, bytes]]:
    """Return for each damaged file the expected part of its message and its content."""
    tasks = json.loads((EXPORTS / "label-studio.json").read_text())
    good, text = json.dumps(tasks), (EXPORTS / "label-studio.csv").read_text()
    unannotated = json.dumps([{**task, "annotations": []} for task in tasks])
    unsampled = good.replace("dog/37.png", "dog/99.png")
    far = good.replace('"index": 37', '"index": 99')
    renamed, crowded = (good.replace('["eel"]', choices) for choices in ('["bird"]', '["eel", "cat"]'))
    return {
        "cut.json": ("it is damaged (", good[:-40].encode()),
        "cut.csv": ("it is damaged (", text[:-20].encode()),
        "class.json": ("has the label 'bird'; the classes are: cat, dog, eel", renamed.encode()),
        "name.json": ("task 3 is about 'dog/99.png', but sample 37 is 'dog/37.png' here", unsampled.encode()),
        "index.json": ("task 3 is about sample 99, but this run has no such sample", far.encode()),
        "text.json": ("has the index 'x'", good.replace('"index": 37', '"index": "x"').encode()),
        "several.json": ("a sample has one label here", crowded.encode()),
        "none.json": ("has no decisions", unannotated.encode()),
        "data.json": ("it is damaged (", b'[{"data": [], "annotations": [{"was_cancelled": true}]}]'),
        "objects.json": ("task 1 is not an object", b"[1]"),
        "other.json": ("it is no export of Label Studio (JSON, JSON-MIN, CSV) or FiftyOne", b'{"a": 1}'),
        "deep.json": ("it is damaged (", b"[" * 100_000),
        "fiftyone.json": ("'data/99.png', which is not a sample", json.dumps(
            {"samples": [fiftyone_sample("data/99.png", "cat")]}).encode()),
        "classes.json": ("has the label 7, but there are 3 classes", json.dumps(
            {"classes": CLASSES, "labels": {"39": 7}}).encode()),
        "model.csv": ("findings of a model, but no decisions", b"is_label_issue,predicted_label\nTrue,dog\n"),
        "columns.csv": ("there is no column corrected_label or label", b"a,b\n1,2\n"),
        "cells.csv": ("line 2 has 3 cells, but there are 2 columns", b"index,label\n1,cat,3\n"),
        "twice.csv": ("line 2 and line 3 give different labels to cat/3.png", b"index,label\n3,dog\n3,eel\n"),
        "header.csv": ("two of its columns have the same name", b"index,label,label\n1,cat,dog\n"),
        "negative.csv": ("has the index '-1'", b"index,label\n-1,dog\n"),
        "binary.csv": ("it is not UTF-8 text", b"\xff\xfe\x00"),
        "nul.csv": (r"has the label 'd\x00og'", b"index,label\n3,d\x00og\n"),
        "empty.csv": ("there is no column corrected_label or label", b""),
        "control.csv": ("no column label or choice", b"annotation_id,annotator,index,mood\n1,a,3,dog\n"),
    }  # fmt: skip


@pytest.mark.parametrize("name", damaged_files())
def test_damaged_files_are_one_line_and_import_nothing(run, tmp_path, name, capsys):
    import_decisions(run, EXPORTS / "label-studio.csv")
    before = decisions_path(run).read_bytes()
    said, content = damaged_files()[name]
    (tmp_path / name).write_bytes(content)
    assert execute(["review", str(run), "--import", str(tmp_path / name)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and said in error and name in error
    assert decisions_path(run).read_bytes() == before


def test_missing_file_and_ambiguous_names(run, tmp_path, capsys):
    assert execute(["review", str(run), "--import", str(tmp_path / "none.json")]) == 2
    assert "cannot read" in capsys.readouterr().err
    names = [f"{'train' if k % 2 else 'more'}/{k // 2}.png" for k in range(40)]
    other = make_audited_run(tmp_path / "other", names=names)
    table = write_table(tmp_path / "t.csv", ["filename", "label"], ["3.png", "dog"])
    with pytest.raises(InputError, match=r"'3\.png', which is the name of 2 samples; add a column index"):
        import_decisions(other, table)
    exact = write_table(tmp_path / "e.csv", ["filename", "label"], ["more/3.png", "eel"], ["x/train/3.png", "eel"])
    import_decisions(other, exact)
    assert [each[0] for each in outcomes(other)] == [6, 7]
    assert not decisions_path(run).exists()


def test_decisions_about_other_data_are_refused(run, tmp_path):
    made = replace(make_decision(3, "keep"), id="x.png")
    DecisionLog(decisions_path(run)).append(lambda past: [made])
    with pytest.raises(InputError, match="belongs to other data"):
        import_decisions(run, EXPORTS / "label-studio.csv")
    assert decisions_path(run).read_text().count("\n") == 1


LABELS = st.dictionaries(st.integers(0, 39), st.sampled_from([*CLASSES, None]), min_size=1)


@settings(max_examples=25)
@given(LABELS)
def test_exported_labels_come_back(tmp_path_factory, labels):
    """A review exported as a label file and imported into a copy of the run decides the same, but for unsure ones."""
    folder = tmp_path_factory.mktemp("there")
    run, copy = make_audited_run(folder / "run"), make_audited_run(folder / "copy")
    log = DecisionLog(decisions_path(run))
    for index, label in labels.items():
        sample = CLASSES[index % 3]
        kind = "unsure" if label is None else "keep" if label == sample else "other"
        made = make_decision(index, kind, label if kind == "other" else None)
        log.append(lambda past, made=made: [made])
    export_labels(run, folder / "reviewed.csv")
    sure = {index: label for index, label in labels.items() if label is not None}
    if not sure:
        with pytest.raises(InputError, match="has no decisions"):
            import_decisions(copy, folder / "reviewed.csv")
        return
    import_decisions(copy, folder / "reviewed.csv")
    found = read_decisions(copy)
    assert {index: each.label or CLASSES[index % 3] for index, each in found.items()} == sure
    export_labels(copy, folder / "again.csv")
    assert (folder / "again.csv").read_bytes() == (folder / "reviewed.csv").read_bytes()


@pytest.mark.parametrize("content", ["{}", "[]", "index,label\n", "\n", "a", '{"samples": []}', '{"labels": {}}'])
def test_files_without_answers(run, tmp_path, content):
    (tmp_path / "file").write_text(content)
    with pytest.raises(InputError, match=r"cannot import|has no decisions"):
        import_decisions(run, tmp_path / "file")


@settings(max_examples=150)
@given(st.binary(max_size=60), st.integers(0, 5000), st.sampled_from(sorted(each.name for each in EXPORTS.iterdir())))
def test_any_damage_is_an_input_error(tmp_path_factory, junk, place, name):
    content = (EXPORTS / name).read_bytes()
    path = tmp_path_factory.getbasetemp() / f"junk-{name}"
    path.write_bytes(content[:place] + junk + content[place + len(junk) :])
    try:
        source, answers = read_answers(path, 40)
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert source and all(each.label is None or isinstance(each.label, str) for each in answers)


@pytest.fixture(scope="module")
def audited(tmp_path_factory) -> Path:
    """Return the folder of an audit of 30 images with all exports; six of the labels look wrong."""
    folder = tmp_path_factory.mktemp("audited")
    for k in range(30):
        path = folder / "photos" / CLASSES[k % 3] / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 20), (8 * k, 0, 0)).save(path)
    order = sorted(range(30), key=lambda k: f"{CLASSES[k % 3]}/{k}.png")  # as a folder is read
    true = np.array([(k + (k < 6)) % 3 for k in order])
    np.save(folder / "labels.npy", np.array([k % 3 for k in order]))
    np.save(folder / "probs.npy", 0.91 * np.eye(3)[true] + 0.03)
    (folder / "classes.txt").write_text("\n".join(CLASSES))
    audit_files(
        folder / "labels.npy",
        folder / "audit",
        pred_probs=folder / "probs.npy",
        classes=folder / "classes.txt",
        data=str(folder / "photos"),
        export=["label-studio", "fiftyone", "cleanlab"],
    )
    return folder / "audit"


def fresh(audited: Path, folder: Path) -> Path:
    return shutil.copytree(audited, folder / "run")


def test_tasks_for_label_studio_come_back_with_annotations(audited, tmp_path):
    tasks = annotated_tasks(audited)
    (tmp_path / "back.json").write_text(json.dumps(tasks))
    run = fresh(audited, tmp_path)
    import_decisions(run, tmp_path / "back.json")
    check_round_trip(run, tasks)


@pytest.mark.parametrize("kind", ["JSON", "JSON_MIN", "CSV"])
def test_tasks_come_back_through_label_studio_s_own_converter(audited, tmp_path, kind):
    converter = pytest.importorskip("label_studio_sdk.converter")
    objects = pytest.importorskip("label_studio_sdk.label_interface.objects")
    tasks = annotated_tasks(audited)
    for task in tasks:
        objects.TaskValue(**task)  # raises if the task is not valid
    (tmp_path / "tasks.json").write_text(json.dumps(tasks))
    converter.Converter(CONFIG, project_dir=None).convert(
        str(tmp_path / "tasks.json"), str(tmp_path / "out"), kind, is_dir=False
    )
    (back,) = (path for path in (tmp_path / "out").rglob("*") if path.is_file())
    run = fresh(audited, tmp_path)
    import_decisions(run, back)
    check_round_trip(run, tasks)


def annotated_tasks(audited: Path) -> list[dict]:
    """Return the exported tasks as a person has annotated them: the suggestion, the given label or dog, in turn."""
    tasks = json.loads((audited / "label-studio.json").read_text())
    assert len(tasks) == 6
    for number, task in enumerate(tasks):
        choice = task["predictions"][0]["result"][0]
        label = [choice["value"]["choices"][0], task["data"]["given_label"], "dog"][number % 3]
        result = {**choice, "id": f"r{number}", "value": {"choices": [label]}}
        when = {"created_at": "2026-01-02T09:00:00Z", "updated_at": f"2026-01-02T10:{number:02}:00Z"}
        note = {"id": number, "completed_by": 4, "result": [result], "was_cancelled": False, "lead_time": 1.5, **when}
        task |= {"id": 100 + number, "annotations": [note]}
    return tasks


def check_round_trip(run: Path, tasks: list[dict]) -> None:
    """Check that every annotation is a decision about its own sample, by its annotator and at its time."""
    found = {each["index"]: each for each in logged_decisions(run)}
    assert len(found) == len(tasks) == len(logged_decisions(run))
    for task in tasks:
        note, logged = task["annotations"][0], found[task["data"]["index"]]
        assert logged["id"] == task["data"]["id"] and logged["reviewer"] == "Label Studio user 4"
        label = note["result"][0]["value"]["choices"][0]
        assert (logged["label"] or task["data"]["given_label"]) == label and logged["time"] == note["updated_at"]
    export_labels(run, run.parent / "reviewed.csv")
    labels = read_labels(run.parent / "reviewed.csv")
    assert all(labels[t["data"]["index"]] == t["annotations"][0]["result"][0]["value"]["choices"][0] for t in tasks)


def test_fiftyone_and_cleanlab_exports_come_back(audited, tmp_path):
    run = fresh(audited, tmp_path)
    exported = json.loads((audited / "labels.json").read_text())
    for content in (audited / "labels.json", audited / "cleanlab.csv"):  # as exported: nobody has decided anything
        with pytest.raises(InputError, match="no decisions"):
            import_decisions(run, content)
    changed = {name: (value["label"] + 1) % 3 for name, value in list(exported["labels"].items())[::7]}
    for name, label in changed.items():
        exported["labels"][name]["label"] = label
    (tmp_path / "labels.json").write_text(json.dumps(exported))
    import_decisions(run, tmp_path / "labels.json")
    assert {each["id"].removesuffix(".png"): CLASSES.index(each["label"]) for each in logged_decisions(run)} == changed
    with (audited / "cleanlab.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    place = rows[0].index("given_label")
    corrected = [[*rows[0], "corrected_label"], *([*row, "eel" if row[place] == "dog" else ""] for row in rows[1:])]
    again = shutil.copytree(audited, tmp_path / "again")
    import_decisions(again, write_table(tmp_path / "corrected.csv", *corrected))
    assert len(logged_decisions(again)) == 10 and {each["label"] for each in logged_decisions(again)} == {"eel"}


def test_import_and_export_at_once(run, tmp_path, capsys):
    arguments = ["--import", str(EXPORTS / "label-studio.csv"), "--export", str(tmp_path / "r.csv")]
    assert execute(["review", str(run), *arguments]) == 0
    assert capsys.readouterr().out.count("\n") == 2
    labels = read_labels(tmp_path / "r.csv")
    assert (labels[36], labels[37], labels[38], labels[39]) == ("eel", "dog", "cat", "cat")
