"""The wire format does not change: the examples of docs/wire-format.md, and literal bytes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import gradcomp as gc
from gradcomp import reference
from gradcomp.codecs import KernelCodec

DOC = Path(__file__).parents[1] / "docs" / "wire-format.md"


def examples() -> list[dict[str, str]]:
    blocks = re.findall(r"^```example\n(.*?)^```", DOC.read_text(), re.MULTILINE | re.DOTALL)
    return [dict(re.findall(r"^(\w+): +(.*)$", block, re.MULTILINE)) for block in blocks]


def ramp(numel: int) -> np.ndarray:
    """Exact float32 values between -6.25 and 6.25, in no order, most of them distinct."""
    return (((np.arange(numel) * 37) % 101 - 50) / 8).astype(np.float32)


def special(numel: int) -> np.ndarray:
    """A ramp with the values that kernels get wrong."""
    x = ramp(numel)
    x[:9] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 3.4028235e38, 65519.996]
    return x


# (spec, x, seed, step, payload)
GOLDEN = [
    (
        "identity",
        special(9),
        0,
        0,
        "00000000 00000080 0000807f 000080ff 0000c07f 01000000 c2160180 ffff7f7f ffef7f47",
    ),
    (
        "fp16",
        special(12),
        0,
        0,
        "00000080 007c00fc 007e0000 0080ff7b ff7b00c1 4040e0c5",
    ),
    (
        "bf16",
        special(12),
        0,
        0,
        "00000080 807f80ff c07f0000 01807f7f 804720c0 0840bcc0",
    ),
    (
        "quantize:bits=8,block_size=32,stochastic=false",
        ramp(70),
        0,
        0,
        "2693493d 168b453d a552293d 81df3d9a f856b412 70cd2b89 e745a200 5ebb1977 d53390ee "
        "4caa0866 c3217fdc 3c96f656 b0106fca 2984e343 9efd5db7 1777d131 8beb4ba5 0565bf1f "
        "7fd93993 f1619f0f 7fbd",
    ),
    (
        "quantize:bits=4,block_size=32,stochastic=false",
        ramp(70),
        0,
        0,
        "4992643f 0000603f 0000403f 59ce137a e035acf1 46bd0269 df247be0 137adf35 acf146bd "
        "0269ce24 7be035ac 1f75cb",
    ),
    (
        "quantize:bits=2,block_size=32,stochastic=false",
        ramp(70),
        0,
        0,
        "0000c840 0000c440 0000a840 57f0005f 00057f00 005fc005 7f0015fc 1c31",
    ),
    (
        "quantize:bits=8,block_size=32,stochastic=false",
        special(67),
        0,
        0,
        "0000c07f 168b453d 0402013d 00000000 00000000 00000000 00000000 00000000 00000000 "
        "00000000 00000000 3c96f656 b0106fca 2984e343 9efd5db7 1777d131 8beb4ba5 0565bf1f "
        "7fd93993 ec7f81",
    ),
    (
        "quantize:bits=8,block_size=64,stochastic=true",
        ramp(150),
        0,
        0,
        "2693493d 2693493d 2693493d 81df3d9b f856b412 6fcd2b89 e745a200 5ebc1a78 d53390ef "
        "4caa0766 c3217fdd 3a98f654 b10f6ecb 2986e442 a0fe5cb9 1775d231 8eec4aa7 0563c01f "
        "7dda3896 f452ae0d 6ac82684 e2409dfb 59b61572 cf2d8bea 47a50261 be1c7ad7 3593f14e "
        "ac0a68c6 2381df3d 9bf956b3 1270cd2b 89e744a2 005ebc19 78d53390 ee4da907 65c3217f "
        "dd3a98f6 54b10f6d ca2886e4 429ffd5b b917",
    ),
    (
        "quantize:bits=4,block_size=64,stochastic=true",
        ramp(150),
        -1,
        1099511627776,
        "4992643f 4992643f 4992643f 39aff34a cf156bd1 269df239 af045bc0 166ce126 adf24abf "
        "045bc025 6ce237ae c0046cd1 269de239 aef44bb0 156cd236 9df34abf 045bc025 7de137ae "
        "f34acf04 66dd22a7 ee44bb0f 55cc11",
    ),
    (
        "quantize:bits=2,block_size=32,stochastic=true",
        ramp(150),
        12345678901234567,
        7,
        "0000c840 0000c440 0000c440 0000c840 0000c840 47cc015f c0554300 005f0014 7f0055cf "
        "fc007fc0 11ff0013 7c0041f3 0057fc01 3c03f44d 1334",
    ),
    (
        "fp8:format=e4m3,block_size=32",
        ramp(70),
        0,
        0,
        "4992643c 0000603c 0000403c feef75fb dd7af868 7cf372fd eb77fa00 7af76b7d f273fce8 "
        "78fa5d7b f56f7ef0 75fce179 f9667cf4 71feed77 fbd17af8 6a7df273 fde978fa 597bf66e "
        "7ef175fc e57bfb65 7ef7",
    ),
    (
        "fp8:format=e5m2,block_size=32",
        ramp(70),
        0,
        0,
        "4992e438 0000e038 0000c038 fbf377fa eb79f870 7af675fb f278f900 79f8727b f576faf0 "
        "78f96b7a f7737bf4 77faed79 f86f7af6 75fbf277 f9e579f8 717bf575 faf178f9 697af773 "
        "7bf476fa ef79f96f 7bf7",
    ),
    (
        "fp8:format=e4m3,block_size=32",
        special(67),
        0,
        0,
        "0000c07f 0000603c 2549123c 00000000 00000000 00000000 00000000 00000000 00000000 "
        "00000000 00000000 75fce179 f9667cf4 71feed77 fbd17af8 6a7df273 fde978fa 597bf66e "
        "7ef175fc e97efe",
    ),
    (
        "fp8:format=e5m2,block_size=32",
        special(67)[5:],
        0,
        0,
        "24499277 0000e038 00807b00 80008080 00800000 80000080 00808000 80000080 00008000 "
        "80800080 6f7af675 fbf277f9 e579f871 7bf575fa f178f969 7af7737b f476faee 79f9",
    ),
    (
        "sign:block_size=32",
        ramp(70),
        0,
        0,
        "00004d40 00404d40 00003840 ab552aa5 2aad55aa 25",
    ),
    (
        "sign:block_size=64",
        ramp(150),
        0,
        0,
        "00204d40 00804640 8c2e4a40 013ff003 7fe007fc 7fe007fe 801ff801 7c0770",
    ),
    (
        "sign:block_size=32",
        special(67),
        0,
        0,
        "0000c07f 00404d40 00003840 00000000 2aad55aa 05",
    ),
    (
        "sign:block_size=32",
        special(67)[5:],
        0,
        0,
        "ffffff7c 22224a40 aa9552aa 56aa554a",
    ),
    (
        "topk:density=0.1,values=identity",
        ramp(70),
        0,
        0,
        "d89c1055 2a0000c8 c00000bc c00000bc 400000c8 400000c0 c00000b8 400000c4 40",
    ),
    (
        "topk:density=0.1,values=fp16",
        special(70),
        0,
        0,
        "1a0f132f 21007c00 fc007eff 7bff7b40 462046",
    ),
    (
        "topk:density=0.01,values=bf16",
        ramp(1000),
        0,
        0,
        "80570e0a fa36940c abd50000 c8c0c840 c8c0c840 c8c0c840 c8c0c840 c8c0c840",
    ),
    (
        "topk:density=1.0,values=fp16",
        ramp(5),
        0,
        0,
        "550140c6 80be0042 00c500b6",
    ),
    (
        "topk:density=0.3,values=(quantize:bits=4,block_size=32,stochastic=true)",
        ramp(150),
        3,
        4,
        "4a95aa56 ad1a45a9 2445a924 45492a45 492a4549 2a499264 3f499264 3f996a76 a96b95a7 "
        "6aa6b75a 67995b95 a676aa6b 95b75a06",
    ),
    (
        "topk:density=0.1,values=(fp8:format=e5m2,block_size=32)",
        ramp(150),
        0,
        0,
        "d89cf052 811955aa 54aa0049 92e438fb fb7b7bfb 7a7bfbfa 7bfbfb7b 7bfb",
    ),
    (
        "topk:density=0.3,values=(sign:block_size=32)",
        special(150)[5:],
        0,
        0,
        "5ab5aa54 a902a652 94a45294 a42895a4 2895a428 05ffffff 7c5555a9 4068a493 6d2519",
    ),
]


def encode_by_reference(codec: KernelCodec, x: np.ndarray, seed: int, step: int) -> np.ndarray:
    segments = np.array([[0, 0, x.size, codec.kept(x.size), 0]], np.int64)
    params = codec.kernel_params(feedback=False)
    return reference.encode(params, [x], None, segments, (seed, step, 0, 0))[0]


def make(spec: str) -> KernelCodec:
    made = gc.codec(spec)
    assert isinstance(made, KernelCodec)
    return made


def test_the_page_has_an_example_of_every_codec() -> None:
    assert {e["codec"].partition(":")[0] for e in examples()} == {
        "identity",
        "fp16",
        "bf16",
        "fp8",
        "quantize",
        "sign",
        "topk",
    }


@pytest.mark.parametrize("example", examples(), ids=lambda e: f"{e['codec']}-{e['x']}")
def test_example(example: dict[str, str]) -> None:
    codec = make(example["codec"])
    x = np.array(example["x"].split(), np.float32)
    seed = int(example.get("seed", 0))
    payload = bytes.fromhex(example["payload"])
    decoded = np.array(example["decoded"].split(), np.float32)
    assert codec.encode(x, seed=seed).tobytes() == payload
    assert encode_by_reference(codec, x, seed, 0).tobytes() == payload
    back = codec.decode(np.frombuffer(payload, np.uint8), x.size)
    np.testing.assert_array_equal(back, decoded)


@pytest.mark.parametrize(
    ("spec", "x", "seed", "step", "payload"), GOLDEN, ids=[f"{g[0]}-{g[1].size}" for g in GOLDEN]
)
def test_bytes(spec: str, x: np.ndarray, seed: int, step: int, payload: str) -> None:
    codec = make(spec)
    expected = bytes.fromhex(payload)
    assert codec.encode(x, seed=seed, step=step).tobytes() == expected
    assert encode_by_reference(codec, x, seed, step).tobytes() == expected
