#!/usr/bin/env bash
# All tests, a file to each core at a time. With --cov: coverage of gradcomp/ in every process that they start.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

rm -f .coverage .coverage.*
python -m pytest -n "$(nproc)" --dist loadfile --no-loadscope-reorder --durations=15 "$@"
