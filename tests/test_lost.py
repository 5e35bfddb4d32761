"""Which of TensorFlow's errors mean that a worker is gone, and what is said of them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import gradcomp as gc
from gradcomp.distribute import lost

TRACE = "Graph execution error:\n\nDetected at node CollectiveReduceV2 defined at …\n"
ADVICE = "\nThe error could be from a previous operation. Restart your program to reset.\n\t [[{{…"


def failing(kind, message) -> tf.errors.OpError:
    with lost.told():
        raise kind(None, None, message)


@pytest.mark.parametrize(
    ("kind", "message", "told"),
    [
        (
            tf.errors.UnavailableError,
            f"{TRACE}Collective ops is aborted by: task:1 is\n unhealthy{ADVICE}",
            "UnavailableError: Collective ops is aborted by: task:1 is unhealthy",
        ),
        (
            tf.errors.DeadlineExceededError,
            "Collective has timed out during execution. [Op:CollectiveGatherV2] name: ",
            "DeadlineExceededError: Collective has timed out during execution.",
        ),
        (
            tf.errors.InternalError,
            f"Collective ops is aborted by: shapes differ{ADVICE}",
            "InternalError: Collective ops is aborted by: shapes differ",
        ),
    ],
)
def test_a_failed_collective_is_told_with_its_reason_and_cause(kind, message, told) -> None:
    with pytest.raises(gc.WorkerLostError, match="start all workers again") as caught:
        failing(kind, message)
    assert f"TensorFlow says {told}\n" in str(caught.value)
    assert type(caught.value.__cause__) is kind


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (tf.errors.UnavailableError, "reading gs://data failed"),
        (tf.errors.InvalidArgumentError, f"{TRACE}Collective shapes are wrong"),
    ],
)
def test_other_errors_stay_as_they_are(kind, message) -> None:
    with pytest.raises(kind, match=message[:8]):
        failing(kind, message)


def test_the_cause_outlives_an_error_of_a_callback() -> None:
    """Keras raises errors that leave `fit` again, "from None"."""

    def save(logs) -> None:
        failing(tf.errors.UnavailableError, "Collective ops is aborted by: a death")

    net = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    net.compile("sgd", "mse")
    callback = keras.callbacks.LambdaCallback(on_train_begin=save)
    with pytest.raises(gc.WorkerLostError) as caught, lost.told():
        net.fit(np.ones((1, 1)), np.ones((1, 1)), verbose=0, callbacks=[callback])
    assert type(caught.value.__cause__) is tf.errors.UnavailableError
