"""Verifies every CUDA kernel against the CPU's bytes, then times it; needs an NVIDIA GPU.

    .ci/cuda_extension.sh && python -m bench.gpu

prints one table and lines of JSON: time, GB/s moved, and the fraction of what a copy within the
device moves. It needs gradcomp._cuda, NumPy, rich, and PyTorch or CuPy; 16 GB of host memory and
40 GB of the GPU's. It ends within 4 minutes: what there is no time for is left out and named. The
exit status is 1 if bytes differ or anything was left out, 2 if there is nothing to run on.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rich.console import Console

import gradcomp as gc
from bench.gpu.compositions import compositions
from bench.gpu.device import Device, PyTorch, Unusable, open_device
from bench.gpu.kernels import CODES, Buffers, kernels_of
from bench.gpu.report import Row, lines, table, targets
from bench.kernels.cases import specs

SIZES = (2**20, 25_600_000, 2**28)
ODD = (1 << 18) + 77
SECONDS = 200.0
"""After these nothing new is begun; what has been begun takes less than the rest of 4 minutes."""
_SAMPLE_SECONDS = 0.2
_LEAD_SECONDS = 0.6e-3
_LEAST, _MOST = 3, 30


@dataclass
class Run:
    """The rows so far, what went wrong, and what there was no time for."""

    device: Device
    sizes: Sequence[int] = SIZES
    clock: Callable[[], float] = time.monotonic
    rows: list[Row] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    doing: str = "beginning"

    def __post_init__(self) -> None:
        self._begun = self.clock()

    def all(self) -> None:
        """Verifies and times everything."""
        for dtype in self.device.dtypes:
            self._verify(dtype)
        for numel in self.sizes:
            if self._late(f"everything at {numel:,} elements"):
                continue
            self.doing = f"drawing {numel:,} elements"
            buffers = Buffers(self.device, numel)
            self._yardstick(buffers)
            for spec in (*specs(), *CODES):
                if not self._late(f"{spec} at {numel:,}"):
                    self._codec(spec, buffers)
            self._compositions(buffers)

    def _late(self, what: str) -> bool:
        late = self.clock() - self._begun > SECONDS
        if late:
            self.left_out.append(what)
        return late

    def _verify(self, dtype: str) -> None:
        """At a size that is no multiple of anything, in one dtype of gradients."""
        self.doing = f"verifying with {ODD:,} elements of {dtype}"
        try:
            buffers = Buffers(self.device, ODD, dtype)
        except ImportError as error:
            self.left_out.append(f"gradients of {dtype} ({error}: pip install ml_dtypes)")
            return
        for spec in (*specs(), *CODES):
            try:
                for kernel in kernels_of(spec, buffers):
                    self.doing = f"after {kernel.name} of {ODD:,} {dtype}"
            except AssertionError as error:
                self.wrong.append(f"{error}, with {ODD:,} elements of {dtype}")

    def _yardstick(self, buffers: Buffers) -> None:
        seconds = self._seconds(buffers.copy)
        self._copy = buffers.copy_bytes() / seconds
        self._add("copy", buffers.numel, seconds, buffers.copy_bytes(), verified=False)

    def _codec(self, spec: str, buffers: Buffers) -> None:
        self.doing = f"verifying {spec} at {buffers.numel:,}"
        try:
            for kernel in kernels_of(spec, buffers):
                self.doing = f"after {kernel.name} at {buffers.numel:,}"
                seconds = self._seconds(kernel.run)
                self._add(kernel.name, buffers.numel, seconds, kernel.bytes_moved, verified=True)
        except AssertionError as error:
            self.wrong.append(f"{error}, with {buffers.numel:,} elements")

    def _compositions(self, buffers: Buffers) -> None:
        if not isinstance(self.device, PyTorch):
            if "PyTorch's operations (pip install torch)" not in self.left_out:
                self.left_out.append("PyTorch's operations (pip install torch)")
            return
        moved = {row.name: row.bytes_moved for row in self.rows if row.numel == buffers.numel}
        made = compositions(self.device.torch, buffers.on_device, buffers.residual_on_device)
        for one in made:
            if one.like not in moved or self._late(f"{one.name} at {buffers.numel:,}"):
                continue
            self.doing = f"timing {one.name} at {buffers.numel:,}"
            try:
                one.check()
                seconds = self._seconds(one.run)
            except (AssertionError, RuntimeError) as error:  # too little memory is the latter
                self.left_out.append(f"{one.name} at {buffers.numel:,} ({error})")
                continue
            self._add(one.name, buffers.numel, seconds, moved[one.like], verified=False)

    def _add(self, name: str, numel: int, seconds: float, moved: int, *, verified: bool) -> None:
        self.rows.append(Row(name, numel, seconds, moved, self._copy, verified))

    def _seconds(self, run: Callable[[], object]) -> float:
        """The median of as many samples as there is time for; what is untimed warms up."""
        run()
        once = self.device.seconds(run, 1)[0]
        samples = int(_SAMPLE_SECONDS / (once + _LEAD_SECONDS))
        return statistics.median(self.device.seconds(run, min(max(samples, _LEAST), _MOST)))


def main() -> int:
    """Returns the exit status."""
    console = Console(highlight=False)
    if not console.is_terminal:  # a file or a pipe has no width of its own
        console = Console(highlight=False, width=120)
    try:
        device = open_device()
    except Unusable as error:
        console.print(str(error), markup=False, soft_wrap=True)
        return 2
    gc.set_num_threads(min(64, len(os.sched_getaffinity(0))))
    console.print(f"{device.name}, {device.library}; this takes up to 4 minutes.", markup=False)
    return show(Run(device), console)


def show(run: Run, console: Console) -> int:
    """Runs it and prints what came of it; returns the exit status."""
    try:
        run.all()
    except Exception as error:  # the times so far may have cost money
        console.print_exception()
        run.wrong.append(f"it broke off {run.doing}: {type(error).__name__}: {error}")
    console.print(table(run.rows))
    for said in targets(run.rows):
        console.print(said, markup=False, soft_wrap=True)
    for wrong in run.wrong:
        console.print(f"WRONG: {wrong}", markup=False, soft_wrap=True)
    for left in run.left_out:
        console.print(f"Left out: {left}", markup=False, soft_wrap=True)
    if not run.wrong:
        console.print("Every kernel that ran equals the CPU's byte for byte.")
    machine = {"device": run.device.name, "library": run.device.library, "wrong": run.wrong}
    objects = [machine | {"left_out": run.left_out}, *(row.as_dict() for row in run.rows)]
    console.print(lines(objects), markup=False, soft_wrap=True)
    return 1 if run.wrong or run.left_out else 0


if __name__ == "__main__":
    sys.exit(main())
