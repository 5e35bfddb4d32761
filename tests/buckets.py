"""Buckets of awkward tensors, their segment tables, and every kernel: shared by the op tests."""

import itertools
from typing import Any

import numpy as np

from gradcomp.reference import KernelParams

ALL_PARAMS = [
    KernelParams("float32"),
    KernelParams("float16"),
    KernelParams("bfloat16"),
    *(
        KernelParams("quantize", bits, 32, stochastic)
        for bits, stochastic in itertools.product((8, 4, 2), (False, True))
    ),
    *(KernelParams(family, 0, 32) for family in ("float8_e4m3", "float8_e5m2", "sign")),
    *(KernelParams("topk", values=values) for values in ("float32", "float16", "bfloat16")),
    KernelParams("topk", 4, 32, True, "quantize"),
    KernelParams("topk", 0, 32, False, "float8_e4m3"),
    KernelParams("topk", 0, 32, False, "sign"),
]
REDUCIBLE = [params for params in ALL_PARAMS if params.family != "topk"]

SHAPES: list[tuple[int, ...]] = [(7,), (3, 5), (), (0,), (130,), (16, 9), (2, 0, 3)]
DTYPES = ["float32", "float16", "bfloat16", "float32", "float32", "bfloat16", "float16"]


def name_of(params: KernelParams) -> str:
    """A test id."""
    return "-".join(str(option) for option in params if option)


def segments_of(params: KernelParams, shapes: list[tuple[int, ...]] = SHAPES) -> np.ndarray:
    """One row a tensor, but for tensors of more than 96 elements: two, unless top-k forbids it."""
    rows = []
    for tensor, shape in enumerate(shapes):
        size = int(np.prod(shape))
        kept = -(-size // 8) if params.family == "topk" else 0
        cuts = [0, 96, size] if size > 96 and params.family != "topk" else [0, size]
        rows += [(tensor, a, b - a, kept, 10 + tensor) for a, b in itertools.pairwise(cuts)]
    return np.array(rows, np.int64)


def values_of(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    """float32 of several magnitudes, with zeros, ties, subnormals and now and then an infinity."""
    random = np.random.default_rng(seed)
    values = random.standard_normal(shape) * 10.0 ** random.integers(-3, 4, shape)
    special = np.array([0.0, -0.0, 1.5, -1.5, 1e-40, -1e-40, 1e-5, 70000.0, np.inf, np.nan])
    index = random.integers(0, 200, shape)
    return np.where(index < len(special), special[index % len(special)], values).astype(np.float32)


def bits_of(array: Any) -> bytes:
    """What an array or tensor holds, NaN and signs of zeros included."""
    return np.asarray(array.numpy() if hasattr(array, "numpy") else array).tobytes()
