"""What `gc.CompressedAllReduce` and `gc.DistributedOptimizer` have in common, on two devices."""

import pytest
from ranks import values
from scenarios_replicas import SCENARIOS
from strategies import launch_devices

from gradcomp.distribute.replicas import mixed


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    return launch_devices("scenarios_replicas", tmp_path_factory.mktemp("devices"), timeout=560)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(outcomes, scenario) -> None:
    values(outcomes, scenario, 1)


def test_each_engine_is_named_once(outcomes) -> None:
    nobody = "there is nobody to exchange gradients with"
    assert values(outcomes, "the_engine_is_named_once", 1) == [
        [
            "the engine is MirroredStrategy with 2 replicas: gradients are exchanged",
            f"the engine is MirroredStrategy with 1 replica: {nobody}",
            f"the engine is OneDeviceStrategy with 1 replica: {nobody}",
        ]
    ]


@pytest.mark.parametrize(
    ("devices", "kinds"),
    [
        (["/job:localhost/replica:0/task:0/device:CPU:0", "/device:GPU:0"], ["CPU", "GPU"]),
        (["/replica:0/task:0/device:GPU:0", "/replica:0/task:0/device:GPU:1"], []),
        (["/job:worker/task:0/device:cpu:0", "/job:worker/task:0/device:CPU:1"], []),
        (["/device:TPU:0", "/device:CPU:0", "/device:CPU:1"], ["CPU", "TPU"]),
        (["/device:GPU:0"], []),
    ],
)
def test_devices_of_several_kinds(devices, kinds) -> None:
    assert mixed(devices) == kinds
