"""What Horovod's own tests of TensorFlow 2 ask, asked of `gradcomp.horovod`."""

from __future__ import annotations

import horovod.tensorflow as stock
import keras
import numpy as np
import tensorflow as tf
from scenarios_callbacks import fails

import gradcomp as gc
import gradcomp.horovod as hvd

REDUCED = ("uint8", "int8", "int32", "int64", "float16", "float32", "float64")
GATHERED = (*REDUCED, "uint16", "int16", "bool")


def filled(value: int, shape: tuple[int, ...], dtype: str) -> tf.Tensor:
    return tf.cast(tf.fill(shape, value), dtype)


def allreduce_of_every_dtype_and_rank() -> None:
    n = hvd.size()
    for dtype in REDUCED:
        for shape in ((), (5,), (5, 3), (5, 3, 2), (0,)):
            x = filled(hvd.rank() + 1, shape, dtype)
            total = hvd.allreduce(x, op=hvd.Sum)
            assert total.dtype == dtype
            np.testing.assert_array_equal(total, np.full(shape, n * (n + 1) // 2, dtype))
            if dtype.startswith("float"):
                mean = hvd.allreduce(x, average=True)
                np.testing.assert_allclose(mean, np.full(shape, (n + 1) / 2, dtype), rtol=1e-3)


def allreduce_of_plain_values() -> None:
    for mine in (float(hvd.rank()), np.float32(hvd.rank()), keras.Variable(float(hvd.rank()))):
        assert hvd.allreduce(mine, op=hvd.Sum).numpy() == sum(range(hvd.size()))
    (listed,) = hvd.grouped_allreduce([[float(hvd.rank())] * 3], op=hvd.Sum)
    assert listed.numpy().tolist() == [sum(range(hvd.size()))] * 3


def tensors_without_dimensions_or_elements_are_compressed() -> None:
    n = hvd.size()
    for spec in ("fp16", "quantize:bits=8", "topk:density=0.5"):
        scalar, empty, pair = hvd.grouped_allreduce(
            [tf.constant(hvd.rank() + 1.0), tf.zeros((0, 3)), tf.fill([2], 1.0 + hvd.rank())],
            compression=spec,
            state=hvd.FeedbackState(),
            op=hvd.Sum,
        )
        assert scalar.shape == ()
        np.testing.assert_allclose(scalar, n * (n + 1) / 2, rtol=0.01)
        assert empty.shape == (0, 3)
        assert pair.shape == (2,)


def scale_factors_act_before_and_after() -> None:
    x = tf.fill([4], hvd.rank() + 1.0)
    total = hvd.size() * (hvd.size() + 1) / 2
    scaled = hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
    np.testing.assert_allclose(scaled, 2 * total)


def gradients_flow_through_allreduce() -> None:
    v = tf.Variable(tf.ones(4))
    with tf.GradientTape() as tape:
        value = tf.reduce_sum(hvd.allreduce(v * (hvd.rank() + 1.0), op=hvd.Sum))
    np.testing.assert_allclose(tape.gradient(value, v), hvd.size() * (hvd.rank() + 1.0))


def allgather_of_every_dtype_and_length() -> None:
    for dtype in GATHERED:
        rows = hvd.allgather(filled(hvd.rank() % 2, (hvd.rank() + 1, 2), dtype))
        expected = np.concatenate([np.full((r + 1, 2), r % 2) for r in range(hvd.size())])
        np.testing.assert_array_equal(rows, expected.astype(dtype))
    for mine in (keras.Variable([float(hvd.rank())]), np.array([hvd.rank()]), [hvd.rank()]):
        assert hvd.allgather(mine).numpy().tolist() == list(range(hvd.size()))
    a, b = hvd.grouped_allgather([[hvd.rank()], [1]])
    assert a.numpy().tolist() == list(range(hvd.size()))
    assert b.shape == (hvd.size(),)


def alltoall_with_and_without_splits() -> None:
    n = hvd.size()
    mine = np.arange(n, dtype=np.float32) + 10 * hvd.rank()
    received = hvd.alltoall(mine)
    np.testing.assert_array_equal(received, [10 * r + hvd.rank() for r in range(n)])
    splits = list(range(1, n + 1))
    received, lengths = hvd.alltoall(np.full(sum(splits), hvd.rank()), splits=splits)
    np.testing.assert_array_equal(lengths, [hvd.rank() + 1] * n)
    np.testing.assert_array_equal(received, np.repeat(np.arange(n), hvd.rank() + 1))


def broadcast_from_every_rank() -> None:
    for root in range(hvd.size()):
        for value in (np.float32(hvd.rank()), [hvd.rank()] * 3, keras.Variable(float(hvd.rank()))):
            assert np.all(hvd.broadcast(value, root).numpy() == root)
        v = keras.Variable([float(hvd.rank())])
        hvd.broadcast_([v], root)
        assert v.numpy().tolist() == [root]
        hvd.broadcast_variables([v], root_rank=root, inplace=True)


def reducescatter_gives_each_rank_its_part() -> None:
    n = hvd.size()
    part = hvd.reducescatter(np.arange(2 * n, dtype=np.float32), op=hvd.Sum)
    np.testing.assert_array_equal(part, n * np.arange(2 * hvd.rank(), 2 * hvd.rank() + 2))
    (grouped,) = hvd.grouped_reducescatter([np.arange(2.0 * n)], op=hvd.Average)
    np.testing.assert_array_equal(grouped, np.arange(2 * hvd.rank(), 2 * hvd.rank() + 2))


def other_reductions_are_horovods() -> None:
    x = tf.fill([3], hvd.rank() + 1.0)
    assert hvd.allreduce(x, op=hvd.Max).numpy().tolist() == [hvd.size()] * 3
    assert hvd.allreduce(x, op=hvd.Min).numpy().tolist() == [1.0] * 3
    product = float(np.prod(np.arange(1, hvd.size() + 1)))
    assert hvd.allreduce(x, op=hvd.Product).numpy().tolist() == [product] * 3
    opt = keras.optimizers.SGD
    for op in (hvd.Max, hvd.Adasum):
        fails(lambda op=op: hvd.DistributedOptimizer(opt(), op=op), ValueError)


def shapes_and_dtypes_that_differ_raise_on_all_and_work_goes_on() -> None:
    if hvd.size() == 1:
        return
    shape = (2 + hvd.rank(), 3)
    dtype = "int32" if hvd.rank() == 0 else "float32"
    for attempt in (
        lambda: hvd.allreduce(tf.ones(shape), name="shapes"),
        lambda: hvd.allreduce(tf.ones(3, dtype), op=hvd.Sum, name="dtypes"),
        lambda: hvd.broadcast(tf.ones(shape), 0, name="roots"),
    ):
        fails(attempt, tf.errors.OpError)
    big = (40 + hvd.rank(), 50)
    fails(lambda: hvd.allreduce(tf.ones(big), compression="fp16"), gc.MismatchError)
    np.testing.assert_array_equal(hvd.allreduce(tf.ones(3)), 1)


def ranks_and_sizes_are_operations_too() -> None:
    @tf.function
    def asked():
        return hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op()

    told = [int(value) for value in asked()]
    assert told == [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()]
    assert hvd.is_initialized()
    assert hvd.gloo_built()
    assert hvd.global_process_set.ranks == list(range(hvd.size()))
    assert stock.size() == hvd.size()


SCENARIOS = {
    f.__name__: f
    for f in (
        allreduce_of_every_dtype_and_rank,
        allreduce_of_plain_values,
        tensors_without_dimensions_or_elements_are_compressed,
        scale_factors_act_before_and_after,
        gradients_flow_through_allreduce,
        allgather_of_every_dtype_and_length,
        alltoall_with_and_without_splits,
        broadcast_from_every_rank,
        reducescatter_gives_each_rank_its_part,
        other_reductions_are_horovods,
        shapes_and_dtypes_that_differ_raise_on_all_and_work_goes_on,
        ranks_and_sizes_are_operations_too,
    )
}
