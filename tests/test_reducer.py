"""The reducer: what it counts, and what it does with nobody to talk to."""

import warnings

import numpy as np
import pytest
import tensorflow as tf
from invariants import make_plan, tensors_of

import gradcomp as gc
from gradcomp.collective import LocalCollective, alone
from gradcomp.reducer import Reducer


def test_one_rank_sends_nothing_and_warns_once(monkeypatch) -> None:
    monkeypatch.setattr("gradcomp.reducer._said_alone", False)
    reducer = Reducer(make_plan(gc.TopK(density=0.01), 1), alone(), name="test")
    gradients = tensors_of(0, 0)
    with pytest.warns(UserWarning, match="nothing to compress"):
        reduced = reducer.reduce(gradients).gradients
    assert all(r is g for r, g in zip(reduced, gradients, strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reducer.reduce(gradients)
    traffic = reducer.traffic()
    assert (traffic.steps, traffic.sent_bytes, traffic.raw_bytes) == (2, 0, 0)
    assert traffic.compression_ratio == 1.0
    assert not reducer.residuals


def test_one_rank_without_compression_has_nothing_to_warn_of(monkeypatch) -> None:
    monkeypatch.setattr("gradcomp.reducer._said_alone", False)
    Reducer(make_plan(None, 1), alone(), name="test").reduce(tensors_of(0, 0))


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("spec", ["fp16", "quantize:bits=4", "topk:density=0.01", "none"])
def test_bytes_are_counted_at_the_collective(spec, size) -> None:
    plan = make_plan(gc.codec(spec), size)

    def work(rank):
        reducer = Reducer(plan, rank, name="test")
        for step in range(3):
            reducer.reduce(tensors_of(rank.rank, step))
        return reducer.traffic()

    traffic = LocalCollective(size).run(work)
    flags = 2 * (size - 1) * 4 * len(plan.variables)  # over all ranks, a step
    sent = sum(t.sent_bytes for t in traffic)
    assert sent == pytest.approx(3 * (size * plan.sent_bytes + flags), abs=3 * size * 4)
    assert {t.raw_bytes for t in traffic} == {3 * plan.dense_bytes}
    assert {t.steps for t in traffic} == {3}
    assert all(t.compressed_numel == plan.compressed_numel for t in traffic)


def test_without_feedback_nothing_is_kept() -> None:
    def work(rank):
        reducer = Reducer(make_plan(gc.TopK(0.01), 2), rank, error_feedback=False, name="test")
        reducer.reduce(tensors_of(rank.rank, 0))
        return len(reducer.residuals)

    assert LocalCollective(2).run(work) == [0, 0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_gradients_come_back_as_such(dtype) -> None:
    def work(rank):
        reducer = Reducer(make_plan(gc.Quantize(bits=8), 2), rank, name="test")
        gradients = [tf.cast(g, dtype) for g in tensors_of(rank.rank, 0)]
        return reducer.reduce(gradients).gradients

    first, second = LocalCollective(2).run(work)
    for index, (a, b) in enumerate(zip(first, second, strict=True)):
        assert a.dtype.name == dtype
        assert a.numpy().tobytes() == b.numpy().tobytes()
        mean = np.mean([tensors_of(r, 0)[index].numpy() for r in range(2)], axis=0)
        np.testing.assert_allclose(tf.cast(a, tf.float32), mean, atol=0.2)
