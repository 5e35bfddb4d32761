"""Verifies every kernel against the reference, then times all, beside what a user has today.

    python -m bench.kernels --quick

prints a table, and writes results/kernels.jsonl and results/kernels.png. `--check` times only what
has a target, and fails where a kernel takes twice as long as it may even in its best sample.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before anything imports TensorFlow
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
from rich.console import Console

import gradcomp as gc
from bench.kernels import alternatives, ops, targets
from bench.kernels.cases import Buffers, check_payload_sizes, kernels_of, specs, verify
from bench.kernels.measure import Case, interleave
from bench.kernels.plot import write_plot
from bench.kernels.report import (
    Bound,
    Row,
    allocator_table,
    bounds_table,
    op_targets,
    speed_bounds,
    table,
    write_lines,
)

NUMEL = 25_600_000
QUICK_SIZES = [2**e for e in (10, 14, 18, 22)]
SIZES = [2**e for e in range(10, 27)]
_VERIFIED = (1 << 18) + 77
_MIN_WIDTH = 132


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or with `--check` 1 where a kernel is far from its target."""
    arguments = _parse(argv)
    console = Console(highlight=False)
    if not console.is_terminal:  # a file or a pipe has no width of its own
        console = Console(highlight=False, width=_MIN_WIDTH)
    threads = [count for count in (1, 2) if count <= len(os.sched_getaffinity(0))]
    console.print(_machine())
    for spec in specs():
        check_payload_sizes(spec)
        for count in threads:
            verify(spec, _VERIFIED, count)
    console.print(f"Equal to the reference bit for bit: {', '.join(specs())}.", soft_wrap=True)
    if arguments.check:
        return _check(console)

    rounds = 7 if arguments.quick else 25
    rows = [row for count in threads for row in _kernel_rows(NUMEL, count, rounds)]
    console.print(table(rows, f"Kernels, {NUMEL / 1e6:.1f} million float32, in place and warm"))
    others = list(_alternative_rows(threads, 3 if arguments.quick else 7))
    console.print(table(others, "What there is today"))
    for text in alternatives.missing():
        console.print(f"Missing, so without rows: {text}.", markup=False)
    sizes = QUICK_SIZES if arguments.quick else SIZES
    sweep = [row for n in sizes for count in threads for row in _kernel_rows(n, count, 5)]
    bounds = [*speed_bounds(rows + others), *_small_bounds()]
    objects = [row.as_dict() for row in (*rows, *others, *sweep)]
    if "TensorFlow" not in " ".join(alternatives.missing()):
        outputs = ops.allocators(NUMEL, 5 if arguments.quick else 15, 1)
        bounds += [*_op_bounds(), *op_targets(outputs)]
        console.print(allocator_table(outputs))
        objects.append({"name": "ops", "numel": NUMEL, "outputs": outputs})
    console.print(bounds_table(bounds))
    objects += [{"name": b.what, **vars(b), "target_met": b.kept} for b in bounds]
    arguments.out.mkdir(parents=True, exist_ok=True)
    lines, picture = arguments.out / "kernels.jsonl", arguments.out / "kernels.png"
    write_lines([{"machine": _machine()}, *objects], lines)
    write_plot(rows, sweep, picture)
    console.print(f"Wrote {lines} and {picture}.", soft_wrap=True)
    return 0


def _kernel_rows(
    numel: int, threads: int, rounds: int, only_targets: bool = False
) -> Iterator[Row]:
    gc.set_num_threads(threads)
    buffers = Buffers.make(numel)
    chosen = [
        kernel
        for spec in specs()
        for kernel in kernels_of(spec, buffers)
        if not only_targets or targets.target_of(spec, kernel.operation) is not None
    ]
    timings = interleave([kernel.case for kernel in chosen], _yardstick(numel), rounds)
    for kernel in chosen:
        timing = timings[kernel.name]
        aimed = threads == 1 and numel == NUMEL
        yield Row(
            kernel.name,
            numel,
            threads,
            1e3 * timing.median_seconds,
            timing.multiple,
            timing.spread,
            timing.least,
            kernel.bytes_moved,
            targets.target_of(kernel.spec, kernel.operation) if aimed else None,
        )


