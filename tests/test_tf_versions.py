"""What lets one `_ops.so` serve TensorFlow 2.15 to 2.21; to be run in several of them."""

import subprocess
from importlib.util import find_spec
from pathlib import Path

import tensorflow as tf

ROOT = Path(__file__).parent.parent

DECLARED_TWICE = """
#include "tensorflow/c/kernels.h"
#include "tensorflow/c/ops.h"
#include "tf/c_api.h"
namespace gradcomp::tf {
static_assert(kFloat == TF_FLOAT && kHalf == TF_HALF && kBFloat16 == TF_BFLOAT16);
static_assert(kUint8 == TF_UINT8 && kInt64 == TF_INT64 && kBool == TF_BOOL);
static_assert(kOk == TF_OK && kInvalidArgument == TF_INVALID_ARGUMENT);
static_assert(kResourceExhausted == TF_RESOURCE_EXHAUSTED);
}  // namespace gradcomp::tf
"""


def compile_against_tensorflow(source: str) -> subprocess.CompletedProcess[str]:
    command = ["g++", "-std=c++17", "-fsyntax-only", "-x", "c++", "-Wall", "-Wextra", "-Werror"]
    command += ["-isystem", tf.sysconfig.get_include(), f"-I{ROOT / 'csrc'}", "-"]
    return subprocess.run(command, input=source, text=True, capture_output=True)


def lines_of(*command: str) -> list[str]:
    return subprocess.run(command, text=True, capture_output=True, check=True).stdout.splitlines()


def ops_library() -> str:
    spec = find_spec("gradcomp._ops")
    assert spec is not None and spec.origin is not None
    return spec.origin


def tensorflow_symbols() -> set[str]:
    """The functions that the installed TensorFlow exports to C."""
    library = Path(tf.sysconfig.get_lib()) / "libtensorflow_framework.so.2"
    lines = lines_of("nm", "--dynamic", "--defined-only", str(library))
    return {line.split()[-1].split("@")[0] for line in lines}


def test_declarations_agree_with_tensorflows_headers() -> None:
    compiled = compile_against_tensorflow(DECLARED_TWICE)
    assert compiled.returncode == 0, compiled.stderr


def test_a_wrong_declaration_would_be_found() -> None:
    wrong = DECLARED_TWICE + 'extern "C" int64_t TF_NumDims(const TF_Tensor* tensor);'
    compiled = compile_against_tensorflow(wrong)
    assert "conflicting declaration" in compiled.stderr


def test_the_library_calls_only_what_this_tensorflow_exports() -> None:
    undefined = lines_of("nm", "--dynamic", "--undefined-only", ops_library())
    called = {line.split()[-1] for line in undefined if " TF_" in line}
    assert "TF_AllocateOutput" in called
    assert called <= tensorflow_symbols()
    assert not [line for line in undefined if "tensorflow" in line or "absl" in line]


def test_the_library_depends_on_tensorflow_by_its_soname_only() -> None:
    entries = lines_of("readelf", "--dynamic", ops_library())
    assert [
        line for line in entries if "NEEDED" in line and "[libtensorflow_framework.so.2]" in line
    ]
    assert not [line for line in entries if "RPATH" in line or "RUNPATH" in line]
