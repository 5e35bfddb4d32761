"""The table of what nvcc made of the CUDA kernels, from a few captured lines of its tools."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from bench.cuda_occupancy import LIMITS, occupancy
from bench.cuda_table import (
    Usage,
    base_name,
    demangle,
    faults,
    parse_accesses,
    parse_ptxas,
    parse_threads,
    table,
)

SCAN = "_ZN8gradcomp4cuda11scan_kernelEPKfPfl"
SPILLS = "_Z13spills_kernelILi256EEvPK6float4PS0_l"

PTXAS = f"""\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '{SPILLS}' for 'sm_75'
ptxas info    : Function properties for {SPILLS}
    104 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 14 registers, used 1 barriers, 1024 bytes smem, 376 bytes cmem[0]
ptxas info    : Compile time = 3.303 ms
ptxas info    : Compiling entry function '{SCAN}' for 'sm_75'
ptxas info    : Function properties for {SCAN}
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 24 registers, used 0 barriers, 376 bytes cmem[0]
ptxas info    : Compile time = 24.769 ms
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '{SCAN}' for 'sm_90'
ptxas info    : Function properties for {SCAN}
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 26 registers, used 0 barriers
"""

PTX = f"""\
.visible .entry {SCAN}(
\t.param .u64 {SCAN}_param_0
)
.maxntid 128
.minnctapersm 2
{{
\tret;
}}
.visible .entry {SPILLS}(
\t.param .u64 {SPILLS}_param_0
)
.maxntid 256, 1, 1
{{
\tret;
}}
"""

SASS = f"""\
Fatbin elf code:
================
arch = sm_75
\t\tFunction : {SPILLS}
        /*0000*/                   LDG.E.SYS R0, [UR4] ;        /* 0x00000004ff007981 */
        /*0010*/                   STG.E.SYS [R2], R0 ;         /* 0x0000000002007386 */
\t\tFunction : {SCAN}
        /*00f0*/                   LDG.E.128.SYS R8, [R2.64+UR4] ;  /* 0x0000000402087981 */
        /*0170*/                   STG.E.128.SYS [R2.64+UR4], R8 ;  /* 0x0000000802007986 */
        /*0180*/                   LDG.E.128.SYS R8, [R2.64+UR4] ;  /* 0x0000000402087981 */
Fatbin elf code:
================
arch = sm_90
\t\tFunction : {SCAN}
        /*00f0*/                   LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;  /* 0x0 */
        /*00f0*/                   LDS.128 R4, [R2] ;           /* 0x0 */
        /*0100*/                   STG.E.64 desc[UR4][R2.64], R4 ;  /* 0x0 */
"""

NAMES = {SCAN: "scan_kernel", SPILLS: "spills_kernel"}


def test_ptxas() -> None:
    assert parse_ptxas(PTXAS) == {
        (SPILLS, "sm_75"): Usage(14, 1024, 104, 20),
        (SCAN, "sm_75"): Usage(24, 0, 0, 0),
        (SCAN, "sm_90"): Usage(26, 0, 0, 0),
    }


def test_ptxas_that_says_nothing_of_a_kernel() -> None:
    with pytest.raises(ValueError, match=f"nothing of {SCAN} for sm_90"):
        parse_ptxas(PTXAS.replace("Used 26 registers", "Used registers"))


def test_block_sizes() -> None:
    assert parse_threads(PTX) == {SCAN: 128, SPILLS: 256}
    with pytest.raises(ValueError, match=f"no __launch_bounds__ on {SCAN}"):
        parse_threads(PTX.replace(".maxntid 128\n", ""))


def test_accesses() -> None:
    assert parse_accesses(SASS) == {
        (SPILLS, "sm_75"): "",
        (SCAN, "sm_75"): "LS",
        (SCAN, "sm_90"): "L",
    }


def test_names() -> None:
    assert demangle([SCAN, SPILLS]) == NAMES
    anonymous = "void gradcomp::(anonymous namespace)::a_kernel<gradcomp::B<2> >(int, char*)"
    assert base_name(anonymous) == "a_kernel"


def test_faults() -> None:
    usage, accesses = parse_ptxas(PTXAS), parse_accesses(SASS)
    assert faults(usage, accesses, NAMES, {"scan_kernel": "LS", "gone_kernel": "L"}) == [
        "spills_kernel for sm_75 has 104 bytes of stack and spills 20",
        f"scan_kernel for sm_90 has no 16-byte stores: {SCAN}",
        "no kernel is named gone_kernel",
    ]
    del usage[SPILLS, "sm_75"]
    assert faults(usage, accesses, NAMES, {"scan_kernel": "L"}) == []


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared", "expected"),
    [
        ("sm_90", 256, 32, 0, 64),
        ("sm_90", 256, 33, 0, 48),  # 40 registers a thread are given
        ("sm_90", 256, 64, 0, 32),
        ("sm_90", 256, 255, 0, 8),
        ("sm_90", 1024, 65, 0, 0),  # cannot run
        ("sm_90", 32, 32, 0, 32),  # no more than 32 blocks
        ("sm_90", 256, 32, 48 << 10, 32),  # 49 KiB of 228 each
        ("sm_75", 256, 32, 16 << 10, 32),
        ("sm_75", 32, 32, 0, 16),
        ("sm_86", 256, 32, 16 << 10, 40),
        ("sm_89", 64, 32, 0, 48),
        ("sm_120", 256, 41, 0, 40),
    ],
)
def test_occupancy(arch: str, threads: int, registers: int, shared: int, expected: int) -> None:
    warps = occupancy(arch, threads, registers, shared) * LIMITS[arch].warps
    assert warps == expected


def test_the_table_shows_the_worst() -> None:
    usage = {(SCAN, arch): Usage(32, 0, 0, 0) for arch in LIMITS}
    usage |= {(SPILLS, arch): Usage(32, 0, 0, 0) for arch in LIMITS}
    usage[SPILLS, "sm_90"] = Usage(64, 1024, 8, 4)
    same = {SCAN: "both_kernel", SPILLS: "both_kernel"}
    shown = io.StringIO()
    Console(width=140, file=shown).print(table(usage, {SCAN: 256, SPILLS: 256}, same))
    row = shown.getvalue().splitlines()[-1].split()
    assert row == [
        "both_kernel",
        "2",
        "256",
        "64",
        "1024",
        "8",
        "4",
        *["100"] * 4,
        "50",
        "100",
        "100",
    ]
