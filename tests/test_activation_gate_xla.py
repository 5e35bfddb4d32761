"""Under XLA, too, a second run saves memory only because it waits."""

from __future__ import annotations

from test_activation_memory import peak


def test_without_the_gate_nothing_is_saved_under_xla() -> None:
    # Without it XLA finds that the second run is the first. Both with what it takes to compile.
    waiting, not_waiting = peak("identity+recompute+xla"), peak("identity+recompute+open+xla")
    print(waiting, not_waiting)
    assert not_waiting > 1.3 * waiting
