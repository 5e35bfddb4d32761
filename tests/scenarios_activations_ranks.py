"""The scenarios of `scenarios_activations` that Horovod's ranks run."""

from scenarios_activations import in_xla_on_ranks, on_ranks

SCENARIOS = {"on_ranks": on_ranks, "in_xla": in_xla_on_ranks}
