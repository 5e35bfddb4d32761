"""States of elastic training and their callbacks, on one rank, without a launch."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.runner.elastic.worker import HostUpdateResult

import gradcomp as gc
import gradcomp.horovod as hvd
from gradcomp import live, succession
from gradcomp.horovod.elastic.failures import lost_workers
from gradcomp.horovod.elastic.state import _agree

pytestmark = [
    pytest.mark.filterwarnings("ignore:there is one process only"),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
]

BATCHES = 6


@pytest.fixture(autouse=True)
def running():
    hvd.init()
    yield
    hvd.shutdown()


@pytest.fixture
def late(monkeypatch):
    monkeypatch.setattr(live, "late", True)


def make_model(**compile_options) -> keras.Model:
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(4)])
    opt = hvd.DistributedOptimizer(keras.optimizers.Adam(0.1), compression="quantize:bits=4")
    model.compile(opt, "mse", **compile_options)
    return model


def fit(model: keras.Model, epochs: int = 1, callbacks=(), **options) -> keras.callbacks.History:
    x = np.ones((BATCHES, 8), np.float32)
    y = np.ones((BATCHES, 4), np.float32)
    options = {"batch_size": 1, "verbose": 0, "shuffle": False, **options}
    return model.fit(x, y, epochs=epochs, callbacks=list(callbacks), **options)


def everything(model: keras.Model) -> list[bytes]:
    return [np.asarray(v).tobytes() for v in [*model.variables, *model.optimizer.variables]]


@pytest.mark.parametrize("make", [hvd.elastic.KerasState, hvd.elastic.TensorFlowKerasState])
def test_restore_returns_to_the_last_commit(make) -> None:
    model = make_model()
    state = make(model, batch=3, epoch=1)
    fit(model)
    state.batch = 5
    state.commit()
    committed = everything(model)
    fit(model)
    state.batch = 6
    assert everything(model) != committed
    state.restore()
    assert everything(model) == committed
    assert (state.batch, state.epoch) == (5, 1)


def test_a_model_that_was_never_committed_returns_to_its_start() -> None:
    model = make_model()
    state = hvd.elastic.KerasState(model)
    start = everything(model)
    fit(model)
    state.restore()
    assert everything(model) == start


def test_variables_of_tensorflow_and_keras_are_restored() -> None:
    variables = [
        tf.Variable([1.0, 2.0]),
        keras.Variable(np.float32(3)),
        tf.Variable(tf.constant([1.0, 3.0], tf.bfloat16)),
    ]
    state = hvd.elastic.TensorFlowState(variables, step=4)
    for variable in variables:
        variable.assign(0 * variable)
    state.step = 5
    state.restore()
    assert [np.asarray(v, np.float32).tolist() for v in variables] == [[1, 2], 3, [1, 3]]
    assert state.step == 4
    assert hvd.elastic.TensorFlowState(epoch=1).variables == []


def test_what_is_changed_before_the_first_sync_stays() -> None:
    model = make_model()
    state = hvd.elastic.KerasState(model, epoch=0)
    model.layers[0].kernel.assign(np.full((8, 4), 2.0))
    state.epoch = 7
    state.sync()
    assert np.all(model.layers[0].kernel == 2.0)
    assert state.epoch == 7
    state.restore()
    assert state.epoch == 7


def residuals_of(state: hvd.FeedbackState) -> list[np.ndarray]:
    return [variable.numpy() for variable in state.reducer.carried.values()]


def test_residuals_and_step_counters_are_restored_with_the_weights() -> None:
    feedback = hvd.FeedbackState()
    reduce = {"compression": "topk:density=0.1", "state": feedback}
    hvd.allreduce(tf.ones((100,)), **reduce)
    feedback.reducer.carry(0, np.full((100,), 3.0, np.float32))
    variable = tf.Variable(1.0)
    state = hvd.elastic.TensorFlowState([variable])
    hvd.allreduce(tf.ones((100,)), **reduce)  # sends it
    variable.assign(2.0)
    (residual,) = residuals_of(feedback)
    assert not residual.any()
    assert feedback.reducer.step == 1
    state.restore()
    (residual,) = residuals_of(feedback)
    assert np.all(residual == 3.0)
    assert (variable.numpy(), feedback.reducer.step.numpy()) == (1.0, 0)
    other = hvd.FeedbackState()
    hvd.allreduce(tf.ones((100,)), compression="topk:density=0.1", state=other)
    other.reducer.carry(0, np.full((100,), 5.0, np.float32))
    state.restore()
    (residual,) = residuals_of(other)
    assert not residual.any(), "nothing had been exchanged at the time of the commit"


def test_the_next_reducer_takes_over_from_one_that_retired() -> None:
    feedback = hvd.FeedbackState()
    reduce = {"compression": "topk:density=0.1", "state": feedback}
    hvd.allreduce(tf.ones((100,)), **reduce)
    first = feedback.reducer
    first.carry(0, np.full((100,), 3.0, np.float32))
    first.step.assign(9)
    state = hvd.elastic.TensorFlowState()
    for _ in range(2):  # twice before it is used
        state.restore()
        gc.horovod.collective.retire_all()
    result = hvd.allreduce(tf.ones((100,)), **reduce)
    assert feedback.reducer is not first
    assert np.all(result == 4.0)
    assert feedback.reducer.step == 10
    assert feedback.reducer.traffic().steps == 2
    state.restore()  # to a commit of the reducer before: the next one starts from there
    assert np.all(hvd.allreduce(tf.ones((100,)), **reduce) == 4.0)


def test_names_are_counted_anew_when_all_retire() -> None:
    gc.horovod.collective.retire_all()
    models = [make_model(), make_model()]
    for model in models:
        model.optimizer.build(model.trainable_variables)
    names = list(live.reducers())
    assert names == ["gradcomp.optimizer0", "gradcomp.optimizer1"]
    gc.horovod.collective.retire_all()
    assert live.reducers() == {}
    _ = models[1].optimizer.plan
    assert list(live.reducers()) == ["gradcomp.optimizer0"]
    kept = succession.take_all()
    assert len(kept) >= 2, "what the other one keeps, which was not made again, is committed too"


def test_a_reset_compiles_the_train_step_again() -> None:
    model = make_model()
    state = hvd.elastic.KerasState(model)
    fit(model)
    compiled = model.train_function
    gc.horovod.collective.retire_all()
    with pytest.raises(tf.errors.InvalidArgumentError, match="compiled for the ranks that there"):
        fit(model)
    state.on_reset()
    fit(model)
    assert model.train_function is not compiled


@pytest.mark.usefixtures("late")
def test_in_an_elastic_job_ranks_agree_at_the_first_sync() -> None:
    """A worker that joins must be able to build its optimizer alone."""
    model = make_model()
    state = hvd.elastic.KerasState(model)
    assert model.optimizer.built
    assert model.optimizer._reducer is None
    state.sync()
    assert model.optimizer._reducer.plan.world_size == 1


@pytest.mark.usefixtures("late")
def test_in_an_elastic_job_a_files_residuals_are_left_out_with_a_warning(tmp_path) -> None:
    model = make_model()
    hvd.elastic.KerasState(model).sync()
    model.save(tmp_path / "model.keras")
    prefix = tf.train.Checkpoint(optimizer=model.optimizer).save(str(tmp_path / "checkpoint"))
    with pytest.warns(UserWarning, match=r"not restored in an elastic job.*restore_state"):
        keras.models.load_model(tmp_path / "model.keras")
    with pytest.warns(UserWarning, match="not restored in an elastic job"):
        tf.train.Checkpoint(optimizer=model.optimizer).restore(prefix)


def test_run_restores_resets_and_calls_again_after_a_lost_worker() -> None:
    model = make_model()
    state = hvd.elastic.KerasState(model, batch=0)
    resets = []
    state.register_reset_callbacks([lambda: resets.append(state.batch)])
    seen = []

    @hvd.elastic.run
    def train(state, word: str) -> str:
        seen.append((state.batch, everything(model)))
        fit(model)
        if len(seen) == 1:
            state.batch = 1
            state.commit()
            seen.append(everything(model))
            fit(model)
            state.batch = 2
            raise tf.errors.UnknownError(None, None, "[[{{node HorovodAlltoall}}]] shut down")
        return word

    assert train(state, "done") == "done"
    (_, _), committed, (batch, again) = seen
    assert again == committed
    assert batch == 1
    assert resets == [1]


def test_run_rolls_nothing_back_when_hosts_change() -> None:
    """Also where the last commit is long ago, and where Horovod saw hosts removed only."""
    model = make_model()
    state = hvd.elastic.KerasState(model, batch=0)
    seen = []

    @hvd.elastic.run
    def train(state) -> None:
        seen.append((state.batch, everything(model)))
        if len(seen) == 1:
            fit(model)
            state.batch = 2
            state.on_hosts_updated(1, HostUpdateResult.removed)
            seen.append(everything(model))
            state.check_host_updates()

    train(state)
    _, left, (batch, again) = seen
    assert again == left
    assert batch == 2


def test_a_commit_tells_that_hosts_have_changed() -> None:
    state = hvd.elastic.TensorFlowState()
    state.commit()
    state.on_hosts_updated(1, HostUpdateResult.added)
    with pytest.raises(HostsUpdatedInterrupt):
        state.commit()


def test_only_a_failed_collective_is_a_lost_worker() -> None:
    with pytest.raises(tf.errors.UnknownError), lost_workers():
        raise tf.errors.UnknownError(None, None, "disk full")
    with pytest.raises(HorovodInternalError), lost_workers():
        raise tf.errors.UnknownError(None, None, "Horovod has been shut down")


@pytest.mark.parametrize(
    ("everyones", "agreed"),
    [
        ([[], []], (0, 0)),
        ([[4], [4]], (4, 0)),
        ([[], [4]], (4, 1)),
        ([[4, 5], [4], []], (4, 0)),  # the second was lost before it had saved
        ([[5], [4, 5]], (5, 0)),
        ([[7], [6, 7], [6]], (6, 1)),  # the first joined at a change that the third did not survive
    ],
)
def test_survivors_agree_on_a_commit_that_all_of_them_have(everyones, agreed) -> None:
    assert _agree(everyones) == agreed


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="Model must be built first"):
        hvd.elastic.KerasState(keras.Sequential([keras.layers.Dense(1)]))
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    with pytest.raises(ValueError, match="no optimizer: compile it first, or pass optimizer="):
        hvd.elastic.KerasState(model)
    with pytest.raises(ValueError, match="TensorFlow 2 has no sessions"):
        hvd.elastic.TensorFlowState(session=object())
    state = hvd.elastic.TensorFlowState()
    with pytest.raises(ValueError, match=r"no attribute 'batch'.*batch=0"):
        hvd.elastic.UpdateBatchStateCallback(state)
    with pytest.raises(ValueError, match="batches_per_commit must be at least 1, got 0"):
        hvd.elastic.CommitStateCallback(state, batches_per_commit=0)


class Log(keras.callbacks.Callback):
    """What state has at each commit: (epoch, batch, updates of the model)."""

    def __init__(self, state) -> None:
        super().__init__()
        self.commits = []
        commit = state.commit

        def logged() -> None:
            commit()
            steps = int(state.model.optimizer.iterations)
            self.commits.append((state.epoch, state.batch, steps))

        state.commit = logged


@pytest.mark.parametrize("commit_first", [True, False])
def test_a_commit_holds_where_training_is_in_any_order_of_callbacks(commit_first) -> None:
    model = make_model()
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)
    log = Log(state)
    callbacks = [
        hvd.elastic.CommitStateCallback(state, batches_per_commit=4),
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.UpdateEpochStateCallback(state),
    ]
    fit(model, 2, callbacks if commit_first else callbacks[::-1])
    assert log.commits == [(0, 4, 4), (1, 0, 6), (1, 2, 8), (2, 0, 12)]


@pytest.mark.parametrize("batches_per_commit", [1, 4, BATCHES])
def test_epochs_are_whole_wherever_a_commit_interrupts_them(batches_per_commit) -> None:
    model = make_model()
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)
    resets = 0

    @hvd.elastic.run
    def train(state) -> None:
        nonlocal resets
        resets += 1
        assert resets <= 2 * BATCHES + 2, "it does not get on"
        state.on_hosts_updated(resets, HostUpdateResult.added)  # the next commit interrupts
        callbacks = [
            hvd.elastic.CommitStateCallback(state, batches_per_commit),
            hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.UpdateEpochStateCallback(state),
        ]
        fit(model, 2 - state.epoch, callbacks)

    train(state)
    assert resets > 1
    assert (state.epoch, state.batch, int(model.optimizer.iterations)) == (2, 0, 2 * BATCHES)


@pytest.mark.parametrize("initial", [0, 1])
def test_the_first_epoch_is_shortened_and_epochs_count_on(initial) -> None:
    """Whether the script gives `fit` the epochs that are left, or the number of the first."""
    model = make_model()
    state = hvd.elastic.KerasState(model, batch=4, epoch=1)
    callbacks = [
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.UpdateEpochStateCallback(state),
    ]
    for _ in range(2):
        fit(model, 2 + initial, callbacks, initial_epoch=initial)
    assert (state.batch, state.epoch) == (0, 5)
    assert model.optimizer.iterations == 2 + 3 * BATCHES


def test_early_stopping_ends_a_shortened_epoch_and_training() -> None:
    model = make_model()
    state = hvd.elastic.KerasState(model, batch=4)

    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None) -> None:
            self.model.stop_training = True

    fit(model, 3, [Stop(), hvd.elastic.UpdateBatchStateCallback(state)])
    assert model.optimizer.iterations == 2


def test_batches_of_one_execution_are_counted_together() -> None:
    model = make_model(steps_per_execution=3)
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)
    log = Log(state)
    callbacks = [
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.CommitStateCallback(state, batches_per_commit=2),
    ]
    fit(model, 1, callbacks)
    assert log.commits == [(0, 3, 3), (0, 0, 6)]
