"""Augment: the changes of a sample depend only on the seed, the epoch and its position."""

import numpy as np
import pytest
import torch

from labelsieve.errors import InputError
from labelsieve.train.augment import Augment, draw, parse_augment, window_size

CPU = torch.device("cpu")
IMAGES = torch.rand(64, 3, 12, 10, generator=torch.Generator().manual_seed(0)) + 1  # no pixel is zero
INDEX = torch.arange(100, 164)
ALL = "crop4,flip,cutout5"


def augment(text: str = ALL, seed: int = 0, epoch: int = 0) -> Augment:
    made = Augment(text, seed, CPU)
    made.start_epoch(epoch)
    return made


def by_hand(augment: Augment, images: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Augment one sample after the other, by slices of padded arrays."""
    results = []
    for image, sample in zip(images, index, strict=True):
        height, width = image.shape[1:]

        def draw_one(kind, axis, choices, sample=sample):
            return hashed(augment.keys[kind][axis], int(augment.epoch), int(sample)) % choices

        for kind, pixels in augment.changes:
            if kind == "crop":
                top, left = (draw_one(kind, axis, 2 * pixels + 1) for axis in (0, 1))
                padded = np.pad(image, ((0, 0), (pixels, pixels), (pixels, pixels)))
                image = padded[:, top : top + height, left : left + width]
            elif kind == "flip":
                image = image[:, :, ::-1] if draw_one(kind, 1, 2) else image
            else:
                top, left = draw_one(kind, 0, height) - pixels // 2, draw_one(kind, 1, width) - pixels // 2
                image = image.copy()
                image[:, max(top, 0) : top + pixels, max(left, 0) : left + pixels] = 0
        results.append(image)
    return np.stack(results)


def hashed(key: int, epoch: int, sample: int) -> int:
    """Compute the draws with Python integers."""

    def mix(x: int) -> int:
        for shift, factor in ((32, 0x5851F42D4C957F2D), (29, 0x2545F4914F6CDD1D), (31, 0x369DEA0F31A53F85)):
            x = ((x ^ x >> shift) * factor) % 2**64
        return x ^ x >> 30

    return mix(mix((mix(key + epoch) + sample) % 2**64)) >> 11


@pytest.mark.parametrize("text", ["crop4", "flip", "cutout5", "cutout4", ALL, "cutout3, flip ,crop1"])
def test_batches_equal_a_loop_over_samples(text):
    made = augment(text, seed=3, epoch=7)
    expected = by_hand(made, IMAGES.numpy(), INDEX.numpy())
    result = made(IMAGES, INDEX)
    np.testing.assert_array_equal(result.numpy(), expected)
    assert not torch.equal(result, IMAGES)


def test_order_and_split_of_a_batch_have_no_effect():
    made = augment(epoch=2)
    whole = made(IMAGES, INDEX)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(1))
    assert torch.equal(made(IMAGES[order], INDEX[order]), whole[order])
    parts = [made(images, index) for images, index in zip(IMAGES.split(13), INDEX.split(13), strict=True)]
    assert torch.equal(torch.cat(parts), whole)


def test_draws_differ_by_epoch_seed_and_sample_and_are_reproducible():
    first = augment(epoch=1)(IMAGES, INDEX)
    assert torch.equal(augment(epoch=1)(IMAGES, INDEX), first)
    same_image = IMAGES[:1].expand(64, -1, -1, -1)
    for other in (augment(epoch=2), augment(seed=1, epoch=1)):
        changed = (other(IMAGES, INDEX) != first).flatten(1).any(1)
        assert changed.sum() > 58  # of 64; by chance each stays the same in less than 1 of 100 cases
    assert len({tuple(image.flatten().tolist()) for image in augment()(same_image, INDEX)}) > 58


def test_draws_are_uniform_and_independent():
    index, epoch = torch.arange(90_000), torch.tensor(5)
    down, right = draw(11, epoch, index, 9), draw(12, epoch, index, 9)
    cells = (9 * down + right).bincount(minlength=81)
    expected = 90_000 / 81
    assert ((cells - expected) ** 2 / expected).sum() < 130  # chi-squared, 80 degrees of freedom: 1 in 3,000
    flips = draw(13, epoch, index, 2).double()
    assert abs(flips.mean() - 0.5) < 0.006
    later = draw(13, epoch + 1, index, 2).double()
    neighbour = flips.roll(1)
    for other in (later, neighbour):
        assert abs(torch.corrcoef(torch.stack([flips, other]))[0, 1]) < 0.013


def test_half_of_the_images_are_flipped_and_all_shifts_occur():
    ramp = torch.arange(1.0, 145.0).view(1, 1, 12, 12).expand(9_000, -1, -1, -1)
    index = torch.arange(9_000)
    flipped = augment("flip")(ramp, index)[:, 0, 0, 0] == 12
    assert abs(flipped.float().mean() - 0.5) < 0.02
    middle = augment("crop1")(ramp, index)[:, 0, 6, 6]
    shifts = (middle - ramp[:, 0, 6, 6]).unique(return_counts=True)
    assert shifts[0].tolist() == [-13, -12, -11, -1, 0, 1, 11, 12, 13]
    assert shifts[1].min() > 850 and shifts[1].max() < 1150
    blanked = (augment("cutout3")(ramp, index) == 0).sum((1, 2, 3))
    assert set(blanked.tolist()) == {4, 6, 9}  # at a corner, at an edge, inside
    assert abs((blanked == 9).float().mean() - 100 / 144) < 0.03


def test_dtype_is_kept_and_input_unchanged():
    before = IMAGES.clone()
    assert augment()(IMAGES.bfloat16(), INDEX).dtype == torch.bfloat16
    augment()(IMAGES, INDEX)
    assert torch.equal(IMAGES, before)


def test_compiled_graph_follows_the_epoch():
    made = augment()
    compiled = torch.compile(made, backend="eager", fullgraph=True)
    for epoch in (0, 1):
        made.start_epoch(epoch)
        assert torch.equal(compiled(IMAGES, INDEX), augment(epoch=epoch)(IMAGES, INDEX))


@pytest.mark.parametrize(
    "text", ["", "crop", "crop0", "crop-1", "flip2", "mirror", "crop4,,flip", "crop99999", "crop4;flip"]
)
def test_unknown_augmentation_lists_the_known_ones(text):
    with pytest.raises(InputError, match=r"unknown augmentation .*crop4 .*flip .*cutout8"):
        parse_augment(text)


def test_repeated_kind_and_too_large_change_are_rejected():
    with pytest.raises(InputError, match="twice"):
        parse_augment("crop4,crop2")
    with pytest.raises(InputError, match="cutout10 is too large for images of 12 x 10"):
        augment("cutout10")(IMAGES, INDEX)


def test_window_is_cut_out_of_a_larger_image():
    """Every offset occurs, and the pixels are those of the image at the offset."""
    images = torch.arange(2000 * 6 * 7).view(2000, 1, 6, 7).float()
    index = torch.arange(2000)
    augment = Augment("window4", 3, torch.device("cpu"))
    augment.start_epoch(5)
    cut = augment(images, index)
    assert cut.shape == (2000, 1, 4, 4)
    corners = cut[:, 0, 0, 0].long() - index * 42
    down, right = corners // 7, corners % 7
    assert torch.equal(torch.bincount(down * 4 + right, minlength=12) > 100, torch.ones(12, dtype=torch.bool))
    for sample in (0, 7, 1999):
        place = images[sample, :, down[sample] : down[sample] + 4, right[sample] : right[sample] + 4]
        assert torch.equal(cut[sample], place)
    assert window_size("flip,window4") == 4 and window_size("flip") is None and window_size("") is None
    with pytest.raises(InputError, match="window9 is too large for images of 6 x 7"):
        Augment("window9", 3, torch.device("cpu"))(images, index)