def _alternative_rows(threads: Sequence[int], rounds: int) -> Iterator[Row]:
    x = Buffers.make(NUMEL).gradient
    a, b, out = x, np.ones_like(x), np.zeros_like(x)
    cases = [
        *alternatives.alternatives(x),
        Case("c = a + b, warm (R3)", lambda: np.add(a, b, out=out)),
        Case("c = a + b, fresh", lambda: np.add(a, b)),
    ]
    for count in threads:
        alternatives.confine(count)
        with ThreadPoolExecutor(count) as pool:
            timed = [*cases, _memory_alone(pool, count)]
            for name, timing in interleave(timed, _yardstick(NUMEL), rounds).items():
                ms = 1e3 * timing.median_seconds
                yield Row(name, NUMEL, count, ms, timing.multiple, timing.spread, timing.least)


def _memory_alone(pool: Executor, threads: int) -> Case:
    """The yardstick on several threads: what they gain where memory is the limit."""
    a, b = np.ones(NUMEL, np.float32), np.zeros(NUMEL, np.float32)
    parts = list(zip(np.split(a, threads), np.split(b, threads), strict=True))

    def add(part: tuple[np.ndarray, np.ndarray]) -> None:
        np.add(part[1], part[0], out=part[1])

    return Case("b += a (R2)", lambda: list(pool.map(add, parts)))


def _small_bounds() -> list[Bound]:
    """Kernels of 64 KiB."""
    gc.set_num_threads(2)
    buffers = Buffers.make(targets.SMALL_KERNEL_NUMEL)
    cases = [kernel.case for spec in specs() for kernel in kernels_of(spec, buffers)]
    limit = 1e6 * targets.SMALL_KERNEL_SECONDS
    return [
        Bound(f"{name}: 64 KiB", 1e6 * timing.median_seconds, limit, False, "µs")
        for name, timing in interleave(cases, lambda: None, 15).items()
    ]


def _op_bounds() -> Iterator[Bound]:
    gc.set_num_threads(2)
    limit = 1e6 * targets.OP_OVERHEAD_SECONDS
    for spec, seconds in ops.overheads().items():
        yield Bound(f"{spec}: op beyond kernel", 1e6 * seconds, limit, False, "µs")
    for spec, ratio in ops.at_once(15).items():
        yield Bound(f"{spec}: CPU of {ops.AT_ONCE} ops at once", ratio, targets.AT_ONCE, False, "×")


def _check(console: Console) -> int:
    """Whether no kernel takes twice as long as its target, in the best of several samples."""
    rows = list(_kernel_rows(NUMEL, 1, 9, only_targets=True))
    console.print(table(rows, "Kernels with a target"))
    far = _far(rows)
    if far:
        # What else a machine does slows computing down more than memory, seldom for long.
        console.print(f"Measuring again: {', '.join(far)} ...")
        far = sorted(set(far).intersection(_far(_kernel_rows(NUMEL, 1, 27, only_targets=True))))
    console.print(f"Far from target: {', '.join(far)}." if far else "No kernel is far from target.")
    return 1 if far else 0


def _far(rows: Iterable[Row]) -> list[str]:
    return [row.name for row in rows if row.target and row.least > 2 * row.target]


def _yardstick(numel: int) -> Callable[[], object]:
    a, b = np.ones(numel, np.float32), np.zeros(numel, np.float32)
    return lambda: np.add(b, a, out=b)


def _machine() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.split(":")[1].strip() for line in lines if "model name" in line), "unknown")
    vectors = "AVX-512" if targets.has_avx512() else "no AVX-512"
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    return f"{model}, {cores} cores, {vectors}, {platform.system()}, load {load:.1f} at the start"


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.kernels", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer samples and sizes")
    parser.add_argument("--check", action="store_true", help="only what has a target; exit status")
    parser.add_argument("--out", type=Path, default=Path("results"), help="default: results")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
