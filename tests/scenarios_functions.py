"""`hvd.allreduce` and its relatives on Horovod ranks."""

from __future__ import annotations

import warnings

import horovod.tensorflow as stock
import keras
import numpy as np
import tensorflow as tf

import gradcomp as gc
import gradcomp.horovod as hvd


def values_of(rank: int, n: int = 3000, dtype: str = "float32") -> tf.Tensor:
    rng = np.random.default_rng(rank)
    return tf.cast(rng.standard_normal((3, n // 3)), dtype)


def mean_of_all(n: int = 3000) -> np.ndarray:
    return np.mean([values_of(r, n).numpy() for r in range(hvd.size())], axis=0)


def uncompressed_is_horovods_own() -> None:
    x = values_of(hvd.rank())
    for kwargs in ({}, {"op": hvd.Sum}, {"op": stock.Max}, {"name": "mine"}):
        ours = hvd.allreduce(x, compression=None, **kwargs)
        np.testing.assert_array_equal(ours, stock.allreduce(x, **{"op": hvd.Average, **kwargs}))
    for compression in (gc.Identity(), "identity"):
        ours = hvd.allreduce(x, compression=compression)
        np.testing.assert_array_equal(ours, stock.allreduce(x, op=hvd.Average))
    v = keras.Variable(np.float32([hvd.rank(), 1]))
    np.testing.assert_array_equal(hvd.allreduce(v), [(hvd.size() - 1) / 2, 1])


def compressed_is_close_and_equal_on_all_ranks() -> None:
    expected = mean_of_all()
    for spec, bound in (
        ("fp16", 2e-3),
        ("bf16", 2e-2),
        ("quantize:bits=8", 0.06),
        ("quantize:bits=4", 1.2),
    ):
        for op, factor in ((hvd.Average, 1), (hvd.Sum, hvd.size())):
            ours = hvd.allreduce(values_of(hvd.rank()), compression=spec, op=op).numpy()
            np.testing.assert_allclose(ours, factor * expected, atol=factor * bound)
            assert len(set(hvd.allgather_object(ours.tobytes()))) == 1


def half_precision_keeps_its_dtype() -> None:
    for dtype in ("float16", "bfloat16"):
        ours = hvd.allreduce(values_of(hvd.rank(), dtype=dtype), compression="quantize:bits=8")
        assert ours.dtype.name == dtype
        np.testing.assert_allclose(tf.cast(ours, tf.float32), mean_of_all(), atol=0.08)


def horovods_fp16_is_ours_and_does_not_overflow() -> None:
    """40,000 on each rank: a half-precision sum is inf, horovod issue 1699."""
    x = tf.fill([2000], 40_000.0)
    mean = hvd.allreduce(x, compression=hvd.Compression.fp16, op=hvd.Average)
    np.testing.assert_array_equal(mean, 40_000.0)
    beyond = hvd.allreduce(10 * x, compression=stock.Compression.fp16)
    np.testing.assert_array_equal(beyond, 65_504.0)


def state_makes_up_for_what_was_dropped() -> None:
    codec = gc.TopK(density=0.1, values=gc.Identity())
    state = hvd.FeedbackState()
    total = np.zeros((3, 1000))
    steps = 60
    for _ in range(steps):
        total += hvd.allreduce(values_of(hvd.rank()), compression=codec, state=state).numpy()
    assert np.abs(total / steps - mean_of_all()).max() < 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alone = hvd.allreduce(values_of(hvd.rank()), compression=codec).numpy()
    assert np.abs(alone - mean_of_all()).max() > 0.5
    try:
        hvd.allreduce(values_of(hvd.rank(), 30), compression=codec, state=state)
    except ValueError as error:
        assert "one FeedbackState for each" in str(error)
    else:
        raise AssertionError("a state was used for another tensor")


def biased_without_state_warns_once() -> None:
    codec = gc.TopK(density=0.125)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            hvd.allreduce(values_of(hvd.rank()), compression=codec)
        hvd.allreduce(values_of(hvd.rank()), compression=gc.Quantize(bits=8))
    told = [str(w.message) for w in caught if "biased" in str(w.message)]
    assert len(told) == 1
    assert "state=gc.FeedbackState()" in told[0]


def in_a_graph_calls_do_not_collide() -> None:
    @tf.function
    def two(x, y):
        return hvd.allreduce(x, compression="fp16"), hvd.allreduce(y, compression="fp16")

    x = values_of(hvd.rank())
    for _ in range(3):
        a, b = two(x, 2 * x)
    np.testing.assert_allclose(a, mean_of_all(), atol=2e-3)
    np.testing.assert_allclose(b, 2 * mean_of_all(), atol=4e-3)


def a_group_is_one_payload() -> None:
    tensors = [values_of(hvd.rank()), values_of(hvd.rank(), 300)]
    reduced = hvd.grouped_allreduce(tensors, compression=gc.Quantize(bits=8))
    np.testing.assert_allclose(reduced[0], mean_of_all(), atol=0.06)
    np.testing.assert_allclose(reduced[1], mean_of_all(300), atol=0.06)
    plain = hvd.grouped_allreduce(tensors)
    np.testing.assert_allclose(plain[1], mean_of_all(300), atol=1e-6)


def a_policy_decides_by_the_tensors_name() -> None:
    policy = gc.Policy(None, rules=[("loud", gc.TopK(density=0.01))])
    x = values_of(hvd.rank())
    quiet = hvd.allreduce(x, compression=policy, name="quiet")
    np.testing.assert_allclose(quiet, mean_of_all(), atol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loud = hvd.allreduce(x, compression=policy, name="loud")
    assert np.count_nonzero(loud) <= 0.01 * 3000 * hvd.size() + hvd.size()


def what_cannot_be_done_is_refused_by_name() -> list[str]:
    x = values_of(hvd.rank())
    opt = keras.optimizers.SGD
    attempts = [
        lambda: hvd.allreduce(x, compression="fp16", op=stock.Max),
        lambda: hvd.allreduce(x, compression="fp16", prescale_factor=0.5),
        lambda: hvd.allreduce(x, compression="fp16", nonsense=1),
        lambda: hvd.allreduce(x, compression=3),
        lambda: hvd.allreduce(tf.constant([1, 2]), compression="fp16"),
        lambda: hvd.DistributedOptimizer(opt(), compression="fp16", device_sparse="/cpu:0"),
        lambda: hvd.DistributedOptimizer(opt(), groups=2),
        lambda: hvd.DistributedOptimizer(opt(), op=stock.Adasum),
        lambda: hvd.DistributedOptimizer("adam"),
        lambda: hvd.DistributedOptimizer(hvd.DistributedOptimizer(opt())),
        lambda: hvd.DistributedOptimizer(opt()).plan,
        lambda: hvd.DistributedGradientTape(tf.GradientTape(), num_groups=3),
    ]
    told = []
    for attempt in attempts:
        try:
            attempt()
        except (TypeError, ValueError) as error:
            told.append(str(error))
        else:
            told.append("accepted")
    return told


def all_reduce_is_allreduce() -> None:
    """`gc.all_reduce` finds Horovod by itself, and `gc.DistributedOptimizer` does too."""
    x = values_of(hvd.rank())
    for codec in (None, "fp16"):
        mine = gc.all_reduce([x, {"first": x[0]}], codec)
        # With what a tensor travels decides in which order a ring adds, and where a chunk ends.
        alone = hvd.allreduce(x, compression=codec)
        np.testing.assert_allclose(mine[0], alone, atol=1e-6 if codec is None else 2e-3)
        everyones = hvd.allgather_object(mine[0].numpy().tobytes())
        assert len(set(everyones)) == 1
        np.testing.assert_allclose(mine[1]["first"], mean_of_all()[0], atol=2e-3)
    state = gc.FeedbackState()
    applied = sum(gc.all_reduce(x, "topk:density=0.3", state=state).numpy() for _ in range(12))
    assert np.abs(applied / 12 - mean_of_all()).max() < np.abs(mean_of_all()).max()
    assert state.reducer.residuals[0].numpy().any()
    opt = gc.DistributedOptimizer(keras.optimizers.SGD(1.0), "fp16")
    variable = keras.Variable(np.zeros(x.shape, np.float32))
    opt.build([variable])
    opt.apply([x], [variable])
    np.testing.assert_allclose(variable, -mean_of_all(), atol=2e-3)
    assert opt.plan.world_size == hvd.size()


def broadcast_takes_keras_variables() -> None:
    v, w = keras.Variable(float(hvd.rank())), tf.Variable([hvd.rank() + 5.0])
    hvd.broadcast_variables([v, w], root_rank=1)
    assert float(v.numpy()) == 1.0
    assert w.numpy().tolist() == [6.0]


SCENARIOS = {
    f.__name__: f
    for f in (
        uncompressed_is_horovods_own,
        compressed_is_close_and_equal_on_all_ranks,
        half_precision_keeps_its_dtype,
        horovods_fp16_is_ours_and_does_not_overflow,
        state_makes_up_for_what_was_dropped,
        biased_without_state_warns_once,
        in_a_graph_calls_do_not_collide,
        a_group_is_one_payload,
        a_policy_decides_by_the_tensors_name,
        what_cannot_be_done_is_refused_by_name,
        all_reduce_is_allreduce,
        broadcast_takes_keras_variables,
    )
}
