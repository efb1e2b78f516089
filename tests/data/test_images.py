"""Decode images of all formats, and damaged ones."""

import io
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from labelsieve.data import images as images_module
from labelsieve.data.folder import read_folder
from labelsieve.data.images import (
    BadImage,
    FileReader,
    Frame,
    Pictures,
    common_frame,
    decode,
    fast_decode,
    read_header,
    reduction,
)
from labelsieve.errors import InputError
from tests.data.builders import FRAME, dot, encoded, jpeg_bytes, put, put_all, smooth

RAMP = np.add.outer(np.arange(40) * 3, np.arange(60) * 2).astype(np.uint8)  # (40, 60)


COLOUR = np.stack([RAMP, 255 - RAMP, RAMP // 2], axis=-1)


JPEG = encoded(np.random.default_rng(0).integers(0, 256, (40, 60, 3)), "JPEG", quality=95)


WHOLE = Frame(40, 60, 3)


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width, height, depth, colour, rows):
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


PROGRAM = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\nshowpage\n%%EOF\n"  # EPS, which Ghostscript would run


SVG = b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"></svg>'


BROKEN_CHECKSUM = (lambda whole: whole[:-17] + bytes([whole[-17] ^ 0xFF]) + whole[-16:])(encoded(COLOUR))


FLOATS = encoded(Image.fromarray(RAMP.astype(np.float32)), "TIFF")


WHOLE_NUMBERS = encoded(Image.fromarray(RAMP.astype(np.int32)), "TIFF")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(b"", "the file is empty", id="empty"),
        pytest.param(b"not an image\n", "not an image of a known format", id="text"),
        pytest.param(SVG, "not an image of a known format", id="svg"),
        pytest.param(b"\0\0\0\x18ftypheic" + bytes(40), "not an image of a known format", id="heic"),
        pytest.param(PROGRAM, "not an image of a known format", id="eps"),
        pytest.param(JPEG[: len(JPEG) // 10], "cannot be decoded|known format", id="cut at 10 %"),
        pytest.param(JPEG[: len(JPEG) // 2], "cannot be decoded", id="cut at 50 %"),
        pytest.param(JPEG[: len(JPEG) * 9 // 10], "cannot be decoded", id="cut at 90 %"),
        pytest.param(JPEG[: len(JPEG) * 99 // 100], "cannot be decoded", id="cut at 99 %"),
        pytest.param(BROKEN_CHECKSUM, "cannot be decoded", id="bad checksum"),
        pytest.param(encoded(COLOUR)[:60], "cannot be decoded", id="cut PNG"),
        pytest.param(FLOATS, "32-bit numbers .mode F.; save it with 8 bits", id="float TIFF"),
        pytest.param(WHOLE_NUMBERS, "32-bit numbers .mode I.", id="int32 TIFF"),
        pytest.param(png(11_000, 11_000, 8, 2, b"\0" * 100), "too many pixels", id="bomb of 121 million"),
        pytest.param(png(14_000, 14_000, 8, 2, b"\0" * 100), "too many pixels", id="bomb of 196 million"),
    ],
)
def test_error_says_why_an_image_cannot_be_decoded(content, reason):
    with pytest.raises(BadImage, match=reason) as caught:
        decode(content, WHOLE)
    assert "\n" not in str(caught.value)


def test_format_is_detected_from_the_content(tmp_path):
    put_all(tmp_path, ["a/1.jpg", "b/1.jpg"])
    put(tmp_path / "a/1.jpg", encoded(COLOUR))
    assert (read_folder(tmp_path).train.pixels(0, WHOLE) == COLOUR).all()


@pytest.mark.parametrize("kind", ["PNG", "BMP", "PPM", "TIFF"])
def test_lossless_formats_are_decoded_exactly(kind):
    assert (decode(encoded(COLOUR, kind), WHOLE) == COLOUR).all()
    assert (decode(encoded(RAMP, kind), Frame(40, 60, 1))[..., 0] == RAMP).all()


def test_a_lossless_webp(tmp_path):
    assert (decode(encoded(COLOUR, "WEBP", lossless=True), WHOLE) == COLOUR).all()


def test_sixteen_bits_keep_the_upper_eight():
    deep = (RAMP.astype(np.uint16) << 8) + 99
    gray = png(60, 40, 16, 0, b"".join(b"\0" + row.astype(">u2").tobytes() for row in deep))
    assert (decode(gray, Frame(40, 60, 1))[..., 0] == RAMP).all() and read_header(gray).channels == 1
    assert (decode(gray, WHOLE) == RAMP[..., None]).all()
    colour = (COLOUR.astype(np.uint16) << 8) + 99
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in colour)
    assert (decode(png(60, 40, 16, 2, rows), WHOLE) == COLOUR).all()
    assert (decode(encoded(Image.fromarray(deep), "TIFF"), WHOLE) == RAMP[..., None]).all()


def test_cmyk_becomes_rgb():
    plain = Image.new("CMYK", (8, 8), (0, 255, 255, 0))  # full magenta and yellow are red
    red = decode(encoded(plain, "JPEG", quality=100), Frame(8, 8, 3))[4, 4]
    assert red[0] > 250 and red[1] < 5 and red[2] < 5


def test_transparency_is_composited_on_white():
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 200, 0, 0])
    palette.putdata([0, 1])
    content = encoded(palette, "PNG", transparency=1)
    assert decode(content, Frame(1, 2, 3)).tolist() == [[[10, 20, 30], [255, 255, 255]]]
    by_bytes = encoded(palette, "PNG", transparency=bytes([255, 0]))
    assert decode(by_bytes, Frame(1, 2, 3)).tolist() == [[[10, 20, 30], [255, 255, 255]]]
    gray = encoded(Image.merge("LA", (Image.new("L", (1, 1), 100), Image.new("L", (1, 1), 0))))
    assert decode(gray, Frame(1, 1, 1)).item() == 255 and read_header(gray).channels == 1
    half = encoded(Image.new("RGBA", (1, 1), (0, 0, 0, 51)))  # a fifth of black on white
    assert decode(half, Frame(1, 1, 3)).tolist() == [[[204, 204, 204]]]
    solid = encoded(Image.new("LA", (1, 1), (100, 255)))
    assert decode(solid, Frame(1, 1, 1)).item() == 100


def test_one_bit_is_black_and_white():
    bits = encoded(Image.fromarray(RAMP > 100))
    assert (decode(bits, Frame(40, 60, 1))[..., 0] == np.where(RAMP > 100, 255, 0)).all() and read_header(
        bits
    ).channels == 1


@pytest.mark.parametrize("kind", ["GIF", "TIFF"])
def test_first_frame_of_an_animation_is_used(kind):
    first, second = Image.new("RGB", (4, 4), (255, 0, 0)), Image.new("RGB", (4, 4), (0, 255, 0))
    content = encoded(first, kind, save_all=True, append_images=[second, second])
    assert (decode(content, Frame(4, 4, 3)) == (255, 0, 0)).all()


@pytest.mark.parametrize(("turned", "upright"), [(3, -2), (6, -1), (8, 1)])
def test_photos_are_rotated_by_exif(turned, upright):
    exif = Image.Exif()
    exif[0x0112] = turned
    content = encoded(COLOUR, "PNG", exif=exif)
    expected = np.rot90(COLOUR, upright)
    found = read_header(content)
    assert (found.height, found.width) == expected.shape[:2]
    assert (decode(content, Frame(found.height, found.width, 3)) == expected).all()
    photo = encoded(COLOUR, "JPEG", quality=100, subsampling=0, exif=exif)
    assert abs(decode(photo, Frame(found.height, found.width, 3)).astype(int) - expected).mean() < 2


def test_damaged_exif_data_is_ignored():
    for exif in (b"Exif\0\0MM\0*\0\0\0\x08\xff\xff", b"Exif\0\0garbage", b"Exif\0\0II*\0\xff\xff\xff\xff"):
        content = encoded(COLOUR, "JPEG", exif=exif)
        assert decode(content, WHOLE).shape == (40, 60, 3) and read_header(content).width == 60


def test_the_thinnest_and_the_smallest_image():
    thin = encoded(np.repeat(np.array([[0], [200]], dtype=np.uint8), 10_000, axis=0))  # 20,000 rows
    assert decode(thin, Frame(2, 2, 1))[..., 0].tolist() == pytest.approx(np.array([[0, 0], [200, 200]]), abs=40)
    wide = encoded(np.full((1, 20_000), 50))
    assert (decode(wide, Frame(8, 8, 1)) == 50).all()
    assert (decode(dot(9), Frame(3, 5, 3)) == 9).all() and decode(encoded([[7]]), Frame(1, 1, 1)).item() == 7


def test_set_is_grayscale_only_if_all_images_are(tmp_path):
    put_all(tmp_path, ["a/1.png", "b/1.png"])
    assert common_frame(read_folder(tmp_path).train) == Frame(2, 2, 1)
    put(tmp_path / "b/1.png", encoded(COLOUR[:2, :2]))
    assert common_frame(read_folder(tmp_path).train) == Frame(2, 2, 3)


def test_a_set_without_images_has_no_frame(tmp_path):
    with pytest.raises(InputError, match="no images"):
        common_frame(Pictures([], FileReader(tmp_path, []), torch.zeros(0, dtype=torch.int64), ("a", "b")))


def test_frame_uses_at_most_a_thousand_headers():
    looked: list[int] = []
    read = lambda index: looked.append(index) or dot()  # noqa: E731
    names = [str(index) for index in range(1999)]
    common_frame(Pictures(names, read, torch.zeros(1999, dtype=torch.int64), ("a", "b")))
    assert looked == list(range(0, 1999, 2))


def test_random_damage_raises_bad_image_or_nothing():
    random = np.random.default_rng(1)
    exif = Image.Exif()
    exif[0x0112] = 6
    first = Image.fromarray(COLOUR)
    kinds = [
        encoded(COLOUR, "JPEG", exif=exif),
        encoded(COLOUR, "PNG", exif=exif),
        encoded(first, "GIF", save_all=True, append_images=[first.rotate(90)]),
        encoded(COLOUR, "TIFF", compression="tiff_lzw"),
        encoded(COLOUR, "WEBP"),
        encoded(COLOUR, "BMP"),
        encoded(COLOUR, "PPM"),
    ]
    for whole in kinds:
        for _ in range(60):
            damaged = bytearray(whole)
            for place in random.integers(0, min(len(damaged), 400), 3):
                damaged[place] = random.integers(0, 256)
            try:
                assert decode(bytes(damaged), WHOLE).shape == (40, 60, 3)
                read_header(bytes(damaged))
            except BadImage as error:
                assert str(error) and "\n" not in str(error)


@pytest.fixture(params=["simplejpeg", "pillow"])
def decoder(request, monkeypatch):
    if request.param == "pillow":
        monkeypatch.setattr(images_module, "simplejpeg", None)
    elif images_module.simplejpeg is None:
        pytest.skip("simplejpeg is not installed")
    return request.param


@pytest.mark.parametrize(
    "options", [{}, {"progressive": True}, {"subsampling": 0, "quality": 60}, {"icc_profile": b"x"}]
)
@pytest.mark.parametrize("frame", [Frame(64, 64, 3), Frame(30, 40, 1), Frame(200, 150, 3), Frame(17, 40, 3)])
def test_fast_decode_is_close_to_decode(decoder, options, frame):
    for channels in (3, 1):
        content = jpeg_bytes(smooth(167, 250, 1, channels), **options)
        quick, plain = fast_decode(content, frame), decode(content, frame)
        assert quick.shape == plain.shape and quick.dtype == np.uint8
        assert np.abs(quick.astype(int) - plain).mean() < 3
        assert np.abs(quick.astype(int) - quick.mean()).mean() > 10  # and there is something to see


@pytest.mark.parametrize("channels", [1, 3])
def test_fast_decode_equals_decode_where_nothing_is_reduced(decoder, channels):
    for height, width in ((79, 200), (40, 45), (30, 90)):
        content, frame = jpeg_bytes(smooth(height, width, 2, channels)), Frame(40, 45, channels)
        np.testing.assert_array_equal(fast_decode(content, frame), decode(content, frame))


def test_fast_decode_reduces_large_images(decoder, monkeypatch):
    sizes = []
    monkeypatch.setattr(images_module, "_resize", lambda pixels, *_: sizes.append(pixels.shape) or pixels)
    for height, width, by in ((320, 400, 8), (319, 400, 4), (81, 90, 2), (79, 200, 1)):
        fast_decode(jpeg_bytes(smooth(height, width, 2)), Frame(40, 45, 3))
        assert reduction(height, width, Frame(40, 45, 3)) == by
    assert sizes == [(40, 50, 3), (80, 100, 3), (41, 45, 3), (79, 200, 3)]


def test_fast_decode_falls_back_to_decode(decoder):
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = jpeg_bytes(smooth(60, 90, 3), exif=exif)
    cmyk = io.BytesIO()
    Image.fromarray(smooth(60, 90, 4)).convert("CMYK").save(cmyk, "JPEG")
    for content in (
        turned,
        cmyk.getvalue(),
        jpeg_bytes(smooth(60, 90, 5), "PNG"),
        jpeg_bytes(smooth(60, 90, 5, 1), "WEBP"),
    ):
        np.testing.assert_array_equal(fast_decode(content, Frame(20, 30, 3)), decode(content, Frame(20, 30, 3)))
    exif[0x0112] = 1
    upright = jpeg_bytes(smooth(60, 90, 3), exif=exif)
    assert np.abs(fast_decode(upright, Frame(20, 30, 3)).astype(int) - decode(upright, Frame(20, 30, 3))).mean() < 3


def test_fast_decode_says_why_it_fails(decoder, monkeypatch):
    content = jpeg_bytes(smooth(60, 90, 6))
    with pytest.raises(BadImage, match="cannot be decoded"):
        fast_decode(content[: len(content) // 2], FRAME)
    with pytest.raises(BadImage, match="empty"):
        fast_decode(b"", FRAME)
    with pytest.raises(BadImage, match="not an image"):
        fast_decode(b"\xff\xd8 not at all", FRAME)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 5_000)
    with pytest.raises(BadImage, match="too many pixels"):
        fast_decode(content, FRAME)
