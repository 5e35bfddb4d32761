"""What nvcc made of the CUDA kernels: registers, shared memory, spills and occupancy, as a table.

`.ci/cuda.sh` compiles `csrc/cuda/*.cu` into a folder and runs `python -m bench.cuda_table FOLDER`.
Fails where a kernel uses local memory, or a streaming kernel has no 16-byte loads and stores.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from bench.cuda_occupancy import LIMITS, occupancy


class Usage(NamedTuple):
    """What one kernel takes on one architecture."""

    registers: int
    shared: int
    stack: int
    spilled: int


Compiled = tuple[str, str]
"""A kernel's mangled name, and an architecture such as "sm_90"."""

STREAMING: Mapping[str, str] = {
    "apply_mask_kernel": "LS",
    "cast_decode_kernel": "LS",
    "cast_encode_kernel": "LS",
    "large_blocks_largest_kernel": "L",
    "pack_bits_kernel": "LS",
    "scaled_decode_kernel": "LS",
    "scaled_encode_kernel": "LS",
    "topk_decode_kernel": "S",
    "topk_scan_kernel": "LS",
    "unpack_bits_kernel": "LS",
}
"""Kernels that pass over whole tensors, and the vector accesses they owe: L(oads), S(tores)."""

_IN_SASS = re.compile(
    r"^\s*arch = (?P<arch>\w+)|^\s*Function : (?P<name>\S+)|\b(?P<access>LDG|STG)\.E[.\w]*\.128\b",
    re.MULTILINE,
)


def parse_ptxas(log: str) -> dict[Compiled, Usage]:
    """The usage of every kernel in what `nvcc -Xptxas -v` printed.

    Raises:
      ValueError: a kernel without its numbers.
    """
    found: dict[Compiled, Usage] = {}
    parts = re.split(r"Compiling entry function '(\S+)' for '(\w+)'", log)
    for name, arch, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        memory = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes", text)
        registers = re.search(r"Used (\d+) registers", text)
        if memory is None or registers is None:
            raise ValueError(f"ptxas said nothing of {name} for {arch}: {text[:200]!r}")
        shared = re.search(r"(\d+) bytes smem", text)
        stack, stored, loaded = (int(number) for number in memory.groups())
        found[name, arch] = Usage(
            int(registers[1]), int(shared[1]) if shared else 0, stack, stored + loaded
        )
    return found


def parse_threads(ptx: str) -> dict[str, int]:
    """The block size of every kernel in PTX, from `__launch_bounds__`.

    Raises:
      ValueError: a kernel without launch bounds.
    """
    threads = {}
    for entry in re.split(r"\.entry\s+", ptx)[1:]:
        name = re.match(r"\w+", entry)
        size = re.search(r"\.maxntid\s+(\d+)", entry.split("{", 1)[0])
        if name is None or size is None:
            raise ValueError(f"no __launch_bounds__ on {entry.split('(', 1)[0]}")
        threads[name[0]] = int(size[1])
    return threads


def parse_accesses(sass: str) -> dict[Compiled, str]:
    """Which 16-byte accesses to global memory each kernel has, "L", "S", "LS" or "".

    Args:
      sass: what `cuobjdump -sass` printed.
    """
    found: dict[Compiled, str] = {}
    arch, name = "", ""
    for what in _IN_SASS.finditer(sass):
        if what["arch"]:
            arch = what["arch"]
        elif what["name"]:
            name = what["name"]
            found[name, arch] = ""
        elif (letter := what["access"][0]) not in found[name, arch]:
            found[name, arch] = "".join(sorted(found[name, arch] + letter))
    return found


def base_name(demangled: str) -> str:
    """`scan_kernel` of `void gradcomp::(anonymous namespace)::scan_kernel<float>(int)`."""
    plain = demangled.replace("(anonymous namespace)", "")
    return re.sub(r"[<(].*", "", plain).split("::")[-1].split()[-1]


def demangle(names: Iterable[str]) -> dict[str, str]:
    """Base names by mangled names."""
    listed = sorted(set(names))
    text = "\n".join(listed)
    out = subprocess.run(["c++filt"], input=text, capture_output=True, text=True, check=True)
    return {m: base_name(d) for m, d in zip(listed, out.stdout.splitlines(), strict=True)}


def faults(
    usage: Mapping[Compiled, Usage],
    accesses: Mapping[Compiled, str],
    names: Mapping[str, str],
    streaming: Mapping[str, str] = STREAMING,
) -> list[str]:
    """One sentence for each kernel that is not as it must be."""
    found = []
    for (name, arch), use in usage.items():
        what = f"{names[name]} for {arch}"
        if use.stack or use.spilled:
            found.append(f"{what} has {use.stack} bytes of stack and spills {use.spilled}")
        for access in streaming.get(names[name], ""):
            if access not in accesses[name, arch]:
                kind = {"L": "loads", "S": "stores"}[access]
                found.append(f"{what} has no 16-byte {kind}: {name}")
    missing = set(streaming) - set(names.values())
    return found + [f"no kernel is named {name}" for name in sorted(missing)]


def table(
    usage: Mapping[Compiled, Usage], threads: Mapping[str, int], names: Mapping[str, str]
) -> Table:
    """A row for each kernel; of several instances and architectures, the worst."""
    rows: dict[str, list[Compiled]] = defaultdict(list)
    for name, arch in usage:
        rows[names[name]].append((name, arch))
    result = Table(title="CUDA kernels: the worst of all instances and architectures", box=None)
    result.add_column("kernel")
    columns = ("instances", "threads", "registers", "shared B", "stack B", "spilled B")
    for column in (*columns, *(f"{arch[3:]} %" for arch in LIMITS)):
        result.add_column(column, justify="right")
    for base, instances in sorted(rows.items()):
        uses = [usage[instance] for instance in instances]
        blocks = {threads[name] for name, _ in instances}
        least = [
            min(
                occupancy(arch, threads[name], usage[name, a].registers, usage[name, a].shared)
                for name, a in instances
                if a == arch
            )
            for arch in LIMITS
        ]
        result.add_row(
            base,
            str(len({name for name, _ in instances})),
            "/".join(str(size) for size in sorted(blocks)),
            *(str(max(use[i] for use in uses)) for i in range(len(Usage._fields))),
            *(f"{share:.0%}"[:-1] for share in least),
        )
    return result


def _dump(flag: str, path: Path) -> str:
    out = subprocess.run(["cuobjdump", flag, path], capture_output=True, text=True, check=True)
    return out.stdout


def main(arguments: Sequence[str]) -> int:
    """Prints the table of the objects and logs in a folder; 1 if a kernel is not as it must be."""
    usage: dict[Compiled, Usage] = {}
    threads: dict[str, int] = {}
    accesses: dict[Compiled, str] = {}
    objects = sorted(Path(arguments[0]).glob("*.o"))
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # of processes that disassemble
        ptx = pool.map(lambda path: parse_threads(_dump("-ptx", path)), objects)
        sass = pool.map(lambda path: parse_accesses(_dump("-sass", path)), objects)
    for path, blocks, found in zip(objects, ptx, sass, strict=True):
        usage |= parse_ptxas(path.with_suffix(".log").read_text())
        threads |= blocks
        accesses |= found
    names = demangle(name for name, _ in usage)
    Console(width=140).print(table(usage, threads, names))
    all_faults = faults(usage, accesses, names)
    for fault in all_faults:
        print("cuda:", fault)
    if not all_faults:
        print(
            f"cuda: {len(usage)} compiled kernels, none with local memory or spills; 16-byte"
            f" accesses in {len(STREAMING)} streaming kernels"
        )
    return bool(all_faults)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
