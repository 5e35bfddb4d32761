"""Removes each barrier and each bounds check of the CUDA kernels in turn, and shows what tests say.

    python tests/cuda/mutations.py [word of a file's name ...]

All removals are compiled into one library, where a number in the environment makes one of them
happen: `__syncthreads()` becomes `if (!IsMutant(7)) __syncthreads()`, a check `i < n` becomes
`IsMutant(8) || i < n`, and `min(a, b)` becomes a or b. One is caught when tests/test_cuda_*.py fail
on it; those that pass without sanitizers are run with them. Prints a line a removal. The exit
status is 1 where one survives that survivors.py has no reason for, or one that it names is caught.
"""

from __future__ import annotations

import importlib
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from survivors import SURVIVORS

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/mutations"
TREE = BUILD / "tree"
CPU_LIMIT_S = 120

MUTANT = """
#ifndef EMULATED_CUDA_MUTANT_H_
#define EMULATED_CUDA_MUTANT_H_
#include <cstdlib>
#include <type_traits>
inline bool IsMutant(int number) {
  static const char* const chosen = std::getenv("EMULATED_CUDA_MUTANT");
  static const int mutant = chosen == nullptr ? 0 : std::atoi(chosen);
  return mutant == number;
}
#endif
"""


class Mutation(NamedTuple):
    """Text from `begin` to `end` of a file, and what replaces it."""

    begin: int
    end: int
    before: str
    text: str
    after: str


_COMPARES = re.compile(r" (<|>|<=|>=) ")
_GUARDS = re.compile(r"\s*\{?\s*(continue|return|break)\b")


def _closing(text: str, opening: int) -> int:
    """Where the bracket at `opening` closes."""
    depth = 0
    for i in range(opening, len(text)):
        depth += (text[i] in "([{") - (text[i] in ")]}")
        if depth == 0:
            return i
    raise ValueError(f"nothing closes {text[opening : opening + 40]!r}")


def _split(text: str, begin: int, end: int, separator: str) -> list[tuple[int, int]]:
    """The parts of text[begin:end] between separators that are in no brackets."""
    parts, depth, first, i = [], 0, begin, begin
    while i < end:
        depth += (text[i] in "([{") - (text[i] in ")]}")
        if depth == 0 and text.startswith(separator, i):
            parts.append((first, i))
            first = i = i + len(separator)
        else:
            i += 1
    return [*parts, (first, end)]


def _without_comments(text: str) -> str:
    """The same text with comments blanked, so that places stay."""
    return re.sub(r"//[^\n]*", lambda match: " " * len(match[0]), text)


def _conjuncts(text: str, begin: int, end: int) -> Iterator[tuple[int, int]]:
    for first, last in _split(text, begin, end, " && "):
        if _COMPARES.search(text[first:last]):
            yield first, last


def _find(text: str) -> Iterator[Mutation]:
    """All removals in a source text without comments."""
    for match in re.finditer(r"__sync(threads|warp)\([^)]*\);", text):
        yield Mutation(*match.span(), "if (!IsMutant({})) ", match[0], "")

    always = "(IsMutant({}) || (", "))"
    for match in re.finditer(r"\bif \(", text):
        begin, end = match.end(), _closing(text, match.end() - 1)
        begin = begin + text[begin:end].rfind("; ") + 2 if "; " in text[begin:end] else begin
        if "cudaSuccess" in text[begin:end]:
            continue
        if _GUARDS.match(text, end + 1):
            yield Mutation(begin, end, "(!IsMutant({}) && (", text[begin:end], "))")
        else:
            for first, last in _conjuncts(text, begin, end):
                yield Mutation(first, last, always[0], text[first:last], always[1])

    for match in re.finditer(r"\bbool \w+ =\s", text):
        begin, end = match.end(), text.index(";", match.end())
        for first, last in _conjuncts(text, begin, end):
            yield Mutation(first, last, always[0], text[first:last], always[1])

    for match in re.finditer(r"\? ", text):
        begin = max(
            text.rfind(sign, 0, match.start()) + len(sign) for sign in ("= ", "return ", ";\n")
        )
        condition = text[begin : match.start()]
        if _COMPARES.search(condition) and condition.count("(") == condition.count(")"):
            yield Mutation(begin, match.start(), always[0], condition, ") ) ")

    for match in re.finditer(r"\b(min|max)\(", text):
        begin, end = match.end(), _closing(text, match.end() - 1)
        arguments = _split(text, begin, end, ", ")
        for kept, (first, last) in enumerate(arguments):
            whole = text[match.start() : end + 1]
            other = text[first:last]
            yield Mutation(
                match.start(),
                end + 1,
                f"(IsMutant({{}}) ? std::decay_t<decltype({whole})>({other}) : ",
                whole,
                ")",
            )
            assert kept < 2


