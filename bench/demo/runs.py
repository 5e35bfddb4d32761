"""What the demo compares."""

from __future__ import annotations

from dataclasses import dataclass

SEED = 1
RANKS = 2


@dataclass(frozen=True)
class Run:
    """One training of the comparison: all of them differ in nothing but these fields."""

    label: str
    compression: str
    error_feedback: bool = True


BASELINE = Run("none", "none")
FOUR_BIT = Run("4-bit", "quantize:bits=4")
TOPK = Run("top-k 1 %", "topk:density=0.01")
WITHOUT_FEEDBACK = Run("top-k 1 %, no feedback", TOPK.compression, error_feedback=False)

RUNS = (
    BASELINE,
    Run("FP16", "fp16"),
    Run("8-bit", "quantize:bits=8"),
    FOUR_BIT,
    TOPK,
    WITHOUT_FEEDBACK,
)
