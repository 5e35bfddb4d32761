"""The kernel benchmark: what it times, what it checks first, its verdicts and its files."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import gradcomp as gc
from bench.kernels import ops, targets
from bench.kernels.alternatives import alternatives
from bench.kernels.cases import Buffers, check_payload_sizes, draw, kernels_of, specs, verify
from bench.kernels.measure import Case, Timing, interleave
from bench.kernels.plot import write_plot
from bench.kernels.report import (
    Bound,
    Row,
    bounds_table,
    op_targets,
    speed_bounds,
    table,
    write_lines,
)
from gradcomp import _native
from gradcomp.codecs import KernelCodec, registered

NUMEL = 70_000


def test_every_kernel_codec_is_timed_and_every_target_is_of_one() -> None:
    names = {name for name, made in registered().items() if issubclass(made, KernelCodec)}
    assert {gc.codec(spec).name for spec in specs()} == names  # type: ignore[union-attr]
    buffers = Buffers.make(NUMEL)
    kernels = {(k.spec, k.operation) for spec in specs() for k in kernels_of(spec, buffers)}
    assert set(targets.TARGETS) <= kernels


@pytest.mark.parametrize("spec", specs())
def test_kernels_equal_the_reference_and_payloads_are_as_long_as_is_said(spec: str) -> None:
    before = gc.get_num_threads()
    try:
        for threads in (1, 2):
            verify(spec, NUMEL, threads)
    finally:
        gc.set_num_threads(before)
    check_payload_sizes(spec)
    codec = gc.codec(spec)
    assert codec is not None
    moved = {k.operation: k.bytes_moved for k in kernels_of(spec, Buffers.make(NUMEL))}
    assert moved[targets.ENCODE] == 4 * NUMEL + codec.payload_size(NUMEL)
    assert moved[targets.FEEDBACK] == 12 * NUMEL + codec.payload_size(NUMEL)


def test_the_kernels_that_are_timed_do_their_work() -> None:
    buffers = Buffers.make(NUMEL)
    for kernel in kernels_of(targets.INT8, buffers):
        kernel.case.reset()
        kernel.case.run()
        if kernel.operation == targets.SUM:
            step = np.abs(buffers.gradient).max() / 127
            assert np.abs(buffers.scratch - 2 * buffers.gradient).max() <= 1.01 * step


def test_a_wrong_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench.kernels import cases

    def wrong(*arguments: object) -> object:
        payload, left = right(*arguments)  # type: ignore[arg-type]
        payload[3] ^= 1
        return payload, left

    right = cases.kernels.encode
    monkeypatch.setattr(cases.kernels, "encode", wrong)
    with pytest.raises(AssertionError, match="fp16: payload differs from the reference"):
        verify("fp16", 1000, 1)


def test_positions_alone() -> None:
    positions = np.array([0, 7, 8, 4000], np.uint32)
    code = np.zeros(gc.TopK(4 / 5000, gc.Identity()).payload_size(5000) - 16, np.uint8)
    _native.elias_fano_encode(positions, 5000, code)
    back = np.zeros_like(positions)
    _native.elias_fano_decode(code, 5000, back)
    assert np.array_equal(back, positions)
    code[-1] ^= 0x10
    with pytest.raises(ValueError, match="no code of positions"):
        _native.elias_fano_decode(code, 5000, back)
    for wrong in ([3, 3, 4, 5], [1, 2, 3, 5000]):
        with pytest.raises(ValueError, match="do not increase, or are not below 5000"):
            _native.elias_fano_encode(np.array(wrong, np.uint32), 5000, code)
    with pytest.raises(ValueError, match="bytes has 3 elements"):
        _native.elias_fano_encode(positions, 5000, code[:3])
    with pytest.raises(ValueError, match="not 4 positions below 3"):
        _native.elias_fano_encode(positions, 3, code)


def test_each_case_is_reset_and_run_in_every_round() -> None:
    order: list[str] = []
    cases = [Case(n, lambda n=n: order.append(n), lambda n=n: order.append(f"-{n}")) for n in "ab"]
    timings = interleave(cases, lambda: None, 4)
    assert [len(timings[n].multiples) for n in "ab"] == [4, 4]
    assert order.count("-a") == 4 + 2 and order.index("a") < order.index("b")


def test_medians_and_spread() -> None:
    timing = Timing([1.0, 2.0, 9.0, 3.0, 4.0], [1.0, 2.0, 9.0, 3.0, 4.0])
    assert (timing.median_seconds, timing.multiple) == (3.0, 3.0)
    assert timing.spread == pytest.approx(2.5)


def row(name: str, threads: int, multiple: float, target: float | None = None) -> Row:
    return Row(name, 1000, threads, 2e-3, multiple, 0.1, multiple - 0.1, 6000, target)


def test_verdicts() -> None:
    name = f"{targets.INT8} {targets.ENCODE}"
    rows = [row(name, 1, 0.7, 0.76), row(name, 2, 0.4), row("other", 1, 2.0, 1.0)]
    assert [r.kept for r in rows] == [True, None, False]
    assert (rows[0].floor, rows[0].gigabytes_per_second) == (0.5, 3.0)
    fbgemm = Row("FBGEMM row-wise 8-bit", 1000, 1, 1.0, 1.4, 0.1, 1.3)
    threads, faster = speed_bounds([*rows, fbgemm])
    assert (threads.value, threads.kept) == (pytest.approx(1.75), False)
    assert (faster.value, faster.kept) == (pytest.approx(2.0), True)
    console = Console(width=140, file=io.StringIO(), record=True)
    console.print(table(rows, "title"), bounds_table([threads, faster]))
    text = console.export_text()
    assert text.count("✓") == 2 and text.count("✗") == 2 and "1.75" in text


def test_ops_are_held_to_the_targets_of_their_kernels() -> None:
    found = {spec: {"multiple": 1.32, "faults": 0.0} for spec in ops.SPECS}
    found[targets.INT4]["multiple"] = 2.0
    bounds = op_targets({ops.KEEPING: found, "oneDNN off": {}})
    kept = {bound.what.split(": op of")[0]: bound.kept for bound in bounds}
    assert kept == {targets.INT4: False, targets.TOPK.format(0.01): True, "fp16": False}


def test_ops_that_run_at_once_are_compared_with_ops_that_do_not() -> None:
    ratios = ops.at_once(1, NUMEL)
    assert set(ratios) == set(ops.SPECS)
    assert all(ratio > 0 for ratio in ratios.values())


def test_files(tmp_path: Path) -> None:
    sweep = [row(f"fp16 {targets.FEEDBACK}", threads, 1.0) for threads in (1, 2)]
    write_plot(
        [row("fp16 encode", 1, 0.8, 0.82), row("fp16 encode", 2, 0.5)], sweep, tmp_path / "a.png"
    )
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    bound = Bound("what", 1.0, 2.0, False, "µs")
    write_lines([sweep[0].as_dict(), vars(bound)], tmp_path / "a.jsonl")
    first, second = map(json.loads, (tmp_path / "a.jsonl").read_text().splitlines())
    assert first["name"] == f"fp16 {targets.FEEDBACK}" and first["floor"] == 0.5
    assert second["limit"] == 2.0


def test_alternatives_are_right_and_run() -> None:
    cases = alternatives(draw(256 * 300))
    assert {"np.argpartition 1 %", "tf.math.top_k 1.0%"} <= {case.name for case in cases}
    for case in cases:
        case.run()
