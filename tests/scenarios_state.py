"""A rank's residuals in checkpoints, Keras files and broadcasts, between two Horovod ranks."""

from __future__ import annotations

import os
import tempfile
import warnings
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from scenarios_training import data, loss, model, weights_agree

import gradcomp as gc
import gradcomp.horovod as hvd
from gradcomp.reducer import Reducer

FOLDER = Path(os.environ.get("STATE_FOLDER", tempfile.gettempdir()))


def trained(seed: int = 1, epochs: int = 2, **compile_options) -> keras.Model:
    net = model(seed)
    opt = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), compression="quantize:bits=4")
    net.compile(opt, loss(), **compile_options)
    if epochs:
        fit(net, epochs)
    else:
        net.optimizer.build(net.trainable_variables)
    return net


def fit(net: keras.Model, epochs: int = 1) -> None:
    net.fit(*data(hvd.rank()), batch_size=32, epochs=epochs, verbose=0, shuffle=False)


def reducer_of(optimizer) -> Reducer:
    return getattr(optimizer, "inner_optimizer", optimizer)._reducer


def kept(net: keras.Model) -> list[bytes]:
    reducer = reducer_of(net.optimizer)
    variables = [reducer.step, *reducer.residuals.values(), *reducer.chunk_residuals.values()]
    return [v.numpy().tobytes() for v in variables]


def everything(net: keras.Model) -> list[bytes]:
    variables = [*net.weights, *net.optimizer.variables]
    return [v.numpy().tobytes() for v in variables] + kept(net)


def differ_between_ranks(net: keras.Model) -> None:
    residuals = reducer_of(net.optimizer).residuals
    assert all(np.any(r.numpy()) for r in residuals.values() if r.shape.rank > 1)
    assert len(set(hvd.allgather_object(b"".join(kept(net))))) == hvd.size()


def warned(action) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    return [str(w.message) for w in caught if "residuals" in str(w.message)]


def broadcasts_leave_residuals_alone() -> None:
    net = trained()
    differ_between_ranks(net)
    before = kept(net)
    numbers = {id(v) for v in reducer_of(net.optimizer).residuals.values()}
    variables = [*net.weights, *net.optimizer.variables]
    assert not numbers & {id(v.value) for v in variables}
    hvd.broadcast_variables(variables, root_rank=0)
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    callback.set_model(net)
    callback.on_train_begin()
    callback.on_train_batch_end(0)
    assert kept(net) == before
    differ_between_ranks(net)


def a_checkpoint_of_each_rank_continues_bit_for_bit() -> None:
    """Restored before the optimizer is built, and after it."""
    net = trained()
    differ_between_ranks(net)
    prefix = str(FOLDER / f"checkpoint{hvd.rank()}")
    path = tf.train.Checkpoint(model=net, optimizer=net.optimizer).save(prefix)
    saved = everything(net)
    fit(net)
    for build in (True, False):
        other = model(2)
        opt = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), compression="quantize:bits=4")
        other.compile(opt, loss())
        if build:
            opt.build(other.trainable_variables)
        said = warned(
            lambda other=other: (
                tf.train.Checkpoint(model=other, optimizer=other.optimizer)
                .restore(path)
                .assert_existing_objects_matched()
            )
        )
        if not build:
            said += warned(lambda opt=opt, other=other: opt.build(other.trainable_variables))
        assert said == []
        assert everything(other) == saved
        fit(other)
        assert everything(other) == everything(net)


def a_checkpoint_of_one_rank_leaves_the_others_at_zero() -> list[str]:
    net = trained()
    saved = kept(net)
    path = str(FOLDER / "checkpoint_of_one")
    if hvd.rank() == 0:
        path = tf.train.Checkpoint(model=net, optimizer=net.optimizer).save(path)
    path = hvd.broadcast_object(path)
    said = warned(lambda: tf.train.Checkpoint(model=net, optimizer=net.optimizer).restore(path))
    assert weights_agree(net)
    if hvd.rank() == 0:
        assert kept(net) == saved
    else:
        assert not any(np.any(r) for r in reducer_of(net.optimizer).residuals.values())
    fit(net)
    assert weights_agree(net)
    return said


def keras_files_continue_bit_for_bit() -> None:
    net = trained()
    path = str(FOLDER / f"model{hvd.rank()}.keras")
    net.save(path)
    loaded = None

    def load() -> None:
        nonlocal loaded
        loaded = keras.models.load_model(path)

    said = warned(load)
    assert said == []
    assert everything(loaded) == everything(net)
    assert len(loaded.optimizer.variables) == len(net.optimizer.variables)
    fit(net)
    fit(loaded)
    assert everything(loaded) == everything(net)


def a_keras_file_of_one_rank_leaves_the_others_at_zero() -> list[str]:
    net = trained()
    path = str(FOLDER / "model_of_one.keras")
    if hvd.rank() == 0:
        net.save(path)
    hvd.allgather_object("saved")
    loaded = None

    def load() -> None:
        nonlocal loaded
        loaded = keras.models.load_model(path)

    said = warned(load)
    residuals = reducer_of(loaded.optimizer).residuals.values()
    assert any(np.any(r) for r in residuals) == (hvd.rank() == 0)
    assert weights_agree(loaded)
    return said


def loss_scaling_keeps_residuals_in_both_files() -> None:
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        net = trained()
        assert isinstance(net.optimizer, gc.LossScaleOptimizer)
        differ_between_ranks(net)
        prefix = str(FOLDER / f"scaled{hvd.rank()}")
        path = tf.train.Checkpoint(model=net, optimizer=net.optimizer).save(prefix)
        net.save(f"{prefix}.keras")
        loaded = keras.models.load_model(f"{prefix}.keras")
        other = trained(seed=3, epochs=0)
        tf.train.Checkpoint(model=other, optimizer=other.optimizer).restore(path)
        for copy in (loaded, other):
            assert isinstance(copy.optimizer, gc.LossScaleOptimizer)
            assert everything(copy) == everything(net)
    finally:
        keras.mixed_precision.set_global_policy("float32")


def a_saved_model_can_be_written() -> None:
    net = trained()
    path = str(FOLDER / f"saved_model{hvd.rank()}")
    tf.saved_model.save(net, path)
    x = data(hvd.rank())[0]
    served = tf.saved_model.load(path).signatures["serving_default"](tf.constant(x))
    np.testing.assert_allclose(next(iter(served.values())), net(x), atol=1e-5)


def another_model_in_a_checkpoint_raises() -> None:
    from gradcomp.own_state import from_bytes, to_bytes

    net = trained(epochs=0)
    other = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), compression="quantize:bits=4")
    other.build([keras.Variable(np.zeros((40, 40), np.float32)) for _ in net.trainable_variables])
    try:
        from_bytes(reducer_of(net.optimizer), to_bytes(reducer_of(other)))
    except gc.StateError as error:
        assert "shape" in str(error)
    else:
        raise AssertionError("another shape must raise")


SCENARIOS = {
    f.__name__: f
    for f in (
        broadcasts_leave_residuals_alone,
        a_checkpoint_of_each_rank_continues_bit_for_bit,
        a_checkpoint_of_one_rank_leaves_the_others_at_zero,
        keras_files_continue_bit_for_bit,
        a_keras_file_of_one_rank_leaves_the_others_at_zero,
        loss_scaling_keeps_residuals_in_both_files,
        a_saved_model_can_be_written,
        another_model_in_a_checkpoint_raises,
    )
}
