#!/usr/bin/env bash
# Brings .venv, Horovod and the extension up to date; every step whose inputs are unchanged is skipped.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

mkdir -p build
exec 9>build/.setup.lock
flock 9 # two makes at once: the second waits, then finds everything done

.ci/system.sh

python=${PYTHON:-python3}
if ! "$VENV/bin/python" -c '' 2>/dev/null; then
  echo "[2/5] creating .venv with $("$python" --version)"
  logged venv "Remove .venv and run make again." "$python" -m venv --clear "$VENV"
fi

stamped packages "$ROOT $TENSORFLOW_VERSION $(digest pyproject.toml .ci/packages.sh)" \
  "[3/5] installing TensorFlow $TENSORFLOW_VERSION and the Python packages (about 1 minute) ..." \
  "The packages come from pip's configured index: check the network and run make again; what was fetched is kept." \
  .ci/packages.sh

stamped horovod "$TENSORFLOW_VERSION $(digest gradcomp/build_horovod.sh) $(command -v mpicxx || true)" \
  "[4/5] building Horovod for TensorFlow $TENSORFLOW_VERSION (about 3 minutes) ..." \
  "The build needs g++, make and 2 GB of free memory a core." \
  env PYTHON="$VENV/bin/python" CCACHE_BASEDIR="${TMPDIR:-/tmp}" sh gradcomp/build_horovod.sh # where pip unpacks it

.ci/extension.sh
