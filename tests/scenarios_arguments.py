"""Horovod's arguments mean what they mean in Horovod, on an optimizer, a tape and allreduce."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import horovod.tensorflow as stock
import keras
import numpy as np
import tensorflow as tf
from reports import exchange_of
from scenarios_callbacks import fails
from scenarios_training import data, loss, model, weights_agree

import gradcomp as gc
import gradcomp.horovod as hvd

SGD = keras.optimizers.SGD
CODECS = (None, "quantize:bits=8")
PAIR = stock.ProcessSet([0, 2])  # two of three ranks, of which one is not rank 0
PROCESS_SETS = [PAIR, stock.ProcessSet([1])]
INSIDE = (0, 2)


def gradient_of(rank: int, step: int, scale: float = 1.0) -> np.ndarray:
    rng = np.random.default_rng([rank, step])
    return (scale * rng.standard_normal((40, 30))).astype(np.float32)


def ranks_mean(step: int) -> np.ndarray:
    return np.mean([gradient_of(r, step) for r in range(hvd.size())], axis=0)


def zeros() -> keras.Variable:
    return keras.Variable(np.zeros((40, 30), np.float32))


def passes_are_summed_or_averaged_and_exchanged_once() -> None:
    for compression in CODECS:
        for averaged, op in ((False, hvd.Average), (True, hvd.Average), (False, hvd.Sum)):
            opt = hvd.DistributedOptimizer(
                SGD(1.0),
                compression=compression,
                op=op,
                backward_passes_per_step=3,
                average_aggregated_gradients=averaged,
            )
            v = zeros()
            for step in range(6):
                opt.apply([tf.constant(gradient_of(hvd.rank(), step))], [v])
                if step == 1:
                    assert not v.numpy().any(), "used before three were there"
            assert opt.traffic().steps == 2
            assert opt.iterations.numpy() == 2
            expected = -sum(ranks_mean(step) for step in range(6))
            expected = expected / 3 if averaged else expected
            expected = expected * hvd.size() if op == hvd.Sum else expected
            largest = np.abs(expected).max()
            tolerance = 1e-6 * largest if compression is None else 0.02 * largest
            np.testing.assert_allclose(v.numpy(), expected, atol=tolerance)
            # What 8 bits dropped is in the residual, in the units of what was exchanged.
            if compression:
                reducer = opt._reducer
                mine = reducer.residuals[0].numpy() * (1 if op == hvd.Sum else 1 / hvd.size())
                second = np.zeros(v.shape, np.float32).reshape(-1)
                for r, chunk in enumerate(
                    hvd.allgather_object([c.numpy() for c in reducer.chunk_residuals.values()])
                ):
                    at = 0
                    for _, start, length, _, _ in opt.plan.buckets[0].chunks[r].segments:
                        second[start : start + length] = chunk[0][at : at + length]
                        at += length
                waiting = sum(hvd.allgather_object(mine)) + second.reshape(v.shape)
                np.testing.assert_allclose(
                    v.numpy() - waiting, expected, atol=3e-6 * largest, err_msg=f"{averaged} {op}"
                )


def passes_in_fit_equal_keras_own_accumulation() -> None:
    """The mean of the passes is what Keras's option does; their sum is k times that to SGD."""
    weights = []
    for make in (
        lambda: hvd.DistributedOptimizer(SGD(0.1, gradient_accumulation_steps=2)),
        lambda: hvd.DistributedOptimizer(
            SGD(0.1), backward_passes_per_step=2, average_aggregated_gradients=True
        ),
        lambda: hvd.DistributedOptimizer(SGD(0.05), backward_passes_per_step=2),
    ):
        net = model(seed=1)
        net.compile(make(), loss())
        net.fit(*data(hvd.rank()), batch_size=24, epochs=2, verbose=0, shuffle=False)
        assert net.optimizer.traffic().steps == 4
        assert weights_agree(net)
        weights.append(net.get_weights())
    for theirs, averaged, summed in zip(*weights, strict=True):
        np.testing.assert_array_equal(averaged, theirs)
        np.testing.assert_allclose(summed, theirs, atol=1e-6)