def _line(text: str, at: int) -> str:
    return text[text.rfind("\n", 0, at) + 1 : text.index("\n", at)]


def _mutate(text: str, number: int) -> tuple[str, list[str]]:
    """The text with all removals, numbered from `number` on, and what each is."""
    blank = _without_comments(text)
    found = sorted(
        (m for m in set(_find(blank)) if "constexpr" not in _line(blank, m.begin)),
        key=lambda m: (m.begin, -m.end, m.before),
    )
    before: dict[int, str] = {}
    after: dict[int, str] = {}
    names = []
    for i, mutation in enumerate(found):
        opening = mutation.before.replace("{}", str(number + i))
        # Inner ones begin later and end earlier, or at the same place: outer ones enclose them.
        before[mutation.begin] = before.get(mutation.begin, "") + opening
        after[mutation.end] = mutation.after + after.get(mutation.end, "")
        line = text.count("\n", 0, mutation.begin) + 1
        what = " ".join(mutation.text.split())
        kept = re.search(r"\)>\((.*)\) : $", opening)
        names.append(f"{line}: {what}" + (f" -> {' '.join(kept[1].split())}" if kept else ""))
    out = []
    for i in range(len(text) + 1):
        out.append(after.get(i, "") + before.get(i, "") + text[i : i + 1])
    return "".join(out), names


def write_tree(words: list[str]) -> list[str]:
    """The sources with all removals; the names of them, the first being number 1."""
    shutil.rmtree(TREE, ignore_errors=True)
    for folder in ("csrc/core", "csrc/cuda", "tests/cuda"):
        shutil.copytree(ROOT / folder, TREE / folder)
    for file in ("CMakeLists.txt", "csrc/flags.cmake"):
        shutil.copy(ROOT / file, TREE / file)
    (TREE / "csrc/cuda/mutant.h").write_text(MUTANT)
    names = []
    for path in sorted((TREE / "csrc/cuda").iterdir()):
        if path.name == "mutant.h" or not any(word in path.name for word in words or [""]):
            continue
        text, found = _mutate(path.read_text(), len(names) + 1)
        path.write_text('#include "cuda/mutant.h"\n' + text)
        names += [f"{path.name}:{name}" for name in found]
    return names


def build(sanitize: bool) -> Path:
    folder = BUILD / ("sanitize" if sanitize else "plain")
    options = ["-G", "Ninja", "-DGRADCOMP_EMULATED_CUDA=ON"]
    options += [f"-DGRADCOMP_SANITIZE={'ON' if sanitize else 'OFF'}"]
    # Removals leave what they used behind, and brackets where none are needed.
    options += ["-DCMAKE_CXX_FLAGS=-w", "-DGRADCOMP_EMULATED_MODULE=OFF"]
    subprocess.run(
        ["cmake", "-S", TREE, "-B", folder, *options], check=True, stdout=subprocess.DEVNULL
    )
    subprocess.run(["cmake", "--build", folder], check=True, stdout=subprocess.DEVNULL)
    return folder / "tests/cuda/libemulated_cuda.so"


