#!/bin/sh
# Builds and installs Horovod for the TensorFlow of $PYTHON (python3 by default), for CPUs with Gloo,
# and with MPI where its compiler wrapper mpicxx is found, unless HOROVOD_WITHOUT_MPI=1 is set.
# For NCCL set HOROVOD_GPU_OPERATIONS=NCCL as Horovod's manual says.
# Needs g++ and make; takes about two minutes on two cores.
set -eu

python=$(command -v "${PYTHON:-python3}")
PATH=$(dirname "$python"):$PATH # for the cmake installed below

tensorflow=$("$python" -c 'import importlib.util, os; print(os.path.dirname(importlib.util.find_spec("tensorflow").origin))') || {
  echo "Install TensorFlow first: $python -m pip install 'tensorflow>=2.15,<2.22'" >&2
  exit 1
}

# One file of Horovod includes four headers that a CPU build does not use. From TensorFlow 2.19 on
# the wheels lack some of them, or what these include in turn; empty ones do instead.
shim=$(mktemp -d)
trap 'rm -rf "$shim"' EXIT
if [ ! -e "$tensorflow/include/tensorflow/compiler/xla/client/xla_builder.h" ]; then
  for header in tf2xla/xla_op_kernel.h tf2xla/xla_op_registry.h xla/shape.h xla/client/xla_builder.h; do
    mkdir -p "$(dirname "$shim/tensorflow/compiler/$header")"
    : >"$shim/tensorflow/compiler/$header"
  done
fi

# Horovod's CMakeLists are refused by cmake 4; the other packages are imported by its build.
"$python" -m pip install 'cmake<4' setuptools wheel packaging cloudpickle psutil pyyaml

export CXXFLAGS="-I$shim ${CXXFLAGS:-}" MAKEFLAGS="-j$(nproc)"
export HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITH_GLOO=1
if [ -n "${HOROVOD_WITHOUT_MPI:-}" ]; then
  mpi="left out, as HOROVOD_WITHOUT_MPI asks"
elif [ -n "${HOROVOD_WITH_MPI:-}" ] || command -v mpicxx >/dev/null; then
  export HOROVOD_WITH_MPI=1 # with it a build that finds no usable MPI fails, and says why
  mpi=$(command -v mpicxx || echo "asked for by HOROVOD_WITH_MPI")
else
  export HOROVOD_WITHOUT_MPI=1
  mpi="not found (no mpicxx on PATH; on Debian: apt-get install libopenmpi-dev openmpi-bin)"
fi
echo "MPI: $mpi"
# A cached wheel may be built for another TensorFlow, and so may the installed one.
"$python" -m pip install --no-cache-dir --no-build-isolation --no-deps --force-reinstall horovod==0.28.1