def passes_of_slices_are_accumulated_in_tensors() -> None:
    v = keras.Variable(np.zeros((50, 40), np.float32))
    opt = hvd.DistributedOptimizer(
        SGD(1.0), compression="quantize:bits=8", backward_passes_per_step=2
    )
    for _ in range(2):
        rows = tf.IndexedSlices(
            tf.ones((2, 40)), tf.constant([hvd.rank(), 7]), tf.constant([50, 40])
        )
        opt.apply([rows], [v])
    expected = np.zeros((50, 40), np.float32)
    expected[: hvd.size()] = -2 / hvd.size()
    expected[7] = -2
    np.testing.assert_allclose(v.numpy(), expected, atol=0.02)
    assert opt.traffic().sent_bytes < 50 * 40 * 4


def passes_survive_saving() -> None:
    for averaged in (False, True):
        opt = hvd.DistributedOptimizer(
            SGD(0.05),
            compression="quantize:bits=8",
            backward_passes_per_step=2,
            average_aggregated_gradients=averaged,
            gradient_predivide_factor=3.0,
            sparse_as_dense=True,
            process_set=PAIR if hvd.rank() in INSIDE else PROCESS_SETS[1],
        )
        net = model(seed=1)
        net.compile(opt, loss())
        net.fit(*data(hvd.rank()), batch_size=32, epochs=1, verbose=0, shuffle=False)
        assert net.optimizer._accumulated_gradients[0].numpy().any(), "nothing is under way"
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "m.keras")
            net.save(path)
            loaded = keras.models.load_model(path)
        assert loaded.optimizer.options == opt.options
        assert loaded.optimizer.gradient_accumulation_steps == 2
        assert opt.options.times_accumulated == (1 if averaged else 2)
        for n in (net, loaded):
            n.fit(*data(hvd.rank()), batch_size=32, epochs=2, verbose=0, shuffle=False)
        for ours, theirs in zip(loaded.get_weights(), net.get_weights(), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def passes_under_loss_scaling_skip_what_overflows_on_one_rank() -> None:
    keras.config.set_dtype_policy("mixed_float16")
    try:
        opt = hvd.DistributedOptimizer(
            SGD(1.0), compression="quantize:bits=8", backward_passes_per_step=2
        )
        assert isinstance(opt, gc.LossScaleOptimizer)
        assert opt.inner_optimizer.gradient_accumulation_steps == 2
        v = zeros()
        opt.build([v])
        for bad, value in enumerate((1.0, np.inf, 1.0)):
            scale = float(opt.dynamic_scale.numpy())
            mine = value if hvd.rank() == 1 else 1.0
            opt.apply([tf.fill((40, 30), mine * scale)], [v])
            assert bool(v.numpy().any()) == (bad == 2)
        np.testing.assert_allclose(v.numpy(), -2.0, rtol=0.02)
        assert opt.traffic().steps == 1
    finally:
        keras.config.set_dtype_policy("float32")


def predividing_is_horovods_where_nothing_is_compressed() -> None:
    for factor in (2.0, 7.0):
        for compression in (None, gc.Identity()):
            v, options = zeros(), {"gradient_predivide_factor": factor}
            opt = hvd.DistributedOptimizer(SGD(1.0), compression=compression, **options)
            opt.apply([tf.constant(gradient_of(hvd.rank(), 0))], [v])
            theirs = stock.allreduce(
                tf.constant(gradient_of(hvd.rank(), 0)),
                op=stock.Average,
                prescale_factor=1 / factor,
                postscale_factor=factor,
            )
            np.testing.assert_allclose(v.numpy(), -theirs, rtol=1e-6, atol=1e-7)
    # Three times 3e38 is more than float32 has.
    for factor, finite in ((1.0, False), (4.0, True)):
        source = tf.Variable(tf.zeros((40, 30)))
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(source * 3e38)
        tape = hvd.DistributedGradientTape(tape, gradient_predivide_factor=factor)
        assert np.isfinite(tape.gradient(value, source)).all() == finite


def predividing_changes_no_bit_of_what_is_encoded() -> None:
    found = []
    for factor in (1.0, 4.0):
        v = zeros()
        opt = hvd.DistributedOptimizer(
            SGD(1.0), compression="topk:density=0.1", gradient_predivide_factor=factor
        )
        for step in range(3):
            opt.apply([tf.constant(gradient_of(hvd.rank(), step))], [v])
        found.append(v.numpy().tobytes())
    assert found[0] == found[1]


def slices_become_tensors_if_asked() -> None:
    given: list[Any] = []

    class Watching(SGD):
        def update_step(self, gradient, variable, learning_rate):
            given.append(type(gradient))
            super().update_step(gradient, variable, learning_rate)

    for compression in CODECS:
        weights = []
        for dense in (False, True):
            v = keras.Variable(np.zeros((50, 40), np.float32))
            opt = hvd.DistributedOptimizer(
                Watching(1.0), compression=compression, sparse_as_dense=dense
            )
            rows = tf.IndexedSlices(
                tf.ones((3, 40)), tf.constant([hvd.rank(), 7, 7]), tf.constant([50, 40])
            )
            given.clear()
            opt.apply([rows], [v])
            assert issubclass(given[0], tf.IndexedSlices) != dense
            weights.append(v.numpy())
        np.testing.assert_allclose(*weights, atol=1e-6 if compression is None else 0.02)
    table = tf.Variable(tf.ones((50, 40)))
    for dense in (False, True):
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(tf.gather(table, [hvd.rank(), 7]))
        tape = hvd.DistributedGradientTape(tape, sparse_as_dense=dense)
        gradient = tape.gradient(value, table, use_generic_names=True)
        assert isinstance(gradient, tf.IndexedSlices) != dense
        np.testing.assert_allclose(tf.convert_to_tensor(gradient)[7], 1.0, rtol=1e-6)


def arguments_may_be_given_in_horovods_order() -> None:
    opt = hvd.DistributedOptimizer(
        SGD(1.0), "mine", "", "", stock.Compression.fp16, True, 1.0, hvd.Sum, 2, True, 0, None, PAIR
    )
    assert opt.name == "mine"
    assert opt.options.policy == gc.Policy("fp16")
    assert opt.options.backward_passes_per_step == 2
    assert opt.options.process_set == INSIDE
    assert (opt.options.average, opt.options.sparse_as_dense) == (False, True)
    tape = hvd.DistributedGradientTape(
        tf.GradientTape(), "", "", stock.Compression.none, True, hvd.Average, 2.0, 0, None
    )
    assert tape._options.gradient_predivide_factor == 2.0
    total = hvd.allreduce(tf.ones(2), False, "", "", stock.Compression.none, None, 1.0, 2.0, "mine")
    np.testing.assert_array_equal(total, [2.0 * hvd.size()] * 2)


def a_set_reduces_among_its_ranks_and_others_keep_their_own() -> None:
    members = [r for r in INSIDE]
    for compression in CODECS:
        v = zeros()
        opt = hvd.DistributedOptimizer(SGD(1.0), compression=compression, process_set=PAIR)
        for step in range(3):
            opt.apply([tf.constant(gradient_of(hvd.rank(), step))], [v])
        mine = members if hvd.rank() in INSIDE else [hvd.rank()]
        expected = -sum(gradient_of(r, s) for r in mine for s in range(3)) / len(mine)
        inside = hvd.rank() in INSIDE
        np.testing.assert_allclose(
            v.numpy(), expected, atol=0.05 if compression and inside else 1e-6
        )
        everyones = hvd.allgather_object(v.numpy().tobytes())
        assert everyones[0] == everyones[2] != everyones[1]
        assert opt.alone == (not inside)
        assert opt.plan.world_size == len(mine)
        assert (opt.traffic().sent_bytes > 0) == inside
        exchange = exchange_of(opt._reducer.name)
        among = f"a process set of Horovod with {len(INSIDE)} ranks"
        assert exchange.engine == (among if inside else "one process")
        told = ("compressed" if compression else "sent dense") if inside else "not sent"
        assert exchange.variables[0].happened == told
        source = tf.Variable(tf.zeros((40, 30)))
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(source * gradient_of(hvd.rank(), 0))
        tape = hvd.DistributedGradientTape(tape, compression=compression, process_set=PAIR)
        expected = sum(gradient_of(r, 0) for r in mine) / len(mine)
        np.testing.assert_allclose(tape.gradient(value, source), expected, atol=0.03)


def members_may_make_what_others_do_not() -> None:
    """Each set counts its own reducers, so that those of all ranks still find each other."""
    if hvd.rank() in INSIDE:
        for _ in range(2):
            opt = hvd.DistributedOptimizer(SGD(1.0), compression="fp16", process_set=PAIR)
            opt.apply([tf.constant(gradient_of(hvd.rank(), 0))], [zeros()])
    v = zeros()
    opt = hvd.DistributedOptimizer(SGD(1.0), compression="fp16")
    opt.apply([tf.constant(gradient_of(hvd.rank(), 0))], [v])
    np.testing.assert_allclose(v.numpy(), -ranks_mean(0), atol=2e-3)


def allreduce_within_a_set() -> str:
    x = tf.constant(gradient_of(hvd.rank(), 0))
    reduce = [
        lambda: hvd.allreduce(x, compression="quantize:bits=8", process_set=PAIR),
        lambda: hvd.grouped_allreduce(
            [x], compression="fp16", process_set=PAIR, state=hvd.FeedbackState()
        )[0],
    ]
    if hvd.rank() not in INSIDE:
        told = {fails(attempt, ValueError) for attempt in reduce}
        assert len(told) == 1
        return told.pop()
    for attempt in (*reduce, lambda: hvd.allreduce(x, process_set=PAIR)):
        expected = (gradient_of(0, 0) + gradient_of(2, 0)) / 2
        np.testing.assert_allclose(attempt(), expected, atol=0.03)
    return ""


def weights_are_compared_within_the_set_that_trains_them() -> None:
    net = model(seed=1)
    net.compile(hvd.DistributedOptimizer(SGD(0.1), process_set=PAIR), loss())
    # Who is outside has other weights from the first step on.
    net.fit(*data(hvd.rank()), epochs=1, verbose=0, callbacks=[gc.CheckSync(every=2)])
    gc.check_sync(net)
    assert not weights_agree(net)
    told = fails(lambda: gc.check_sync(net.trainable_variables), gc.OutOfSyncError)
    assert "ranks 0, 2 and rank 1" in told
    if hvd.rank() == 2:
        net.trainable_variables[0].assign(net.trainable_variables[0] + 1)
    if hvd.rank() in INSIDE:
        assert "1 of 6 weights" in fails(lambda: gc.check_sync(net), gc.OutOfSyncError)


def state_of_sets_is_saved_and_restored() -> None:
    """Two sets at once, each with a residual on each of its ranks, beside one of all ranks."""
    folder = Path(hvd.broadcast_object(tempfile.mkdtemp()))

    def make() -> list:
        opts = [
            hvd.DistributedOptimizer(SGD(1.0), compression="topk:density=0.1", process_set=s)
            for s in (PAIR, hvd.global_process_set)
        ]
        for opt in opts:
            opt.build([zeros()])
        return opts

    def step(opts: list, number: int) -> list[bytes]:
        for opt in opts:
            opt.apply([tf.constant(gradient_of(hvd.rank(), number))])
        reducers = [opt._reducer for opt in opts]
        kept = [r.residuals[0].numpy() for r in reducers if r.residuals]
        variables = [opt._trainable_variables[0].numpy() for opt in opts]
        return [x.tobytes() for x in (*kept, *variables)]

    opts = make()
    step(opts, 0)
    kept = [r.numpy() for opt in opts for r in opt._reducer.residuals.values()]
    assert len(kept) == (2 if hvd.rank() in INSIDE else 1)
    assert all(k.any() for k in kept)
    before = [opt._trainable_variables[0].numpy() for opt in opts]
    gc.save_state(folder)
    expected = step(opts, 1)
    for opt, value in zip(opts, before, strict=True):
        opt._trainable_variables[0].assign(value)
        for residual in opt._reducer.residuals.values():
            residual.assign(tf.zeros_like(residual))
    assert gc.restore_state(folder) is not None
    assert step(opts, 1) == expected


def what_has_no_meaning_is_refused() -> list[str]:
    v = zeros()
    built = SGD(1.0)
    built.build([v])
    make, tape = hvd.DistributedOptimizer, hvd.DistributedGradientTape
    x = tf.ones((40, 30))
    attempts = [
        lambda: make(SGD(gradient_accumulation_steps=2), backward_passes_per_step=3),
        lambda: make(built, backward_passes_per_step=2),
        lambda: make(SGD(), backward_passes_per_step=0),
        lambda: make(SGD(), gradient_predivide_factor=2.0, op=hvd.Sum),
        lambda: make(SGD(), gradient_predivide_factor=0.0),
        lambda: make(SGD(), process_set=[0, 2]),
        lambda: tape(tf.GradientTape(), process_set=stock.ProcessSet([0, 1])),
        lambda: make(SGD(), process_set=PAIR, hierarchical=True),
        lambda: make(SGD(), scale_local_gradients=False),
        lambda: make(SGD(), use_locking=True),
        lambda: make(SGD(), device_dense="/gpu:0"),
        lambda: make(SGD(), groups=[[v]]),
        lambda: tape(tf.GradientTape(), gradient_predivide_factor=2.0, op=hvd.Sum),
        lambda: hvd.allreduce(x, "loss"),
        lambda: hvd.allreduce(x, True, op=hvd.Sum),
        lambda: hvd.allreduce(x, process_set=stock.ProcessSet([0, 1])),
        lambda: hvd.allreduce(x, compression="fp16", postscale_factor=2.0),
    ]
    told = []
    for attempt in attempts:
        try:
            attempt()
            told.append("accepted")
        except (TypeError, ValueError) as error:
            told.append(str(error))
    return told


def a_saved_set_that_is_not_there_is_named() -> str:
    opt = hvd.DistributedOptimizer(SGD(0.1), process_set=PAIR)
    config = opt.get_config()
    config["gradcomp"]["process_set"] = [0, 1]
    again = type(opt).from_config(config)
    return fails(lambda: again.build([zeros()]), ValueError)


def hosts_need_process_sets_to_be_added() -> str:
    opt = hvd.DistributedOptimizer(SGD(0.1), compression="fp16", hierarchical=True)
    return fails(lambda: opt.build([zeros()]), RuntimeError)


SCENARIOS = {
    f.__name__: f
    for f in (
        passes_are_summed_or_averaged_and_exchanged_once,
        passes_in_fit_equal_keras_own_accumulation,
        passes_of_slices_are_accumulated_in_tensors,
        passes_survive_saving,
        passes_under_loss_scaling_skip_what_overflows_on_one_rank,
        predividing_is_horovods_where_nothing_is_compressed,
        predividing_changes_no_bit_of_what_is_encoded,
        slices_become_tensors_if_asked,
        arguments_may_be_given_in_horovods_order,
        a_set_reduces_among_its_ranks_and_others_keep_their_own,
        members_may_make_what_others_do_not,
        allreduce_within_a_set,
        weights_are_compared_within_the_set_that_trains_them,
        state_of_sets_is_saved_and_restored,
        what_has_no_meaning_is_refused,
        a_saved_set_that_is_not_there_is_named,
        hosts_need_process_sets_to_be_added,
    )
}
