"""The features of DenseNet in fused Triton kernels, with the parameters, state dict and results of the plain layers.

A dense layer consists of batch-norm, ReLU, a 3x3 convolution to a few channels, dropout and a concatenation. Run
separately, these operations move far more bytes than the convolution needs. The kernels avoid this as follows:

* **One buffer per block**, (pixels, columns), with a slot of 16 columns per layer. A layer reads all columns to the
  right of its slot and writes its slot: nothing is copied, and every address is a multiple of 32 bytes. Unused columns
  of a slot are zero because their weights are zero.
* **Statistics once per channel.** A channel has the same mean and standard deviation in every layer that reads it, so
  the kernel that writes the channel computes them once.
* **Batch-norm and ReLU while loading**: a = max(0, x * scale + shift), with scale = gamma / deviation.
* **The gradient of batch-norm once per channel.** With x̂ = (x - mean) / deviation, n pixels, and d_i the gradient at
  the normalised and scaled input of layer i (0 where its ReLU is 0), autograd computes for every reader i of a channel
      dx_i = (gamma_i * d_i - gamma_i * Σ d_i / n - x̂ * gamma_i * Σ(d_i x̂) / n) / deviation
  x̂ is equal for all readers, so only G = Σ_i gamma_i d_i / deviation is stored per pixel, and S = Σ_i gamma_i Σ d_i
  and T = Σ_i gamma_i Σ(d_i x̂) per channel; after all readers, dx = G - (S / n + x̂ T / n) / deviation.
* **Each pixel is normalised once or three times, not nine times.** A tile of whole images, in the later blocks, is
  loaded once and multiplied with the weights of all nine taps; the sums are shifted at the end. Other tiles contain
  full rows of the image; they are loaded once per row of the 3x3 kernel and multiplied with the weights of the three
  taps in that row at once, and the sums are shifted sideways at the end.
* **Both gradients of a convolution in one pass**: a tile of the buffer is read once; its nine shifted output gradients
  are loaded as 9 x 16 columns and used for both d = Σ dz W and dW = Σ a dz. Images have a border of zeros in dz.
* **The next tile is loaded while the current one is used**: few programs fit on a multiprocessor at a time.
* Sums over pixels are written per program and added in a fixed order, so results are reproducible.
* The dropout mask is a hash of (seed, pixel, channel), recomputed in the backward pass instead of stored.

Products use the dtype of the buffers (bf16) and are summed in fp32, like autocast does.

The file contains, in this order: tile sizes, kernels, the memory layout (``_Plan``), the passes (``Pass``), and the
interface to the network (``applies``, ``logits`` and ``features``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from labelsieve.runtime import join_adjacent

if TYPE_CHECKING:
    from labelsieve.models.densenet import DenseNet

SLOT = 16  # columns for the new channels of a layer: the smallest width of a matrix product
LARGEST = 2**31  # elements of a buffer, because addresses have 32 bits
LARGEST_TRANSITION = 256  # channels
SMALLEST_TILE = 64  # pixels
GRADIENT_TILE = 256  # pixels of a program that computes a gradient at the output of a convolution
PROGRAMS = 264  # with 4 warps of a kernel that loops over pixels: two per multiprocessor of an H200
EPSILON = 1e-5  # of batch-norm
BLOCK = 1024  # parameters of a program that packs them
MOST_CLASSES = 128  # of the classifier kernels


# Tile sizes, warps and stages that were fastest on an H200 (benchmarks/fused_tiles.py).


def _conv_sizes(pixels: int, channels: int) -> dict[str, int]:
    """Return the launch settings of conv_forward."""
    few = pixels <= 16384
    columns = min(64 if few else 32, triton.next_power_of_2(channels))
    return {"BM": SMALLEST_TILE if few else 128, "BK": columns, "num_warps": 4, "num_stages": 1}


def _image_sizes(area: int) -> dict[str, int] | None:
    """Return the launch settings of conv_images for images of `area` pixels, or None to use conv_forward."""
    if area == 256:
        return {"BM": 256, "BK": 32, "num_warps": 8, "num_stages": 1}
    return {"BM": 64, "BK": 64, "num_warps": 4, "num_stages": 1} if 64 % area == 0 else None


def _transition_sizes(pixels: int) -> dict[str, int]:
    """Return the launch settings of transition_forward."""
    columns, stages = (32, 3) if pixels <= 65536 else (64, 2)
    return {"BM": 128, "BK": columns, "BN": 64, "num_warps": 4, "num_stages": stages}


def _backward_sizes(pixels: int) -> dict[str, int]:
    """Return the launch settings of backward."""
    wide = pixels <= 16384
    return {"BM": 32, "CK": 128 if wide else 64, "num_warps": 8 if wide else 4, "num_stages": 1}


# ---- kernels -------------------------------------------------------------------------------------------------------


@triton.jit
def _mixed(x, key):
    """Return a multiply-shift hash of 32 bits; the key enters between its two multiplications."""
    x = (x ^ (x >> 16)) * 0x21F0AAAD
    x = (x ^ (x >> 15) ^ key) * 0x735A2D97
    return x ^ (x >> 15)


@triton.jit
def _hashed(place, seed):
    """Return a 32-bit hash of a position and a 64-bit seed, whose halves are hashed once per program."""
    low = _mixed((seed & 0xFFFFFFFF).to(tl.uint32), 0)
    high = _mixed(((seed >> 32) & 0xFFFFFFFF).to(tl.uint32) ^ low, 0)
    return _mixed(place.to(tl.uint32) ^ low, high)


@triton.jit
def _dropout_factor(place, seeds, layer, rate):
    """Return 1 / (1 - rate) for elements that are kept, else 0."""
    least = tl.ceil(rate * 16777216.0).to(tl.uint32) << 8  # 24 bits of the hash decide
    return tl.where(_hashed(place, tl.load(seeds + layer)) >= least, 1 / (1 - rate), 0.0)


@triton.jit
def _scale_and_shift(gamma, beta, mean, rstd, c, inside):
    """Return the scale and shift of batch-norm, x * scale + shift, for columns c."""
    scale = tl.load(gamma + c, mask=inside, other=0.0) * tl.load(rstd + c, mask=inside, other=0.0)
    return scale, tl.load(beta + c, mask=inside, other=0.0) - tl.load(mean + c, mask=inside, other=0.0) * scale


@triton.jit
def _pack(parameters, source, wide, half, size, BLOCK: tl.constexpr):
    """Copy the real parameters to their packed positions in fp32 and in the dtype of the buffers; the rest is 0."""
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = tl.load(source + e, mask=e < size, other=-1)
    value = tl.load(parameters + at, mask=at >= 0, other=0.0)
    tl.store(wide + e, value, mask=e < size)
    tl.store(half + e, value.to(half.dtype.element_ty), mask=e < size)


@triton.jit
def _pixels_first(images, out, pixels, area, channels, SLOT: tl.constexpr, BM: tl.constexpr):
    """Copy images (B, channels, area) to (B, area, 16) with zeros in unused columns."""
    p = tl.program_id(0) * BM + tl.arange(0, BM)
    o = tl.arange(0, SLOT)
    live = (p < pixels)[:, None]
    place = (p // area * channels * area + p % area)[:, None] + o[None, :] * area
    value = tl.load(images + place, mask=live & (o < channels)[None, :], other=0.0)
    tl.store(out + p[:, None] * SLOT + o[None, :], value.to(out.dtype.element_ty), mask=live)


@triton.jit
def _conv_tile(
    x, w, gamma, beta, mean, rstd, step, p, live, row, x_stride, channels,
    NORM: tl.constexpr, SLOT: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Load the inputs of a step of conv_forward: x in the row above, at or below p, weights of 3 taps, scale, shift."""
    down = step % 3 - 1
    c = step // 3 * BK + tl.arange(0, BK)
    inside = c < channels
    there = (live & (row + down >= 0) & (row + down < HEIGHT))[:, None] & inside[None, :]
    outside = float("nan") if NORM else 0.0  # max(0, NaN) is 0: the value of pixels outside the image after ReLU
    a = tl.load(x + (p + down * WIDTH)[:, None] * x_stride + c[None, :], mask=there, other=outside)
    o = tl.arange(0, 4 * SLOT)  # three taps and one without weights, because widths are powers of two
    place = ((step % 3 * 3 + o // SLOT)[None, :] * channels + c[:, None]) * SLOT + (o % SLOT)[None, :]
    weights = tl.load(w + place, mask=inside[:, None] & (o < 3 * SLOT)[None, :], other=0.0)
    scale = tl.zeros((BK,), tl.float32)
    shift = scale
    if NORM:
        scale, shift = _scale_and_shift(gamma, beta, mean, rstd, c, inside)
    return a, weights, scale, shift


@triton.jit
def _finish_conv(
    sums, y, partial, seeds, layer, rate, p, live, y_stride, DROP: tl.constexpr, SLOT: tl.constexpr
):  # fmt: skip
    """Store dropout(sums), and the sums of its channels and of their squares."""
    o = tl.arange(0, SLOT)
    if DROP:
        sums *= _dropout_factor(p[:, None] * SLOT + o[None, :], seeds, layer, rate)
    new = tl.where(live[:, None], sums, 0.0).to(y.dtype.element_ty)
    tl.store(y + p[:, None] * y_stride + o[None, :], new, mask=live[:, None])
    new = new.to(tl.float32)
    tl.store(partial + tl.program_id(0) * 2 * SLOT + o, tl.sum(new, 0))
    tl.store(partial + tl.program_id(0) * 2 * SLOT + SLOT + o, tl.sum(new * new, 0))


@triton.jit(do_not_specialize=["layer"])
def _conv_forward(
    x, y, w, gamma, beta, mean, rstd, partial, seeds, layer, rate, pixels, x_stride, y_stride, channels,
    NORM: tl.constexpr, DROP: tl.constexpr, SLOT: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Compute y (pixels, 16) = dropout(conv3x3(relu(norm(x (pixels, channels))))) and its sums over the tile."""
    p = tl.program_id(0) * BM + tl.arange(0, BM)
    live = p < pixels
    row = (p // WIDTH) % HEIGHT
    column = p % WIDTH
    # columns of sums: products of the left, middle and right tap with the pixel itself, summed over the rows of taps
    sums = tl.zeros((BM, 4 * SLOT), tl.float32)
    steps = 3 * tl.cdiv(channels, BK)
    next_a, next_w, next_scale, next_shift = _conv_tile(
        x, w, gamma, beta, mean, rstd, 0, p, live, row, x_stride, channels, NORM, SLOT, HEIGHT, WIDTH, BK
    )  # fmt: skip
    for step in range(steps):
        a, weights, scale, shift = next_a, next_w, next_scale, next_shift
        next_a, next_w, next_scale, next_shift = _conv_tile(
            x, w, gamma, beta, mean, rstd, tl.minimum(step + 1, steps - 1), p, live, row, x_stride, channels,
            NORM, SLOT, HEIGHT, WIDTH, BK,
        )  # fmt: skip
        if NORM:
            a = tl.maximum(a.to(tl.float32) * scale[None, :] + shift[None, :], 0.0).to(weights.dtype)
        sums = tl.dot(a, weights, sums, input_precision="ieee")
    # y at q is the sum of left at q - 1, middle at q and right at q + 1
    even, odd = tl.split(tl.permute(tl.reshape(sums, (BM, 2, 2, SLOT)), (0, 3, 1, 2)))
    left, right = tl.split(even)
    middle, _ = tl.split(odd)
    here = tl.arange(0, BM)[:, None] + tl.zeros((BM, SLOT), tl.int32)  # a tile contains full rows of the image
    before = tl.gather(left, tl.maximum(here - 1, 0), 0)
    after = tl.gather(right, tl.minimum(here + 1, BM - 1), 0)
    total = middle + tl.where((column > 0)[:, None], before, 0.0) + tl.where((column < WIDTH - 1)[:, None], after, 0.0)
    _finish_conv(total, y, partial, seeds, layer, rate, p, live, y_stride, DROP, SLOT)


@triton.jit
def _image_tile(
    x, w, gamma, beta, mean, rstd, first, p, live, x_stride, channels, SLOT: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    """Load the inputs of a step of conv_images: x at p, the weights of eight taps and of the last, scale and shift."""
    c = first + tl.arange(0, BK)
    inside = c < channels
    a = tl.load(x + p[:, None] * x_stride + c[None, :], mask=live[:, None] & inside[None, :], other=0.0)
    o = tl.arange(0, 8 * SLOT)
    place = ((o // SLOT)[None, :] * channels + c[:, None]) * SLOT + (o % SLOT)[None, :]
    w_most = tl.load(w + place, mask=inside[:, None], other=0.0)
    o = tl.arange(0, SLOT)
    w_rest = tl.load(w + (8 * channels + c[:, None]) * SLOT + o[None, :], mask=inside[:, None], other=0.0)
    scale, shift = _scale_and_shift(gamma, beta, mean, rstd, c, inside)
    return a, w_most, w_rest, scale, shift


@triton.jit
def _shifted(
    products, here, row, column, DOWN: tl.constexpr, RIGHT: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Return the rows of products DOWN image rows below and RIGHT pixels to the right, 0 outside of the image."""
    there = (row + DOWN >= 0) & (row + DOWN < HEIGHT) & (column + RIGHT >= 0) & (column + RIGHT < WIDTH)
    moved = tl.gather(products, tl.minimum(tl.maximum(here + (DOWN * WIDTH + RIGHT), 0), BM - 1), 0)
    return tl.where(there[:, None], moved, 0.0)


@triton.jit(do_not_specialize=["layer"])
def _conv_images(
    x, y, w, gamma, beta, mean, rstd, partial, seeds, layer, rate, pixels, x_stride, y_stride, channels,
    DROP: tl.constexpr, SLOT: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Compute what conv_forward does for tiles of whole images: each pixel is normalised once, for all nine taps."""
    p = tl.program_id(0) * BM + tl.arange(0, BM)
    live = p < pixels
    row = (p // WIDTH) % HEIGHT
    column = p % WIDTH
    most = tl.zeros((BM, 8 * SLOT), tl.float32)
    rest = tl.zeros((BM, SLOT), tl.float32)
    next_a, next_most, next_rest, next_scale, next_shift = _image_tile(
        x, w, gamma, beta, mean, rstd, 0, p, live, x_stride, channels, SLOT, BK
    )
    for first in range(0, channels, BK):
        a, w_most, w_rest, scale, shift = next_a, next_most, next_rest, next_scale, next_shift
        next_a, next_most, next_rest, next_scale, next_shift = _image_tile(
            x, w, gamma, beta, mean, rstd, first + BK, p, live, x_stride, channels, SLOT, BK
        )
        a = tl.maximum(a.to(tl.float32) * scale[None, :] + shift[None, :], 0.0).to(w_most.dtype)
        most = tl.dot(a, w_most, most, input_precision="ieee")
        rest = tl.dot(a, w_rest, rest, input_precision="ieee")
    # columns of `most`: 16 per tap, whose number has three bits; y at q is the sum over the taps of products at q + tap
    even, odd = tl.split(tl.permute(tl.reshape(most, (BM, 2, 2, 2, SLOT)), (0, 4, 1, 2, 3)))
    even_low, even_high = tl.split(even)
    odd_low, odd_high = tl.split(odd)
    tap0, tap4 = tl.split(even_low)
    tap2, tap6 = tl.split(even_high)
    tap1, tap5 = tl.split(odd_low)
    tap3, tap7 = tl.split(odd_high)
    here = tl.arange(0, BM)[:, None] + tl.zeros((BM, SLOT), tl.int32)
    total = tap4 + _shifted(tap0, here, row, column, -1, -1, HEIGHT, WIDTH, BM)
    total += _shifted(tap1, here, row, column, -1, 0, HEIGHT, WIDTH, BM)
    total += _shifted(tap2, here, row, column, -1, 1, HEIGHT, WIDTH, BM)
    total += _shifted(tap3, here, row, column, 0, -1, HEIGHT, WIDTH, BM)
    total += _shifted(tap5, here, row, column, 0, 1, HEIGHT, WIDTH, BM)
    total += _shifted(tap6, here, row, column, 1, -1, HEIGHT, WIDTH, BM)
    total += _shifted(tap7, here, row, column, 1, 0, HEIGHT, WIDTH, BM)
    total += _shifted(rest, here, row, column, 1, 1, HEIGHT, WIDTH, BM)
    _finish_conv(total, y, partial, seeds, layer, rate, p, live, y_stride, DROP, SLOT)


@triton.jit(do_not_specialize=["layer"])
def _transition_forward(
    x, y, passed, w, gamma, beta, mean, rstd, partial, seeds, layer, rate,
    pixels, x_stride, y_stride, channels, outputs,
    DROP: tl.constexpr, WIDTH: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Compute u = dropout(relu(conv1x1(relu(norm(x))))), of which `passed` (u > 0) is kept, and y, its 2x2 average."""
    # The pixels of a 2x2 window are 8 and BM / 2 rows of the tile apart: the registers of one thread.
    m = tl.arange(0, BM)
    q = tl.program_id(0) * (BM // 4) + m // 16 % (BM // 32) * 8 + m % 8  # pixel of y
    p = q // (WIDTH // 2) * (2 * WIDTH) + q % (WIDTH // 2) * 2 + m // (BM // 2) * WIDTH + m // 8 % 2  # pixel of x
    o = tl.program_id(1) * BN + tl.arange(0, BN)
    live = p < pixels
    wanted = o < outputs
    k = tl.arange(0, BK)
    in_x = tl.minimum(p, pixels - 1)[:, None] * x_stride + k[None, :]
    in_w = k[:, None] * outputs + o[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for first in range(0, channels, BK):
        c = first + k
        inside = c < channels
        scale, shift = _scale_and_shift(gamma, beta, mean, rstd, c, inside)
        a = tl.load(x + first + in_x, mask=inside[None, :], other=0.0)
        weights = tl.load(w + first * outputs + in_w, mask=inside[:, None] & wanted[None, :], other=0.0)
        a = tl.maximum(a.to(tl.float32) * scale[None, :] + shift[None, :], 0.0).to(weights.dtype)
        total = tl.dot(a, weights, total, input_precision="ieee")
    new = tl.maximum(total, 0.0)
    place = p[:, None] * outputs + o[None, :]
    if DROP:
        new *= _dropout_factor(place, seeds, layer, rate)
    new = new.to(y.dtype.element_ty)
    tl.store(passed + place, (new > 0).to(tl.int8), mask=live[:, None] & wanted[None, :])
    windows = tl.reshape(new.to(tl.float32), (2, BM // 32, 2, 8, BN))
    result = tl.reshape(tl.sum(tl.sum(windows, 2), 0) * 0.25, (BM // 4, BN)).to(y.dtype.element_ty)
    q = tl.program_id(0) * (BM // 4) + tl.arange(0, BM // 4)
    written = (q < pixels // 4)[:, None] & wanted[None, :]
    tl.store(y + q[:, None] * y_stride + o[None, :], result, mask=written)
    result = tl.where(written, result.to(tl.float32), 0.0)
    place = partial + tl.program_id(0) * 2 * outputs + o
    tl.store(place, tl.sum(result, 0), mask=wanted)
    tl.store(place + outputs, tl.sum(result * result, 0), mask=wanted)


@triton.jit
def _statistics(partial, count, mean, variance, rstd, pixels, eps, columns, SLOT: tl.constexpr, ROWS: tl.constexpr):
    """Compute mean, variance and 1 / deviation of 16 columns from the sums of all programs."""
    c = tl.program_id(0) * SLOT + tl.arange(0, SLOT)
    plain = tl.zeros((ROWS, SLOT), tl.float32)
    squared = tl.zeros((ROWS, SLOT), tl.float32)
    for first in range(0, count, ROWS):
        r = first + tl.arange(0, ROWS)
        place = partial + r[:, None] * 2 * columns + c[None, :]
        plain += tl.load(place, mask=(r < count)[:, None], other=0.0)
        squared += tl.load(place + columns, mask=(r < count)[:, None], other=0.0)
    average = tl.sum(plain, 0) / pixels
    spread = tl.maximum(tl.sum(squared, 0) / pixels - average * average, 0.0)
    tl.store(mean + c, average)
    tl.store(variance + c, spread)
    tl.store(rstd + c, 1 / tl.sqrt(spread + eps))


@triton.jit
def _head_forward(
    x, y, feature, gamma, beta, mean, rstd, area, x_stride, channels, features, BM: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    """Compute y (images, features) = relu(norm(x)) averaged over each image; `feature` of an unused column is -1."""
    image = tl.program_id(0)
    c = tl.program_id(1) * BK + tl.arange(0, BK)
    inside = c < channels
    scale, shift = _scale_and_shift(gamma, beta, mean, rstd, c, inside)
    total = tl.zeros((BK,), tl.float32)
    for first in range(0, area, BM):
        p = first + tl.arange(0, BM)
        there = (p < area)[:, None] & inside[None, :]
        a = tl.load(x + (image * area + p)[:, None] * x_stride + c[None, :], mask=there, other=0.0).to(tl.float32)
        a = tl.maximum(a * scale[None, :] + shift[None, :], 0.0)
        total += tl.sum(tl.where(there, a, 0.0), 0)
    at = tl.load(feature + c, mask=inside, other=-1)
    tl.store(y + image * features + at, total / area, mask=at >= 0)


@triton.jit
def _classifier_forward(
    x, w, b, y, images, features, classes, DTYPE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    """Compute y (images, classes) = x (images, features) w.T (features, classes) + b."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for first in range(0, features, BK):
        c = first + tl.arange(0, BK)
        inside = c < features
        rows = (m < images)[:, None] & inside[None, :]
        columns = inside[:, None] & (n < classes)[None, :]
        a = tl.load(x + m[:, None] * features + c[None, :], mask=rows, other=0.0).to(DTYPE)
        weights = tl.load(w + n[None, :] * features + c[:, None], mask=columns, other=0.0).to(DTYPE)
        total = tl.dot(a, weights, total, input_precision="ieee")
    total += tl.load(b + n, mask=n < classes, other=0.0)[None, :]
    tl.store(y + m[:, None] * classes + n[None, :], total, mask=(m < images)[:, None] & (n < classes)[None, :])


@triton.jit
def _classifier_backward(
    x, w, dy, dx, dw, db, images, features, classes,
    DTYPE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Compute dx, dw and db of the classifier for BK features per program."""
    c = tl.program_id(0) * BK + tl.arange(0, BK)
    n = tl.arange(0, BN)
    inside = (c < features)[None, :]
    place = n[:, None] * features + c[None, :]
    there = (n < classes)[:, None] & inside
    weights = tl.load(w + place, mask=there, other=0.0).to(DTYPE)
    total = tl.zeros((BN, BK), tl.float32)
    bias = tl.zeros((BN,), tl.float32)
    for first in range(0, images, BM):
        m = first + tl.arange(0, BM)
        live = (m < images)[:, None]
        d = tl.load(dy + m[:, None] * classes + n[None, :], mask=live & (n < classes)[None, :], other=0.0)
        bias += tl.sum(d.to(tl.float32), 0)
        d = d.to(DTYPE)
        place_x = m[:, None] * features + c[None, :]
        a = tl.load(x + place_x, mask=live & inside, other=0.0).to(DTYPE)
        tl.store(dx + place_x, tl.dot(d, weights, input_precision="ieee"), mask=live & inside)
        total = tl.dot(tl.trans(d), a, total, input_precision="ieee")
    tl.store(dw + place, total, mask=there)
    if tl.program_id(0) == 0:
        tl.store(db + n, bias, mask=n < classes)


@triton.jit
def _running_statistics(
    mean, variance, column, place, distance, block, running, tracked, size, norms, pixels, momentum,
    BLOCK: tl.constexpr, NP: tl.constexpr,
):  # fmt: skip
    """Update the running mean and variance of every norm channel, `distance` after the mean, and the counters."""
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = e < size
    c = tl.load(column + e, mask=inside, other=0)
    n = (pixels >> (2 * tl.load(block + e, mask=inside, other=0))).to(tl.float32)
    unbiased = tl.load(variance + c, mask=inside, other=0.0) * (n / (n - 1))
    to_mean = running + tl.load(place + e, mask=inside, other=0)
    to_variance = to_mean + tl.load(distance + e, mask=inside, other=0)
    old = tl.load(to_mean, mask=inside, other=0.0)
    tl.store(to_mean, old + momentum * (tl.load(mean + c, mask=inside, other=0.0) - old), mask=inside)
    old = tl.load(to_variance, mask=inside, other=0.0)
    tl.store(to_variance, old + momentum * (unbiased - old), mask=inside)
    if tl.program_id(0) == 0:
        i = tl.arange(0, NP)
        tl.store(tracked + i, tl.load(tracked + i, mask=i < norms, other=0) + 1, mask=i < norms)


@triton.jit
def _gradient_tile(
    dz, passed, p, live, outputs, first,
    CONV: tl.constexpr, SLOT: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Load the output gradients that depend on p: 16 columns per tap of a convolution, or those of a transition."""
    o = first + tl.arange(0, COLUMNS)
    line = p // WIDTH
    if CONV:  # y at p - (down, right) depends on x at p; around each image there is a border of zeros
        tap = o // SLOT
        start = ((line + 2 * (line // HEIGHT) + 1) * (WIDTH + 2) + p % WIDTH + 1) * SLOT
        place = start[:, None] + (o % SLOT - ((tap // 3 - 1) * (WIDTH + 2) + tap % 3 - 1) * SLOT)[None, :]
        z = tl.load(dz + place, mask=live[:, None], other=0.0)
    else:  # 0 where ReLU or dropout were; four pixels share the gradient of their average
        there = live[:, None] & (o < outputs)[None, :]
        pooled = line // 2 * (WIDTH // 2) + p % WIDTH // 2
        z = tl.load(dz + pooled[:, None] * outputs + o[None, :], mask=there, other=0.0)
        z = tl.where(tl.load(passed + p[:, None] * outputs + o[None, :], mask=there, other=0) != 0, z, 0.0)
    return z


@triton.jit
def _weight_tile(w, c, inside, channels, outputs, first, CONV: tl.constexpr, SLOT: tl.constexpr, COLUMNS: tl.constexpr):
    """Load the weights as (columns c, gradient columns)."""
    o = first + tl.arange(0, COLUMNS)
    if CONV:
        place = ((o // SLOT)[None, :] * channels + c[:, None]) * SLOT + (o % SLOT)[None, :]
        return tl.load(w + place, mask=inside[:, None], other=0.0)
    return tl.load(w + c[:, None] * outputs + o[None, :], mask=inside[:, None] & (o < outputs)[None, :], other=0.0)


@triton.jit
def _backward_tile(
    x, g, dz, passed, tile, c, inside, pixels, x_stride, outputs,
    CONV: tl.constexpr, ADD: tl.constexpr, MOST: tl.constexpr, REST: tl.constexpr, SLOT: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Load the inputs of a step of backward: x, the gradients in two tiles, and G."""
    p = tile * BM + tl.arange(0, BM)
    live = p < pixels
    place = p[:, None] * x_stride + c[None, :]
    there = live[:, None] & inside[None, :]
    a = tl.load(x + place, mask=there, other=0.0)
    z_most = _gradient_tile(dz, passed, p, live, outputs, 0, CONV, SLOT, HEIGHT, WIDTH, MOST)
    z_rest = z_most
    if REST > 0:
        z_rest = _gradient_tile(dz, passed, p, live, outputs, MOST, CONV, SLOT, HEIGHT, WIDTH, REST)
    before = a
    if ADD:
        before = tl.load(g + place, mask=there, other=0.0)
    return a, z_most, z_rest, before


@triton.jit
def _backward(
    x, g, dz, passed, w, gamma, beta, mean, rstd, dw, sums, pixels, x_stride, channels, outputs, padded,
    NORM: tl.constexpr, CONV: tl.constexpr, ADD: tl.constexpr, MOST: tl.constexpr, REST: tl.constexpr,
    SLOT: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, BM: tl.constexpr, CK: tl.constexpr,
):  # fmt: skip
    """Compute from dz: G (or G +=) scale * d and, per program, the weight gradients and the sums of d and d * x̂.

    The gradient columns are split into a tile of MOST columns and, unless 0, one of REST. Products have the channels as
    rows: a thread then needs scale and shift of two channels only, and a is an operand without leaving registers.
    """
    c = tl.program_id(1) * CK + tl.arange(0, CK)
    inside = c < channels
    if NORM:
        scale, shift = _scale_and_shift(gamma, beta, mean, rstd, c, inside)
        w_most = _weight_tile(w, c, inside, channels, outputs, 0, CONV, SLOT, MOST)
        if REST > 0:
            w_rest = _weight_tile(w, c, inside, channels, outputs, MOST, CONV, SLOT, REST)
    dw_most = tl.zeros((CK, MOST), tl.float32)
    if REST > 0:
        dw_rest = tl.zeros((CK, REST), tl.float32)
    plain = tl.zeros((CK,), tl.float32)  # sum of d
    scaled = tl.zeros((CK,), tl.float32)  # sum of d * x
    tiles = tl.cdiv(pixels, BM)
    next_a, next_most, next_rest, next_g = _backward_tile(
        x, g, dz, passed, tl.program_id(0), c, inside, pixels, x_stride, outputs,
        CONV, ADD, MOST, REST, SLOT, HEIGHT, WIDTH, BM,
    )  # fmt: skip
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        a, z_most, z_rest, total = next_a, next_most, next_rest, next_g
        next_a, next_most, next_rest, next_g = _backward_tile(
            x, g, dz, passed, tl.minimum(tile + tl.num_programs(0), tiles - 1), c, inside, pixels, x_stride, outputs,
            CONV, ADD, MOST, REST, SLOT, HEIGHT, WIDTH, BM,
        )  # fmt: skip
        a = tl.trans(a)
        if NORM:
            full = a.to(tl.float32)
            active = full * scale[:, None] + shift[:, None]
            a = tl.maximum(active, 0.0).to(a.dtype)
            d = tl.dot(w_most, tl.trans(z_most), input_precision="ieee")
            if REST > 0:
                d = tl.dot(w_rest, tl.trans(z_rest), d, input_precision="ieee")
            d = tl.where(active > 0, d, 0.0)
            plain += tl.sum(d, 1)
            scaled += tl.sum(d * full, 1)
            d *= scale[:, None]
            if ADD:
                d += tl.trans(total).to(tl.float32)
            p = tile * BM + tl.arange(0, BM)
            there = (p < pixels)[:, None] & inside[None, :]
            tl.store(g + p[:, None] * x_stride + c[None, :], tl.trans(d.to(g.dtype.element_ty)), mask=there)
        dw_most = tl.dot(a, z_most, dw_most, input_precision="ieee")
        if REST > 0:
            dw_rest = tl.dot(a, z_rest, dw_rest, input_precision="ieee")
    # dw (programs, padded, MOST + REST), sums (programs, 2, padded)
    place = dw + (tl.program_id(0) * padded + c[:, None]) * (MOST + REST)
    tl.store(place + tl.arange(0, MOST)[None, :], dw_most, mask=inside[:, None])
    if REST > 0:
        tl.store(place + MOST + tl.arange(0, REST)[None, :], dw_rest, mask=inside[:, None])
    if NORM:
        center = tl.load(mean + c, mask=inside, other=0.0)
        inverse = tl.load(rstd + c, mask=inside, other=0.0)
        tl.store(sums + tl.program_id(0) * 2 * padded + c, plain)
        tl.store(sums + tl.program_id(0) * 2 * padded + padded + c, (scaled - center * plain) * inverse)


@triton.jit
def _head_backward(
    x, g, dy, feature, gamma, beta, mean, rstd, sums, pixels, area, x_stride, channels, padded, features,
    WHOLE: tl.constexpr, BM: tl.constexpr, CK: tl.constexpr,
):  # fmt: skip
    """Compute G = scale * d of the average over an image and, per program, the sums of d and d * x̂."""
    c = tl.program_id(1) * CK + tl.arange(0, CK)
    inside = c < channels
    scale, shift = _scale_and_shift(gamma, beta, mean, rstd, c, inside)
    center = tl.load(mean + c, mask=inside, other=0.0)
    inverse = tl.load(rstd + c, mask=inside, other=0.0)
    at = tl.load(feature + c, mask=inside, other=-1)
    plain = tl.zeros((CK,), tl.float32)
    normal = tl.zeros((CK,), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(pixels, BM), tl.num_programs(0)):
        p = tile * BM + tl.arange(0, BM)
        there = (p < pixels)[:, None] & inside[None, :]
        full = tl.load(x + p[:, None] * x_stride + c[None, :], mask=there, other=0.0).to(tl.float32)
        if WHOLE:  # a tile is within one image
            of_image = tl.load(dy + tile * BM // area * features + at, mask=at >= 0, other=0.0).to(tl.float32) / area
            d = tl.where(there, of_image[None, :], 0.0)
        else:
            used = there & (at >= 0)[None, :]
            d = tl.load(dy + (p // area)[:, None] * features + at[None, :], mask=used, other=0.0).to(tl.float32) / area
        d = tl.where(full * scale[None, :] + shift[None, :] > 0, d, 0.0)
        plain += tl.sum(d, 0)
        normal += tl.sum(d * (full - center[None, :]) * inverse[None, :], 0)
        tl.store(g + p[:, None] * x_stride + c[None, :], (d * scale[None, :]).to(g.dtype.element_ty), mask=there)
    tl.store(sums + tl.program_id(0) * 2 * padded + c, plain)
    tl.store(sums + tl.program_id(0) * 2 * padded + padded + c, normal)


@triton.jit
def _sums_of(sums, count, c, padded, SLOT: tl.constexpr, ROWS: tl.constexpr):
    """Return the sums of d and d * x̂ of 16 columns over all programs of a backward kernel."""
    r = tl.arange(0, ROWS)
    plain = tl.zeros((ROWS, SLOT), tl.float32)
    normal = tl.zeros((ROWS, SLOT), tl.float32)
    for first in range(0, count, ROWS):
        place = sums + (first + r)[:, None] * 2 * padded + c[None, :]
        plain += tl.load(place, mask=(first + r < count)[:, None], other=0.0)
        normal += tl.load(place + padded, mask=(first + r < count)[:, None], other=0.0)
    return tl.sum(plain, 0), tl.sum(normal, 0)


@triton.jit
def _input_gradient(x, g, mean, rstd, s, t, place, there, pixels):
    """Return dx = G - (S / n + x̂ T / n) / deviation at these addresses, from the statistics of their columns."""
    x_hat = (tl.load(x + place, mask=there, other=0.0).to(tl.float32) - mean[None, :]) * rstd[None, :]
    rest = (s[None, :] + x_hat * t[None, :]) * (rstd[None, :] / pixels)
    return tl.load(g + place, mask=there, other=0.0).to(tl.float32) - rest


@triton.jit(do_not_specialize=["layer"])
def _add_up(
    dw, sums, count, gamma, gradients, weight_at, gamma_at, beta_at, s, t, channels, outputs, padded, columns,
    x, g, mean, rstd, dz, seeds, layer, rate, pixels, x_stride,
    WEIGHT: tl.constexpr, NORM: tl.constexpr, CONV: tl.constexpr, ADD: tl.constexpr, NEXT: tl.constexpr,
    DROP: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    SLOT: tl.constexpr, ROWS: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Add the sums of all programs of a backward kernel in a fixed order, 16 elements per program.

    With NEXT, all readers of the first 16 columns are done: the first programs compute the gradient at the output of
    the convolution that wrote them, dz (images, height + 2, width + 2, 16) with a border of zeros. The next programs
    compute the gradients of the weights, the last ones those of gamma and beta and their terms of S and T. The
    positions of the real parameters, at which their gradients are stored, are -1 for packed ones that are not real.
    """
    first_programs = tl.cdiv(pixels // (HEIGHT * WIDTH) * (HEIGHT + 2) * (WIDTH + 2), BM) if NEXT else 0
    number = tl.program_id(0) - first_programs
    weights = channels * columns // SLOT if WEIGHT else 0
    o = tl.arange(0, SLOT)
    if number < 0:
        of_beta, of_gamma = _sums_of(sums, count, o, padded, SLOT, ROWS)
        factor = tl.load(gamma + o)
        of_beta *= factor
        of_gamma *= factor
        if ADD:
            of_beta += tl.load(s + o)
            of_gamma += tl.load(t + o)
        b = tl.program_id(0) * BM + tl.arange(0, BM)  # pixel of the images with borders
        line = b // (WIDTH + 2)
        row = line % (HEIGHT + 2) - 1
        column = b % (WIDTH + 2) - 1
        p = (line // (HEIGHT + 2) * HEIGHT + row) * WIDTH + column
        live = (p < pixels) & (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
        there = live[:, None] & (o >= 0)[None, :]
        place = p[:, None] * x_stride + o[None, :]
        d = _input_gradient(x, g, tl.load(mean + o), tl.load(rstd + o), of_beta, of_gamma, place, there, pixels)
        if DROP:
            d *= _dropout_factor(p[:, None] * SLOT + o[None, :], seeds, layer, rate)
        d = tl.where(there, d, 0.0).to(dz.dtype.element_ty)
        stored = (line // (HEIGHT + 2) * HEIGHT * WIDTH < pixels)[:, None] & (o >= 0)[None, :]
        tl.store(dz + b[:, None] * SLOT + o[None, :], d, mask=stored)
    elif number < weights:
        e = number * SLOT + o  # element of (channels, columns)
        r = tl.arange(0, ROWS)
        c = e // columns
        o = e % columns
        if CONV:
            at = tl.load(weight_at + ((o // SLOT) * channels + c) * SLOT + o % SLOT)
        else:
            at = tl.load(weight_at + c * outputs + o, mask=o < outputs, other=-1)
        total = tl.zeros((ROWS, SLOT), tl.float32)
        for first in range(0, count, ROWS):
            place = (first + r)[:, None] * (padded * columns) + e[None, :]
            total += tl.load(dw + place, mask=(first + r < count)[:, None], other=0.0)
        tl.store(gradients + at, tl.sum(total, 0), mask=at >= 0)
    elif NORM:
        c = (number - weights) * SLOT + o
        of_beta, of_gamma = _sums_of(sums, count, c, padded, SLOT, ROWS)
        at = tl.load(beta_at + c)
        tl.store(gradients + at, of_beta, mask=at >= 0)
        at = tl.load(gamma_at + c)
        tl.store(gradients + at, of_gamma, mask=at >= 0)
        needed = (c >= SLOT) if NEXT else (c >= 0)
        factor = tl.load(gamma + c)
        if ADD:
            of_beta = of_beta * factor + tl.load(s + c)
            of_gamma = of_gamma * factor + tl.load(t + c)
        else:
            of_beta *= factor
            of_gamma *= factor
        tl.store(s + c, of_beta, mask=needed)
        tl.store(t + c, of_gamma, mask=needed)


@triton.jit
def _pooled_gradient(
    x, g, mean, rstd, s, t, out, rate, pooled, x_stride, outputs,
    DROP: tl.constexpr, SLOT: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of a transition after its average, divided among the four pixels that are averaged."""
    q = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.program_id(1) * SLOT + tl.arange(0, SLOT)
    there = (q < pooled)[:, None] & (c < outputs)[None, :]
    place = q[:, None] * x_stride + c[None, :]
    d = _input_gradient(
        x, g, tl.load(mean + c), tl.load(rstd + c), tl.load(s + c), tl.load(t + c), place, there, pooled
    ) * (0.25 / (1 - rate) if DROP else 0.25)
    tl.store(out + q[:, None] * outputs + c[None, :], d.to(out.dtype.element_ty), mask=there)


# ---- the memory layout ---------------------------------------------------------------------------------------------


def _padded(channels: int) -> int:
    """Return the number of channels, rounded up to full slots."""
    return -(-channels // SLOT) * SLOT


@dataclass(frozen=True)
class _Unit:
    """A norm and the convolution after it, with unused channels; the stem has no norm, the last unit no convolution."""

    number: int
    first: int  # first column that it reads, within its block
    column: int  # first column that it reads, within all blocks
    channels: int  # number of columns that it reads
    outputs: int  # number of columns that it writes
    weight: slice  # of the packed parameters
    gamma: slice
    beta: slice
    norm: slice  # of the packed statistics


class _Plan:
    """The layout of a DenseNet: packed parameters with unused columns, and the mapping to and from the real ones."""

    def __init__(self, inputs: int, widths: tuple[int, ...], layers: int, growth: int) -> None:
        self.units: list[_Unit] = []
        self.sources: list[Tensor] = []  # per packed parameter: its position among the real ones, or -1; see `source`
        self.norms: list[Tensor] = []  # per real norm channel: its column within all blocks
        self.real = self.packed = self.statistics = 0
        self.widths = [_padded(width) + SLOT * layers for width in widths]  # columns of each block
        self.starts = [sum(self.widths[:block]) for block in range(len(widths))]
        self._add(torch.arange(inputs), widths[0], 3, 0, 0, norm=False)
        for block, width in enumerate(widths):
            for layer in range(layers + 1):
                slots = [SLOT * older + torch.arange(growth) for older in range(layer)]
                columns = torch.cat([*slots, SLOT * layer + torch.arange(width)])
                after = len(columns) if block + 1 < len(widths) else 0
                outputs, side = (growth, 3) if layer < layers else (after, 1)
                self._add(columns, outputs, side, SLOT * (layers - layer), self.starts[block])
        self.features = len(columns)  # real channels after the last block, in `columns`
        self.feature = torch.full((self.units[-1].channels,), -1, dtype=torch.int32)  # the inverse, -1 if unused
        self.feature[columns] = torch.arange(len(columns), dtype=torch.int32)
        self.source = torch.cat(self.sources).int()
        self.to_columns = torch.cat(self.norms)
        spread = [torch.full((unit.norm.stop - unit.norm.start,), -1) for unit in self.units]
        count = 0
        for unit, places, columns in zip(self.units[1:], spread[1:], self.norms, strict=True):
            places[columns - unit.column] = count + torch.arange(len(columns))
            count += len(columns)
        places = torch.cat(spread)
        self.to_statistics = torch.where(places < 0, count, places)  # a mean of 0 and a variance of 1 are appended
        self._place_running_statistics([len(columns) for columns in self.norms], layers + 1)

    def _add(self, columns: Tensor, outputs: int, side: int, first: int, start: int, norm: bool = True) -> None:
        """Add a unit; the order of real parameters is gamma, beta, weight, that of packed ones weight, gamma, beta."""
        real, taps = len(columns), side * side
        read, written = _padded(int(columns[-1]) + 1), _padded(outputs)
        norm_size = 2 * real if norm else 0
        weight = torch.full((taps, read, written), -1)
        places = torch.arange(outputs * real * taps).view(outputs, real, taps) + self.real + norm_size
        weight[:, columns, :outputs] = places.permute(2, 1, 0)
        vectors = torch.full((2, read) if norm else (2, 0), -1)
        if norm:
            vectors[:, columns] = self.real + torch.arange(norm_size).view(2, real)
            self.norms.append(start + first + columns)
        self.real += norm_size + outputs * real * taps
        slices: list[slice] = []
        for part in (weight.flatten(), *vectors):
            slices.append(slice(self.packed, self.packed + len(part)))
            self.packed += len(part)
            self.sources.append(part)
        size = vectors.shape[1]
        statistics = slice(self.statistics, self.statistics + size)
        self.statistics += size
        weights, gamma, beta = slices
        self.units.append(_Unit(len(self.units), first, start + first, read, written, weights, gamma, beta, statistics))

    def _place_running_statistics(self, sizes: list[int], units: int) -> None:
        """Describe each norm channel, if the running mean and variance of each norm lie one after the other."""
        starts = [2 * sum(sizes[:number]) for number in range(len(sizes))]
        places = [start + torch.arange(size) for start, size in zip(starts, sizes, strict=True)]
        self.to_running = torch.cat(places).int()  # its running mean
        self.to_variance = torch.repeat_interleave(torch.tensor(sizes), torch.tensor(sizes)).int()  # relative to it
        self.block_of = torch.repeat_interleave(torch.arange(len(sizes)) // units, torch.tensor(sizes)).int()
        self.column_of = self.to_columns.int()

    def to(self, device: torch.device) -> "_Plan":
        """Move the index tensors to a device, in place."""
        for name in (
            *("feature", "source", "to_columns", "to_statistics"),
            *("to_running", "to_variance", "block_of", "column_of"),
        ):
            setattr(self, name, getattr(self, name).to(device))
        return self

    def blocks(self) -> list[list[_Unit]]:
        """Return the units of each block: its dense layers and the unit after them."""
        size = (len(self.units) - 1) // len(self.widths)
        return [self.units[1 + block * size : 1 + (block + 1) * size] for block in range(len(self.widths))]


@lru_cache(maxsize=8)
def plan_of(inputs: int, widths: tuple[int, ...], layers: int, growth: int, device: torch.device) -> _Plan:
    """Return the cached plan of a network."""
    return _Plan(inputs, widths, layers, growth).to(device)


# ---- the passes ----------------------------------------------------------------------------------------------------


@dataclass
class Pass:
    """The forward and backward pass of one batch."""

    plan: _Plan
    shape: tuple[int, int, int]  # images, height, width
    dtype: torch.dtype  # of the buffers
    wide: Tensor  # packed parameters in fp32
    half: Tensor  # and in the dtype of the buffers
    seeds: Tensor | None  # of dropout, per unit
    rate: float  # of dropout
    running: tuple[Tensor, Tensor] | None  # packed mean and 1 / deviation of all units; None: use those of the batch

    def __post_init__(self) -> None:
        self.buffers: list[Tensor] = []
        self.passed: list[Tensor] = []  # of every transition: the outputs that ReLU and dropout passed
        self.gradients: Tensor | None = None  # of all real parameters, and after them of the classifier
        self.dz: Tensor  # gradient at the output of the next convolution in the backward pass
        self.mean, self.variance, self.rstd = self.wide.new_empty(3, sum(self.plan.widths))

    def new(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return an uninitialised tensor on the device of the parameters."""
        return torch.empty(shape, dtype=dtype or self.dtype, device=self.wide.device)

    def size(self, block: int) -> tuple[int, int, int]:
        """Return the number of pixels, the height and the width in a block."""
        images, height, width = self.shape
        height, width = height >> block, width >> block
        return images * height * width, height, width

    def norm(self, unit: _Unit) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return gamma, beta, mean and 1 / deviation of the columns that a unit reads."""
        if self.running is None:
            mean, rstd = self.mean[unit.column :], self.rstd[unit.column :]
        else:
            mean, rstd = (statistic[unit.norm] for statistic in self.running)
        return self.wide[unit.gamma], self.wide[unit.beta], mean, rstd

    def dropout(self, unit: _Unit) -> tuple[Tensor | None, int, float]:
        """Return the dropout arguments of a kernel."""
        return self.seeds, unit.number, self.rate

    # -- forward

    def forward(self, images: Tensor) -> Tensor:
        """Return the features (B, features) of images (B, C, H, W)."""
        stem = self.plan.units[0]
        pixels, height, width = self.size(0)
        self.images = self.new(len(images), height, width, SLOT)
        _pixels_first[(triton.cdiv(pixels, 128),)](
            images.contiguous(), self.images, pixels, height * width, images.shape[1], SLOT=SLOT, BM=128
        )
        blocks = self.plan.blocks()
        for block, (*layers, _) in enumerate(blocks):
            self.buffers.append(self.new(self.size(block)[0], self.plan.widths[block]))
            first = len(layers) * SLOT
            if block == 0:
                self._conv(block, stem, self.images, first)
            else:
                self._transition(block, blocks[block - 1][-1], first)
            for unit in layers:
                self._conv(block, unit, self.buffers[block][:, unit.first :], unit.first - SLOT)
        return self._head(blocks[-1][-1])

    def _conv(self, block: int, unit: _Unit, x: Tensor, to: int) -> None:
        pixels, height, width = self.size(block)
        norm = unit is not self.plan.units[0]
        whole = _image_sizes(height * width) if norm else None
        sizes = whole or _conv_sizes(pixels, unit.channels)
        programs = triton.cdiv(pixels, sizes["BM"])
        partial = self.new(programs, 2, SLOT, dtype=torch.float32)
        y = self.buffers[block]
        kernel, more = (_conv_images, {}) if whole else (_conv_forward, {"NORM": norm})
        kernel[(programs,)](
            x, y[:, to:], self.half[unit.weight], *self.norm(unit), partial, *self.dropout(unit),
            pixels, x.stride(0) if norm else SLOT, y.stride(0), unit.channels,
            DROP=self.seeds is not None and norm, SLOT=SLOT, HEIGHT=height, WIDTH=width, **more, **sizes,
        )  # fmt: skip
        self._statistics(partial, self.plan.starts[block] + to, SLOT, pixels)

    def _transition(self, block: int, unit: _Unit, to: int) -> None:
        pixels, _, width = self.size(block - 1)
        x, y = self.buffers[block - 1], self.buffers[block]
        sizes = _transition_sizes(pixels)
        grid = triton.cdiv(pixels, sizes["BM"]), triton.cdiv(unit.outputs, sizes["BN"])
        partial = self.new(grid[0], 2, unit.outputs, dtype=torch.float32)
        self.passed.append(self.new(len(x), unit.outputs, dtype=torch.int8))
        _transition_forward[grid](
            x, y[:, to:], self.passed[-1], self.half[unit.weight], *self.norm(unit), partial, *self.dropout(unit),
            pixels, x.stride(0), y.stride(0), unit.channels, unit.outputs,
            DROP=self.seeds is not None, WIDTH=width, **sizes,
        )  # fmt: skip
        self._statistics(partial, self.plan.starts[block] + to, unit.outputs, pixels // 4)

    def _statistics(self, partial: Tensor, column: int, columns: int, pixels: int) -> None:
        if self.running is None:
            rows = min(1024, triton.next_power_of_2(len(partial)))
            _statistics[(columns // SLOT,)](
                partial, len(partial), self.mean[column:], self.variance[column:], self.rstd[column:], pixels, EPSILON,
                columns, SLOT=SLOT, ROWS=rows, num_warps=16 if rows > 512 else 8,
            )  # fmt: skip

    def _head(self, unit: _Unit) -> Tensor:
        x = self.buffers[-1]
        area = len(x) // self.shape[0]
        result = self.new(self.shape[0], self.plan.features, dtype=torch.float32)
        _head_forward[(self.shape[0], triton.cdiv(unit.channels, 64))](
            x, result, self.plan.feature, *self.norm(unit), area, x.stride(0), unit.channels, self.plan.features,
            BM=64, BK=64,
        )  # fmt: skip
        return result

    # -- backward

    def backward(self, gradient: Tensor) -> Tensor:
        """Return the gradients of the real parameters from those of the features."""
        if self.gradients is None:
            self.gradients = self.new(self.plan.real, dtype=torch.float32)
        self.s, self.t = self.wide.new_empty(2, sum(self.plan.widths))
        stem, blocks = self.plan.units[0], self.plan.blocks()
        for block in reversed(range(len(blocks))):
            *layers, after = blocks[block]
            self.g = torch.empty_like(self.buffers[block])
            if block + 1 == len(blocks):
                self._head_backward(block, after, gradient, layers[-1])
            else:
                self._backward(block, after, self.dz, layers[-1])
            for unit, writer in zip(
                reversed(layers), (*reversed(layers[:-1]), stem if block == 0 else None), strict=True
            ):
                self._backward(block, unit, self.dz, writer, add=True)
            if block:
                self.dz = self._pooled_gradient(block, len(layers) * SLOT)
            else:
                self._backward(block, stem, self.dz, None)
        result, self.gradients = self.gradients, None
        return result

    def image_gradient(self, channels: int) -> Tensor:
        """Return the gradient of the images (B, channels, H, W), after `backward`."""
        weight = self.half[self.plan.units[0].weight].view(3, 3, SLOT, SLOT)  # (down, right, inputs, outputs)
        kernel = weight.flip(0, 1).permute(2, 3, 0, 1)[:channels]  # x at p is read by the outputs at p - (down, right)
        return F.conv2d(self.dz.permute(0, 3, 1, 2), kernel).float()  # dz has a border of zeros

    def _head_backward(self, block: int, unit: _Unit, gradient: Tensor, writer: _Unit) -> None:
        x = self.buffers[-1]
        pixels = len(x)
        chunks = triton.cdiv(unit.channels, 32)
        programs = min(triton.cdiv(pixels, 64), triton.cdiv(PROGRAMS, chunks))
        sums = self.new(programs, 2, chunks * 32, dtype=torch.float32)
        _head_backward[(programs, chunks)](
            x, self.g, gradient.contiguous(), self.plan.feature, *self.norm(unit), sums, pixels,
            pixels // self.shape[0], x.stride(0), unit.channels, chunks * 32, self.plan.features,
            WHOLE=pixels // self.shape[0] % 64 == 0, BM=64, CK=32,
        )  # fmt: skip
        self._add_up(block, unit, None, sums, writer, add=False)

    def _statistics_at(self, column: int) -> tuple[Tensor, ...]:
        return tuple(statistic[column:] for statistic in (self.mean, self.rstd, self.s, self.t))

    def _pooled_gradient(self, block: int, at: int) -> Tensor:
        x = self.buffers[block]
        pooled, outputs = len(x), self.passed[block - 1].shape[1]
        result = self.new(pooled, outputs)
        _pooled_gradient[(triton.cdiv(pooled, 64), outputs // SLOT)](
            x[:, at:], self.g[:, at:], *self._statistics_at(self.plan.starts[block] + at), result,
            self.rate, pooled, x.stride(0), outputs, DROP=self.seeds is not None, SLOT=SLOT, BM=64,
        )  # fmt: skip
        return result

    def _backward(self, block: int, unit: _Unit, dz: Tensor, writer: _Unit | None, add: bool = False) -> None:
        """Compute the gradients of a unit and then, unless None, that of the writer of the first columns it reads."""
        pixels, height, width = self.size(block)
        stem = unit is self.plan.units[0]
        x = self.images if stem else self.buffers[block][:, unit.first :]
        conv = dz.dim() == 4
        most = 128
        rest = SLOT if conv else triton.next_power_of_2(max(0, unit.outputs - most))
        sizes = _backward_sizes(pixels)
        chunks = triton.cdiv(unit.channels, sizes["CK"])
        columns = chunks * sizes["CK"]
        programs = min(triton.cdiv(pixels, sizes["BM"]), triton.cdiv(PROGRAMS * 4 // sizes["num_warps"], chunks))
        dw = self.new(programs, columns, most + rest, dtype=torch.float32)
        sums = self.new(programs, 2, columns, dtype=torch.float32)
        _backward[(programs, chunks)](
            x, self.g[:, unit.first :], dz, dz if conv else self.passed[block], self.half[unit.weight],
            *self.norm(unit), dw, sums,
            pixels, SLOT if stem else x.stride(0), unit.channels, unit.outputs, columns,
            NORM=not stem, CONV=conv, ADD=add, MOST=most, REST=rest, SLOT=SLOT, HEIGHT=height, WIDTH=width, **sizes,
        )  # fmt: skip
        self._add_up(block, unit, dw, sums, writer, add)

    def _add_up(
        self, block: int, unit: _Unit, dw: Tensor | None, sums: Tensor, writer: _Unit | None, add: bool
    ) -> None:
        pixels, height, width = self.size(block)
        stem = self.plan.units[0]
        norm = unit is not stem
        columns = 0 if dw is None else dw.shape[2]
        programs = (unit.channels * columns + (unit.channels if norm else 0)) // SLOT
        x, g = self.buffers[block][:, unit.first :], self.g[:, unit.first :]
        mean, rstd, s, t = self._statistics_at(unit.column)
        if writer:
            self.dz = self.new(self.shape[0], height + 2, width + 2, SLOT)
            programs += triton.cdiv(self.dz.numel() // SLOT, GRADIENT_TILE)
        _add_up[(programs,)](
            sums if dw is None else dw, sums, len(sums), self.wide[unit.gamma],
            self.gradients, *(self.plan.source[part] for part in (unit.weight, unit.gamma, unit.beta)), s, t,
            unit.channels, unit.outputs, sums.shape[2], columns,
            x, g, mean, rstd, self.dz if writer else sums, *self.dropout(writer or unit), pixels, x.stride(0),
            WEIGHT=dw is not None, NORM=norm, CONV=columns == 9 * SLOT, ADD=add, NEXT=writer is not None,
            DROP=self.seeds is not None and writer is not stem, HEIGHT=height, WIDTH=width,
            SLOT=SLOT, ROWS=64, BM=GRADIENT_TILE, num_warps=4,
        )  # fmt: skip


class _Features(torch.autograd.Function):
    """The features of a training batch, and the mean and variance of every norm channel."""

    @staticmethod
    def forward(
        ctx: Any,
        images: Tensor,
        plan: _Plan,
        seeds: Tensor | None,
        rate: float,
        dtype: torch.dtype,
        *parameters: Tensor,
    ) -> Any:
        shape = (len(images), *images.shape[2:])
        ctx.batch_pass = Pass(plan, shape, dtype, *_packed(plan, parameters, dtype), seeds, rate, None)
        features = ctx.batch_pass.forward(images)
        ctx.sizes, ctx.channels = [parameter.shape for parameter in parameters], images.shape[1]
        return features, ctx.batch_pass

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> Any:
        flat = ctx.batch_pass.backward(gradient)
        of_images = ctx.batch_pass.image_gradient(ctx.channels) if ctx.needs_input_grad[0] else None
        parts = flat[: ctx.batch_pass.plan.real].split([shape.numel() for shape in ctx.sizes])
        of_parameters = (part.view(shape) for part, shape in zip(parts, ctx.sizes, strict=True))
        return of_images, *(None,) * 4, *of_parameters


class _Classifier(torch.autograd.Function):
    """A linear layer after the features, whose gradients lie after those of the features."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, batch_pass: "Pass | None", dtype: Any) -> Tensor:
        (images, features), classes = x.shape, len(weight)
        ctx.save_for_backward(x, weight)
        ctx.batch_pass, ctx.dtype = batch_pass, dtype
        y = x.new_empty(images, classes)
        _classifier_forward[(triton.cdiv(images, 16),)](
            x, weight, bias, y, images, features, classes, DTYPE=dtype, BM=16, BN=_class_columns(classes), BK=32
        )
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        (images, features), classes, real = x.shape, len(weight), ctx.batch_pass.plan.real
        ctx.batch_pass.gradients = flat = x.new_empty(real + weight.numel() + classes)
        dw, db = flat[real : real + weight.numel()].view_as(weight), flat[real + weight.numel() :]
        dx = torch.empty_like(x)
        _classifier_backward[(triton.cdiv(features, 32),)](
            x, weight, gradient.contiguous(), dx, dw, db, images, features, classes,
            DTYPE=ctx.dtype, BM=64, BN=_class_columns(classes), BK=32,
        )  # fmt: skip
        return dx, dw, db, None, None


def _class_columns(classes: int) -> int:
    return max(16, int(triton.next_power_of_2(classes)))


def _packed(plan: _Plan, parameters: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return all parameters in the packed layout in fp32 and in another dtype, with zeros at unused positions."""
    joined = join_adjacent(parameters)
    flat = joined[0] if len(joined) == 1 else torch.cat(joined)
    wide, half = flat.new_empty(plan.packed), flat.new_empty(plan.packed, dtype=dtype)
    _pack[(triton.cdiv(plan.packed, BLOCK),)](flat, plan.source, wide, half, plan.packed, BLOCK=BLOCK)
    return wide, half


def _packed_statistics(plan: _Plan, norms: Sequence[nn.BatchNorm2d]) -> tuple[Tensor, Tensor]:
    """Return the running mean and 1 / deviation of all units in the packed layout."""
    mean = torch.cat([*(_tracked(norm.running_mean) for norm in norms), norms[0].weight.new_zeros(1)])
    variance = torch.cat([*(_tracked(norm.running_var) for norm in norms), norms[0].weight.new_ones(1)])
    return mean[plan.to_statistics], (variance + EPSILON).rsqrt()[plan.to_statistics]


_TRITON = {torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


# ---- the network ---------------------------------------------------------------------------------------------------


def applies(network: "DenseNet", images: Tensor) -> bool:
    """Return whether the kernels support this batch: bf16 on a GPU, and no gradients in evaluation."""
    height, width = images.shape[2:]
    halvings = 2 ** (len(network.widths) - 1)
    return (
        images.is_cuda
        and images.dtype == network.norm.weight.dtype == torch.float32
        and torch.is_autocast_enabled("cuda")
        and torch.get_autocast_dtype("cuda") == torch.bfloat16
        and (network.training or not torch.is_grad_enabled())
        and len(images) * height * width > halvings**2  # a variance needs more than one pixel after the last block
        and images.shape[1] <= SLOT
        and network.growth <= SLOT
        and network.widths[-1] <= LARGEST_TRANSITION
        and height % halvings == width % halvings == 0
        and SMALLEST_TILE % width == 0  # a tile contains full rows
        and len(images) * height * width * (_padded(network.widths[0]) + SLOT * network.layers) < LARGEST
    )


def logits(network: "DenseNet", images: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Return the output of the classifier: (B, C, H, W) -> (B, K)."""
    means, batch_pass = _features(network, images, dtype)
    classifier = network.classifier
    if classifier.out_features > MOST_CLASSES:
        return classifier(means)  # type: ignore[no-any-return]
    result: Tensor = _Classifier.apply(means, classifier.weight, classifier.bias, batch_pass, _TRITON[dtype])
    return result


def features(network: "DenseNet", images: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Return the output of the last norm and ReLU, averaged over each image: (B, C, H, W) -> (B, features)."""
    return _features(network, images, dtype)[0]


def _features(network: "DenseNet", images: Tensor, dtype: torch.dtype) -> tuple[Tensor, Pass | None]:
    """Return the features and, in training, the pass that computed them."""
    plan = plan_of(images.shape[1], network.widths, network.layers, network.growth, images.device)
    stem, *rest = network.features
    units: list[Any] = rest
    norms = [unit.norm for unit in units] + [network.norm]
    parameters: list[Any] = [stem.weight]
    for unit in units:
        parameters += [unit.norm.weight, unit.norm.bias, unit.conv.weight]
    parameters += [network.norm.weight, network.norm.bias]
    dropout = units[0].dropout
    if not network.training:
        shape = (len(images), *images.shape[2:])
        with torch.no_grad():
            packed = _packed(plan, parameters, dtype)
            return Pass(plan, shape, dtype, *packed, None, 0.0, _packed_statistics(plan, norms)).forward(images), None
    seeds = None
    if dropout.p > 0:
        seeds = torch.empty(len(plan.units), dtype=torch.int64, device=images.device).random_(
            generator=dropout.generator
        )
    result, batch_pass = _Features.apply(images, plan, seeds, dropout.p, dtype, *parameters)
    if norms[0].track_running_stats:
        _update_running_statistics(norms, batch_pass)
    return result, batch_pass


@torch.no_grad()
def _update_running_statistics(norms: Sequence[nn.BatchNorm2d], batch_pass: Pass) -> None:
    """Update the running statistics as batch-norm does, with the unbiased variance."""
    plan, momentum = batch_pass.plan, norms[0].momentum or 0.0
    pairs = [_tracked(statistic) for norm in norms for statistic in (norm.running_mean, norm.running_var)]
    running = join_adjacent(pairs)
    counters = join_adjacent([_tracked(norm.num_batches_tracked) for norm in norms])
    apart = len(running) > 1 or len(counters) > 1  # work on copies
    flat, tracked = (torch.cat(parts) if apart else parts[0] for parts in (running, counters))
    size = len(plan.column_of)
    _running_statistics[(triton.cdiv(size, 256),)](
        batch_pass.mean, batch_pass.variance, plan.column_of, plan.to_running, plan.to_variance, plan.block_of,
        flat, tracked, size, len(norms), batch_pass.size(0)[0], momentum,
        BLOCK=256, NP=triton.next_power_of_2(len(norms)),
    )  # fmt: skip
    if apart:
        torch._foreach_copy_(
            pairs, [p.view_as(q) for p, q in zip(flat.split([q.numel() for q in pairs]), pairs, strict=True)]
        )
        torch._foreach_add_([_tracked(norm.num_batches_tracked) for norm in norms], 1)


def _tracked(statistic: Tensor | None) -> Tensor:
    """Return a running statistic, which is not None when batch-norm tracks it."""
    assert statistic is not None
    return statistic
