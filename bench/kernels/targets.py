"""What each kernel may cost: multiples of `b += a` on one thread of 25.6 million float32.

Two numbers a row: on a processor with AVX-512, and on one with AVX2.
"""

from __future__ import annotations

from pathlib import Path

INT8 = "quantize:bits=8,stochastic=false"
INT4 = "quantize:bits=4,stochastic=true"
TOPK = "topk:density={}"

ENCODE = "encode"
FEEDBACK = "encode + feedback"
DECODE = "decode"
SUM = "sum of two"
REDUCE = "reduce + feedback"
INDICES_ENCODE = "indices encode"
INDICES_DECODE = "indices decode"

TARGETS: dict[tuple[str, str], tuple[float, float]] = {
    (INT8, ENCODE): (0.76, 0.80),
    (INT8, SUM): (0.72, 0.80),
    (INT4, ENCODE): (0.82, 0.95),
    (INT4, SUM): (0.65, 0.80),
    (INT4, FEEDBACK): (1.25, 1.40),
    ("fp16", ENCODE): (0.82, 0.82),
    ("fp16", DECODE): (0.97, 0.97),
    ("fp16", FEEDBACK): (1.3, 1.3),
    (TOPK.format(0.01), FEEDBACK): (1.35, 1.35),
    (TOPK.format(0.001), FEEDBACK): (1.15, 1.15),
    (TOPK.format(0.1), FEEDBACK): (2.6, 2.6),
    (TOPK.format(0.01), INDICES_ENCODE): (0.04, 0.04),
    (TOPK.format(0.01), INDICES_DECODE): (0.04, 0.04),
}

# Two threads against one, at least.
SPEEDUP = 1.85
SPEEDUP_TOPK = 1.75
# The kernel against what PyTorch has for it, at least.
FASTER_THAN_TORCH_TOPK = 20.0
FASTER_THAN_FBGEMM = 1.0
SMALL_KERNEL_SECONDS = 10e-6
SMALL_KERNEL_NUMEL = (64 << 10) // 4
OP_OVERHEAD_SECONDS = 30e-6
# CPU time of ops that run at once, in multiples of one after the other.
AT_ONCE = 1.1


def has_avx512() -> bool:
    """Whether this processor runs the kernels' code for AVX-512 (x86-64-v4)."""
    try:
        flags = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        return False
    return {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"} <= flags


def target_of(spec: str, operation: str) -> float | None:
    """The most that the kernel may cost here, in multiples of `b += a`; None if nothing is said."""
    both = TARGETS.get((spec, operation))
    return both and both[0 if has_avx512() else 1]


def speedup_of(spec: str) -> float:
    """How many times as fast two threads must be."""
    return SPEEDUP_TOPK if spec.startswith("topk") else SPEEDUP
