#!/usr/bin/env bash
# All tests, with coverage of gradcomp/ in every process that they start.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

rm -f .coverage .coverage.*
python -m pytest --cov --cov-report=term --durations=15
