"""Two logical CPU devices, on which a strategy's replicas run."""

from __future__ import annotations

import tensorflow as tf

REPLICAS = 2


def make_strategy(
    threads: int, cross_device_ops: tf.distribute.CrossDeviceOps | None = None
) -> tf.distribute.MirroredStrategy:
    """A MirroredStrategy of two logical CPU devices; called before TensorFlow is used.

    Args:
      threads: of TensorFlow's pools, for the two replicas together.
      cross_device_ops: None is the strategy's own choice.
    """
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    tf.config.set_visible_devices([], "GPU")  # the same run on every machine
    (cpu,) = tf.config.list_physical_devices("CPU")
    devices = [tf.config.LogicalDeviceConfiguration()] * REPLICAS
    tf.config.set_logical_device_configuration(cpu, devices)
    return tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(REPLICAS)], cross_device_ops=cross_device_ops
    )
