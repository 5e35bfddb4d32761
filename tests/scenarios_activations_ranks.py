"""The scenario of `scenarios_activations` that Horovod's ranks run."""

from scenarios_activations import on_ranks

SCENARIOS = {"on_ranks": on_ranks}
