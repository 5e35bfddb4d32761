"""The CUDA kernels on arrays of CuPy, PyTorch, or anything with DLPack; no TensorFlow.

    from gradcomp import cuda

    payload = cuda.encode("topk:density=0.01", [gradient], residuals=[residual])
    cuda.decode("topk:density=0.01", payload, [output]).wait()

Payloads, residuals and outputs equal the CPU kernels' byte for byte. Arrays are contiguous and of
one GPU; gradients and outputs are float32, float16 or bfloat16 (bfloat16 by DLPack only), payloads
and workspaces uint8. `pack_bits` and `unpack_bits` are for masks and small codes. Kernels are put
on a stream, by default the library's current one, and nothing waits for them; arrays have to be
ready on it. `gradcomp._cuda` has the same on raw pointers.
docs/gpu.md says how it is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from numpy.typing import ArrayLike

from gradcomp.codecs import Codec
from gradcomp.cuda.arguments import (
    kernel_codec,
    key_of,
    native_codec,
    residuals_of,
    table_of,
    views_of,
    workspace_of,
)
from gradcomp.cuda.bits import pack_bits, unpack_bits
from gradcomp.cuda.libraries import empty, handle_of, library_of
from gradcomp.cuda.native import call, devices, load
from gradcomp.cuda.views import FLOATS, View, check_numel, one_device, view
from gradcomp.errors import CodecError

__all__ = [
    "Report",
    "decode",
    "decode_workspace",
    "devices",
    "encode",
    "encode_workspace",
    "load",
    "pack_bits",
    "unpack_bits",
]

# The report precedes the kernels' workspace, which stays aligned.
_REPORT = 16


def encode_workspace(
    codec: Codec | str, numels: Sequence[int], segments: ArrayLike | None = None
) -> int:
    """Bytes of workspace that `encode` needs for tensors of these numbers of elements."""
    native, kernel = load(), kernel_codec(codec)
    table = table_of(kernel, numels, segments)
    return int(call(native.encode_workspace, native_codec(native, kernel, False), table))


def decode_workspace(
    codec: Codec | str, numels: Sequence[int], world: int = 1, segments: ArrayLike | None = None
) -> int:
    """Bytes of workspace that `decode` needs for outputs of these numbers of elements."""
    native, kernel = load(), kernel_codec(codec)
    table = table_of(kernel, numels, segments)
    made = native_codec(native, kernel, False)
    return _REPORT + int(call(native.decode_workspace, made, table, world))


def encode(
    codec: Codec | str,
    gradients: Sequence[Any],
    *,
    residuals: Sequence[Any] | None = None,
    new_residuals: Sequence[Any] | None = None,
    segments: ArrayLike | None = None,
    rng: Sequence[int] = (0, 0, 0, 0),
    payload: Any = None,
    workspace: Any = None,
    stream: Any = None,
) -> Any:
    """Encodes tensors to one payload; with residuals, encodes gradient + residual.

    Args:
      codec: with a kernel: not Auto.
      gradients: float32, float16 or bfloat16, of any shapes.
      residuals: float32, one a gradient and of its size; None for no feedback.
      new_residuals: like the residuals; what the payload loses goes there, by default in place.
      segments: int64 [S, 5] on the host, see `gradcomp.kernels`; by default a row a tensor.
      rng: (seed, step, rank, phase).
      payload: uint8, as many bytes as the codec makes of the tensors, written; by default the
        gradients' library allocates it.
      workspace: uint8, at least encode_workspace(...), aligned to 16 bytes; allocated by default.
      stream: a cudaStream_t as an integer, or an object with `ptr` (CuPy), `cuda_stream` (PyTorch)
        or `__cuda_stream__`.
    Returns:
      The payload, complete when the stream has come to it.
    Raises:
      CodecError: what does not fit; names it and the remedy.
      MissingDependencyError: `gradcomp._cuda` is not there.
      RuntimeError: CUDA's error.
    """
    native, kernel = load(), kernel_codec(codec)
    inputs = views_of(native, gradients, "gradients", FLOATS)
    old, new = _both_residuals(native, residuals, new_residuals, inputs)
    table = table_of(kernel, [v.numel for v in inputs], segments)
    made = native_codec(native, kernel, residuals is not None)
    device = one_device([*inputs, *(old or ()), *(new or ())])
    library = library_of(gradients[0]) if gradients else None
    handle = handle_of(stream, library, device)

    size = call(native.payload_size, made, table)
    if payload is None:
        payload = empty("payload", size, library, device, handle)
    out = view(native, payload, "payload", ("uint8",), written=True)
    check_numel(out, size, "this codec makes of these tensors")
    need = call(native.encode_workspace, made, table)
    scratch = workspace_of(native, workspace, need, library, device, handle)
    one_device([*inputs, out, scratch])
    pointers = [None if views is None else [v.pointer for v in views] for views in (old, new)]
    call(
        native.encode,
        *(made, [v.tensor for v in inputs], *pointers, table, key_of(rng)),
        *(out.memory, scratch.memory, device, handle),
    )
    return payload


def _both_residuals(
    native: ModuleType,
    residuals: Sequence[Any] | None,
    new_residuals: Sequence[Any] | None,
    gradients: Sequence[View],
) -> tuple[list[View] | None, list[View] | None]:
    if residuals is None:
        if new_residuals is not None:
            raise CodecError("new_residuals is given without residuals: pass both, or neither")
        return None, None
    in_place = new_residuals is None
    old = residuals_of(native, residuals, "residuals", gradients, written=in_place)
    if new_residuals is None:
        return old, old
    return old, residuals_of(native, new_residuals, "new_residuals", gradients, written=True)


@dataclass(frozen=True)
class Report:
    """What `decode` says about its payloads, on the device until `wait`.

    It is part of the workspace: ask before that is used again.
    """

    _view: View
    _device: int
    _stream: int

    def wait(self) -> bool:
        """Waits for the stream; whether all outputs are finite.

        Raises:
          CodecError: the bytes are none that an encoder can have made; the outputs hold anything.
        """
        finite, bad_row = load().read_report(self._view.pointer, self._device, self._stream)
        if bad_row is not None:
            raise CodecError(
                f"the payload of segment {bad_row} is no payload of this codec: "
                "it was damaged, or made by another codec or for other sizes"
            )
        return bool(finite)


def decode(
    codec: Codec | str,
    payloads: Any,
    outputs: Sequence[Any],
    *,
    world: int = 1,
    scale: float = 1.0,
    segments: ArrayLike | None = None,
    workspace: Any = None,
    stream: Any = None,
) -> Report:
    """Writes `scale` times the sum of `world` payloads, in rank order, to the outputs.

    Args:
      codec: as for `encode`.
      payloads: uint8 [world × a payload's bytes], one after the other.
      outputs: float32, float16 or bfloat16, of any shapes; overwritten.
      world: number of payloads.
      segments: as for `encode`.
      workspace: uint8, at least decode_workspace(...), aligned to 16 bytes; allocated by default.
      stream: as for `encode`.
    Raises:
      As `encode`; bad bytes show in `Report.wait`.
    """
    native, kernel = load(), kernel_codec(codec)
    results = views_of(native, outputs, "outputs", FLOATS, written=True)
    wire = view(native, payloads, "payloads", ("uint8",))
    table = table_of(kernel, [v.numel for v in results], segments)
    made = native_codec(native, kernel, False)
    need = _REPORT + call(native.decode_workspace, made, table, world)
    size = call(native.payload_size, made, table)
    check_numel(wire, world * size, f"{world} payloads of {size} bytes have")
    device = one_device([*results, wire])
    library = library_of(outputs[0]) if outputs else None
    handle = handle_of(stream, library, device)
    scratch = workspace_of(native, workspace, need, library, device, handle)
    one_device([*results, wire, scratch])
    pointer, capacity = scratch.memory
    call(
        native.decode,
        *(made, wire.memory, world, table, float(scale), [v.tensor for v in results], pointer),
        *((pointer + _REPORT, capacity - _REPORT), device, handle),
    )
    return Report(scratch, device, handle)
