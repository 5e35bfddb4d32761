"""`python -m bench.activations`: memory, time and gradients with packed activations."""
