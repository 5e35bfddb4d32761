"""docs/new-codec.md works as it is written: its codec keeps its claims and is found by its spec."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import tensorflow as tf

import gradcomp as gc
from gradcomp.testing import check_codec

DOC = Path(__file__).parents[1] / "docs" / "new-codec.md"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """All Python on the page as one file, imported."""
    blocks = re.findall(r"^```python\n(.*?)^```", DOC.read_text(), re.MULTILINE | re.DOTALL)
    path = tmp_path_factory.mktemp("page") / "codec_of_the_page.py"
    path.write_text("\n".join(blocks))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def test_the_spec_finds_it(page: ModuleType) -> None:
    codec = gc.codec("ternary:threshold=0.25")
    assert codec == page.Ternary(threshold=0.25) == page.Ternary.from_config(codec.get_config())
    assert codec.spec == "ternary:threshold=0.25"
    with pytest.raises(gc.CodecError, match=r"threshold must be in \[0, 1\), got 1"):
        gc.codec("ternary:threshold=1")


def test_it_keeps_its_claims_within_another_range_of_options(page: ModuleType) -> None:
    check_codec(gc.codec("ternary:threshold=0.5"))


def test_a_false_claim_of_it_is_found(page: ModuleType) -> None:
    class Optimist(page.Ternary):  # type: ignore[name-defined,misc]
        name = "optimist"

        def unbiased(self, feedback: bool = False) -> bool:
            return True

    check_codec(Optimist())
    with pytest.raises(AssertionError, match=r"Optimist.* unbiased"):
        check_codec(Optimist(threshold=0.1))


def test_a_policy_plans_it(page: ModuleType) -> None:
    variable = tf.Variable(tf.zeros([100, 50]))
    plan = page.policy.plan([variable])
    assert plan.payload_bytes == page.Ternary().payload_size(5000) == 1004


def test_encode_and_decode_in_a_graph(page: ModuleType) -> None:
    x = np.random.default_rng(0).standard_normal((20, 5)).astype(np.float32)

    @tf.function
    def there_and_back(x: tf.Tensor) -> tf.Tensor:
        return gc.codec("ternary").decode(gc.codec("ternary").encode(x, seed=3), 100)

    decoded = there_and_back(tf.constant(x))
    scale = np.abs(x).max()
    assert set(np.unique(decoded.numpy() / scale)) == {-1, 0, 1}


def test_foreign_bytes(page: ModuleType) -> None:
    payload = np.full(5, 255, np.uint8)
    with pytest.raises(gc.CodecError, match="no five ternary digits"):
        gc.codec("ternary").decode(payload, 5)
    with pytest.raises(gc.CodecError, match="no five ternary digits"):
        gc.codec("ternary").decode(tf.constant(payload), 5)
