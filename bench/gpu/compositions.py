"""The same codecs composed of PyTorch's operations, which is what a user has today."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bench.gpu.report import TOPK, TORCH_TOPK
from bench.kernels.targets import INT4, INT8

_BLOCK, _SIGN_BLOCK = 256, 512


@dataclass(frozen=True)
class Composition:
    """`run` does what our kernel `like` does; `check` raises AssertionError if it does not."""

    name: str
    like: str
    run: Callable[[], Any]
    check: Callable[[], None]


def compositions(torch: Any, x: Any, residual: Any) -> Iterator[Composition]:
    """On flat float32 tensors of a size that is a multiple of 512."""
    yield Composition("torch half()", "fp16 encode", x.half, lambda: _close(x.half(), x, 1e-3))
    yield from _quantised(torch, x)
    yield _signs(torch, x)
    yield from _top(torch, x, residual)


def _quantised(torch: Any, x: Any) -> Iterator[Composition]:
    rows = x.view(-1, _BLOCK)

    def int8() -> Any:
        scale = rows.abs().amax(dim=1, keepdim=True) / 127
        return torch.round(rows / scale).clamp_(-127, 127).to(torch.int8), scale

    def int4() -> Any:
        scale = rows.abs().amax(dim=1, keepdim=True) / 7
        codes = torch.floor(rows / scale + torch.rand_like(rows)).clamp_(-7, 7).to(torch.int8)
        return (codes[:, : _BLOCK // 2] & 15) | (codes[:, _BLOCK // 2 :] << 4), scale

    def check8() -> None:
        codes, scale = int8()
        off = ((codes.float() * scale - rows).abs() / scale).max()
        assert off <= 0.51, f"int8 composed in torch is off by {float(off)} steps"

    def check4() -> None:
        packed, scale = int4()
        low = (packed << 4) >> 4
        off = ((low.float() * scale - rows[:, : _BLOCK // 2]).abs() / scale).max()
        assert off <= 1.01, f"int4 composed in torch is off by {float(off)} steps"

    yield Composition("torch int8, by blocks", f"{INT8} encode", int8, check8)
    yield Composition("torch int4, stochastic", f"{INT4} encode", int4, check4)


def _signs(torch: Any, x: Any) -> Composition:
    weights = (2 ** torch.arange(8, device=x.device)).to(torch.uint8)

    def signs() -> Any:
        scale = x.view(-1, _SIGN_BLOCK).abs().mean(dim=1)
        bits = (x.view(-1, 8) < 0).to(torch.uint8)
        return (bits * weights).sum(dim=1, dtype=torch.uint8), scale

    def check() -> None:
        packed = signs()[0]
        bits = (packed.view(-1, 1) & weights) != 0
        assert bool((bits.view(-1) == (x < 0)).all()), "signs composed in torch are wrong"

    return Composition("torch signs, packed", "sign encode", signs, check)


def _top(torch: Any, x: Any, residual: Any) -> Iterator[Composition]:
    k = math.ceil(0.01 * x.numel())

    def select() -> Any:
        return torch.topk(x.abs(), k, sorted=False)

    def feedback() -> Any:
        corrected = x + residual
        index = torch.topk(corrected.abs(), k, sorted=False)[1]
        values = corrected[index].half()
        corrected[index] -= values.float()
        return values, index, corrected

    def check() -> None:
        least = select()[0].min()
        assert int((x.abs() > least).sum()) < k, "torch.topk does not select the largest"

    def check_feedback() -> None:
        values, index, left = feedback()
        left[index] += values.float()
        _close(left, x + residual, 1e-5)

    yield Composition(TORCH_TOPK, "topk:density=0.01 encode", select, check)
    yield Composition(f"{TORCH_TOPK}, feedback", TOPK, feedback, check_feedback)


def _close(got: Any, want: Any, tolerance: float) -> None:
    off = float(((got.float() - want).abs() / (1 + want.abs())).max())
    assert off <= tolerance, f"composed in torch, it is off by {off}"
