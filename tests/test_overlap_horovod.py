"""Communication overlaps with backward: read from Horovod's own timeline."""

import json
import re

import pytest
from ranks import launch, values
from scenarios_overlap import LAYERS, SCENARIOS, SLEEP

RANKS = 2


@pytest.fixture(scope="module")
def enqueued(tmp_path_factory) -> dict[str, list[float]]:
    """For each collective, the seconds at which rank 0 handed it to Horovod."""
    folder = tmp_path_factory.mktemp("ranks")
    timeline = folder / "timeline.json"
    outcomes = launch("scenarios_overlap", RANKS, folder, {"HOROVOD_TIMELINE": str(timeline)})
    for name in SCENARIOS:
        values(outcomes, name, RANKS)
    # The file is a JSON list that Horovod doesn't always close.
    text = timeline.read_text().rstrip().rstrip(",").rstrip("]").rstrip().rstrip(",")
    events = json.loads(text + "]")
    tensors = {
        e["pid"]: e["args"]["name"]
        for e in events
        if e.get("name") == "process_name" and "name" in e["args"]
    }
    starts: dict[str, list[float]] = {}
    for event in events:
        if event.get("ph") == "B" and str(event.get("name", "")).startswith("NEGOTIATE"):
            starts.setdefault(tensors[event["pid"]], []).append(event["ts"] / 1e6)
    return starts


# The second optimizer warms up: its steps are of two stages, whose collectives have other names.
@pytest.mark.parametrize("kind", ["tape0", "optimizer0", "optimizer1"])
def test_first_collective_starts_before_the_last_gradient_exists(enqueued, kind) -> None:
    buckets: dict[int, list[float]] = {}
    for name, times in enqueued.items():
        if found := re.search(rf"gradcomp\.{kind}\.bucket(\d+)\.", name):
            buckets.setdefault(int(found.group(1)), []).extend(times)
            buckets[int(found.group(1))].sort()
    assert sorted(buckets) == list(range(LAYERS))
    # Bucket 0 holds the last layer, whose gradient comes first; the last bucket has to wait for
    # the slow layer. What was enqueued before then was enqueued before the last gradient existed.
    for step in (-2, -1):
        last = buckets[LAYERS - 1][step]
        for early in range(LAYERS - 1):
            assert last - buckets[early][step] > 0.5 * SLEEP
