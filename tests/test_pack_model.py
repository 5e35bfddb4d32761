"""Rules that say which layers pack, the plan's table, and the choice by memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from test_auto_pack import L, apart, attention, step

import gradcomp as gc

EIGHT = gc.Quantize(bits=8)


def model() -> keras.Model:
    keras.utils.set_random_seed(1)
    image = keras.Input((16, 16, 3))
    x = L.Conv2D(16, 3, activation="relu", name="stem")(image)
    x = keras.Sequential([L.Input((14, 14, 16)), L.Conv2D(16, 3, name="conv")], name="block")(x)
    x = attention(L.Reshape((144, 16))(x), 16)
    return keras.Model(image, L.Dense(10, name="head")(L.Flatten(name="flat")(x)))


def images() -> tf.Tensor:
    return tf.random.stateless_normal([4, 16, 16, 3], seed=[1, 2])


def codecs(rules: Any, **options: Any) -> dict[str, str]:
    chosen = gc.pack_model(model(), rules, **options).codecs
    return {path: "none" if c is None else c.spec for path, c in chosen.items()}


def test_the_first_rule_that_fits_decides() -> None:
    rules = [("head", None), ("^block/", "fp8"), (L.Conv2D, EIGHT), (r".", "fp16")]
    found = codecs(rules)
    assert found["stem"] == EIGHT.spec
    assert found["block/conv"] == "fp8:format=e4m3"
    assert found["head"] == "none"
    assert {"fp16"} == {spec for path, spec in found.items() if "dense" in path}
    inside = codecs([(keras.Sequential, EIGHT)])
    assert [path for path, spec in inside.items() if spec != "none"] == ["block/conv"]


def test_a_policy_counts_elements_of_an_example() -> None:
    found = codecs(gc.Policy(EIGHT, rules=[("stem", None)], min_numel=2000))
    assert (found["stem"], found["block/conv"], found["head"]) == ("none", EIGHT.spec, "none")
    assert codecs("fp16")["block/conv"] == "fp16"


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras saves
def test_packing_in_place_trains_alike(tmp_path: Path) -> None:
    plain, packed = model(), model()
    names = [v.path for v in packed.variables]
    plan = gc.pack_model(packed, gc.FP16()).plan(4)
    outputs, gradients = step(plain, images(), training=True)
    own_outputs, own_gradients = step(packed, images(), training=True)
    assert apart(outputs, own_outputs) < 1e-5
    assert 1e-8 < apart(gradients, own_gradients) < 2e-3
    assert [v.path for v in packed.variables] == names
    packed.save_weights(tmp_path / "m.weights.h5")
    plain.load_weights(tmp_path / "m.weights.h5")
    rows = {row.path: row for row in plan.rows}
    # Its input, and a few numbers that are no larger for a larger batch.
    assert 0 <= rows["block/conv"].after - 2 * 4 * 14 * 14 * 16 < 200
    assert plan.after < 0.6 * plan.before
    text = str(plan)
    assert "a batch of 4" in text
    assert all(row.path in text and f"{row.after:,}" in text for row in plan.rows)
    assert f"{plan.before:,}" in text


def test_the_plan_grows_with_the_batch_and_rules_can_be_replaced() -> None:
    packed = model()
    eight = gc.pack_model(packed, EIGHT).plan(8)
    assert not packed.get_layer("stem").supports_jit  # which has no kernel of this codec
    assert packed.get_layer("head").supports_jit
    none = gc.pack_model(packed, [(".", None)])
    assert none.plan(8).after == none.plan(8).before == eight.before
    assert none.plan(16).before == pytest.approx(2 * eight.before, rel=0.01)
    assert eight.after < 0.5 * eight.before


def test_auto_takes_what_is_needed_and_the_cheapest_of_it() -> None:
    whole = gc.pack_model(model(), [(".", None)], batch_size=64).plan().before / 2**20
    none = codecs(gc.Auto(memory_limit=int(whole) + 1), batch_size=64)
    assert set(none.values()) == {"none"}
    some = gc.pack_model(model(), gc.Auto(memory_limit=int(0.8 * whole)), batch_size=64)
    assert set(some.codecs.values()) == {None, gc.FP16()}
    assert some.plan().after / 2**20 <= 0.8 * whole
    more = gc.pack_model(model(), gc.Auto(memory_limit=int(0.05 * whole)), batch_size=64)
    assert EIGHT in more.codecs.values()
    assert more.plan().after / 2**20 <= 0.05 * whole
    only = gc.Auto(memory_limit=int(0.8 * whole), candidates=["quantize:bits=4"])
    assert set(codecs(only, batch_size=64).values()) == {"none", "quantize:bits=4"}
    with pytest.raises(gc.ActivationError, match=r"keeps at least .* memory_limit=1"):
        gc.pack_model(model(), gc.Auto(memory_limit=1), batch_size=256)


def test_bad_input_is_refused() -> None:
    built = model()
    with pytest.raises(gc.CodecError, match=r"rule \('\(', 'fp16'\) is not a pair"):
        gc.pack_model(built, [("(", "fp16")])
    with pytest.raises(gc.CodecError, match="rule 3 is not a pair"):
        gc.pack_model(built, [3])
    with pytest.raises(gc.CodecError, match="too little"):
        gc.pack_model(built, gc.TopK(density=0.1))
    with pytest.raises(gc.ActivationError, match="memory_limit in MiB"):
        gc.pack_model(built, gc.Auto())
    with pytest.raises(gc.CodecError, match="memory_limit must be at least 1"):
        gc.Auto(memory_limit=0)
    with pytest.raises(gc.ActivationError, match="is not built"):
        gc.pack_model(keras.Sequential([L.Dense(3)]), gc.FP16())
    with pytest.raises(gc.ActivationError, match="can be packed, not int"):
        gc.pack_model(3, gc.FP16())
    packed = gc.pack_model(built, gc.FP16())
    with pytest.raises(gc.ActivationError, match="got 0"):
        packed.plan(0)


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = L.Dense(64, "gelu", name="inner")

    def build(self, shape: Any) -> None:
        self.dense.build(shape)

    def call(self, x: Any) -> Any:
        return self.dense(x)


def test_a_subclass_is_planned_from_the_shape_that_it_was_built_with() -> None:
    whole = Subclassed()
    whole.build((None, 64))
    packed = gc.pack_model(whole, [("inner", EIGHT)])
    assert packed.codecs == {"inner": EIGHT}
    (row,) = packed.plan(32).rows
    assert row.after < 0.5 * row.before
    x = np.ones((32, 64), np.float32)
    assert np.isfinite(step(whole, x)[1][0]).all()