def run_all(library: Path, names: dict[int, str], sanitize: bool) -> dict[int, str]:
    """What the tests fail with on each removal, "" where they pass; 0 is none of them."""
    removals = ["0=none", *(f"{number}={name.split('.')[0]}" for number, name in names.items())]
    command = [sys.executable, __file__, "--run", *removals]
    environment = {**os.environ, "EMULATED_CUDA": str(library), "PYTHONDONTWRITEBYTECODE": "1"}
    if sanitize:
        names = ("libasan.so", "libubsan.so", "libstdc++.so")
        found = [
            subprocess.run(["g++", f"-print-file-name={n}"], capture_output=True, text=True).stdout
            for n in names
        ]
        environment["LD_PRELOAD"] = ":".join(path.strip() for path in found)
        environment["ASAN_OPTIONS"] = "detect_leaks=0"
    said = {}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as runner:
        assert runner.stdout is not None
        for line in runner.stdout:
            number, _, words = line.rstrip("\n").partition(" ")
            said[int(number)] = words
            print(f"  {number}: {words or 'passes'}", flush=True)
    assert runner.returncode == 0 and len(said) == len(removals)
    return said


def run_tests(removals: list[str]) -> None:
    """Runs the tests on each removal, each in a process forked from one that has imported all.

    Of "12=scaled", the tests that are named as the file come first.
    """
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    importlib.import_module("cuda_cases")
    # Of those for the library: others have it through a module of their own build.
    tests = sorted(
        str(path)
        for path in (ROOT / "tests").glob("test_cuda_*.py")
        if re.search(r"^(from|import) cuda_(cases|library)", path.read_text(), re.M)
        if path.name != "test_cuda_emulation.py"
    )
    for number, _, file in (removal.partition("=") for removal in removals):
        tests.sort(key=lambda test: file.split("_")[0] not in test)
        with tempfile.TemporaryFile("w+") as output:
            child = os.fork()
            if child == 0:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                os.environ["EMULATED_CUDA_MUTANT"] = number
                resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S + 1))
                options = ["-x", "-q", "-p", "no:cacheprovider", "--capture=no"]
                options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
                os._exit(pytest.main([*options, *tests]))
            status = os.waitpid(child, 0)[1]
            output.seek(0)
            print(number, _verdict(status, output.read()), flush=True)


def _verdict(status: int, output: str) -> str:
    if status == 0:
        return ""
    pattern = r"emulated CUDA: [^(\n]*|ERROR: AddressSanitizer: \S+|runtime error: .*"
    if said := re.search(pattern, output):
        return said[0].strip()
    if os.WIFSIGNALED(status):
        return "hangs" if os.WTERMSIG(status) == signal.SIGXCPU else "crashes"
    said = re.search(r"AssertionError: .*", output)
    return said[0] if said else " ".join(output[-200:].split())


def main() -> None:
    if "--run" in sys.argv:
        return run_tests(sys.argv[2:])
    names = dict(enumerate(write_tree(sys.argv[1:]), 1))
    print(f"building {len(names)} removals", flush=True)
    sys.exit(report(names, build(False), build(True)))


def report(names: dict[int, str], plain: Path, sanitized: Path) -> bool:
    """Whether anything is other than survivors.py says."""
    said = run_all(plain, names, False)
    assert said.pop(0) == "", "the tests fail without a removal"
    left = {number: names[number] for number in names if not said[number]}
    said |= run_all(sanitized, left, True)
    assert said.pop(0) == "", "the tests fail under sanitizers without a removal"
    for number, words in sorted(said.items()):
        print(
            f"{'caught  ' if words else 'SURVIVED'} {names[number]}" + f"  # {words}" * bool(words)
        )
    survivors = [names[n] for n in sorted(said) if not said[n]]
    print(f"{len(names) - len(survivors)} of {len(names)} caught")
    files = {name.split(":")[0] for name in names.values()}
    expected = Counter((s.file, s.text) for s in SURVIVORS if s.file in files)
    found = Counter(map(_without_line, survivors))
    for file, text in (found - expected).elements():
        print(f"survives without a reason: {file}: {text}")
    for file, text in (expected - found).elements():
        print(f"no longer survives: {file}: {text}")
    return found != expected


def _without_line(name: str) -> tuple[str, str]:
    file, _, rest = name.partition(":")
    return file, rest.partition(": ")[2]


if __name__ == "__main__":
    main()
