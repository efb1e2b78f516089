"""load_data: find, list and decode."""

import pytest
import torch

from labelsieve.data import ReadOptions, load_data
from labelsieve.data.load import stratified
from labelsieve.errors import InputError
from tests.data.builders import picture


def test_error_suggests_a_similar_path(tmp_path, monkeypatch):
    (tmp_path / "Meine Bilder" / "Käfer & Kleider").mkdir(parents=True)
    (tmp_path / "kaefer.csv").touch()
    monkeypatch.chdir(tmp_path)
    cases = {
        "Meine Bilder/kafer und kleider": "Meine Bilder/Käfer & Kleider",
        "Meine Bilde/Käfer & Kleider": "Meine Bilder/Käfer & Kleider",
        "käfer.csv": "kaefer.csv",
        "meine bilder": "Meine Bilder",
    }
    for typed, meant in cases.items():
        if not (tmp_path / typed).exists():
            with pytest.raises(InputError, match=f"did you mean {meant}\\?"):
                load_data(typed)
    for typed in ("somewhere/else", "other.csv", "Meine Bilder/nothing"):
        with pytest.raises(InputError, match="; pass a folder of images"):
            load_data(typed)


def test_mixed_sizes_and_modes_are_converted_to_one_frame(tmp_path):
    for number, name in enumerate(("one", "two")):
        (tmp_path / name).mkdir()
        for index, (side, mode) in enumerate([(20, "RGB"), (30, "L"), (40, "RGBA"), (25, "P"), (31, "CMYK")]):
            suffix = "jpg" if mode == "CMYK" else "png"
            picture(number, index, side).convert(mode).save(tmp_path / name / f"{index}.{suffix}")
    train = load_data(str(tmp_path)).train
    assert train.images.shape == (10, 3, 30, 30) and train.names[0].endswith("0.png")
    assert load_data(str(tmp_path), ReadOptions(size=8)).train.images.shape == (10, 3, 8, 8)


def test_stratified_split_keeps_every_class():
    labels = torch.tensor([0] * 50 + [1] * 10 + [2] * 2 + [3])
    train, test = stratified(labels, 0.2, seed=1)
    assert labels[test].bincount().tolist() == [10, 2, 1] and sorted([*train.tolist(), *test.tolist()]) == list(
        range(63)
    )
    assert torch.equal(stratified(labels, 0.2, seed=1)[1], test)
    assert not torch.equal(stratified(labels, 0.2, seed=2)[1], test)


def test_embedded_data_has_a_test_set():
    sets = load_data("fashion")
    assert (len(sets.train), len(sets.test), sets.valid) == (6000, 1000, None)


def test_rewritten_table_is_decoded_again(folder, tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    files = sorted((folder / "train").rglob("*.png"))
    table, reading = tmp_path / "fruit.parquet", ReadOptions(stream=True, cache=str(tmp_path / "cache"), workers=1)

    def write(contents):
        pq.write_table(pa.table({"image": contents, "label": [file.parent.name for file in files]}), table)
        data = load_data(str(table), reading).train
        next(data.staged(torch.tensor([5]), 1))
        return data.inputs(torch.tensor([5])).clone()

    contents = [file.read_bytes() for file in files]
    before = write(contents)
    assert torch.equal(write(contents), before)
    contents[5] = files[50].read_bytes()  # not one of the fifty of sixty whose bytes are looked at
    assert not torch.equal(write(contents), before)


@pytest.mark.parametrize(("source", "reason"), [("fashon", "one of: fashion"), ("gone.npz", "cannot read gone.npz")])
def test_missing_data_is_an_error(source, reason):
    with pytest.raises(InputError, match=reason):
        load_data(source)
