"""The reductions that are compared."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Variant:
    """Who reduces: a `cross_device_ops` of TensorFlow or ours, or our optimizer.

    Attributes:
      kind: "tensorflow", "hook" (gc.CompressedAllReduce) or "optimizer" (gc.DistributedOptimizer).
      choice: the class's name in tf.distribute, "" for the strategy's default; else the codec.
      exact: its sums are those of the plain strategy to the bit.
    """

    label: str
    kind: str
    choice: str

    @property
    def exact(self) -> bool:
        return self.kind == "tensorflow" or self.choice == "none"


PLAIN = Variant("plain strategy", "tensorflow", "")

_CODECS = {
    "none": "none",
    "FP16": "fp16",
    "8-bit": "quantize:bits=8",
    "4-bit": "quantize:bits=4",
    "top-k 1 %": "topk:density=0.01",
}

VARIANTS = (
    PLAIN,
    Variant("HierarchicalCopyAllReduce", "tensorflow", "HierarchicalCopyAllReduce"),
    Variant("ReductionToOneDevice", "tensorflow", "ReductionToOneDevice"),
    *(Variant(f"CompressedAllReduce, {name}", "hook", spec) for name, spec in _CODECS.items()),
    *(
        Variant(f"DistributedOptimizer, {name}", "optimizer", _CODECS[name])
        for name in ("none", "4-bit", "top-k 1 %")
    ),
)
