#!/bin/sh
# Builds and installs Horovod for the TensorFlow of $PYTHON (python3 by default), for CPUs with Gloo,
# and with MPI where its compiler wrapper mpicxx is found, unless HOROVOD_WITHOUT_MPI=1 is set.
# For NCCL set HOROVOD_GPU_OPERATIONS=NCCL as Horovod's manual says.
# Needs g++ and make; takes about three minutes on two cores.
set -eu

python=$(command -v "${PYTHON:-python3}")
PATH=$(dirname "$python"):$PATH # for the cmake installed below

tensorflow=$("$python" -c 'import importlib.util, os; print(os.path.dirname(importlib.util.find_spec("tensorflow").origin))') || {
  echo "Install TensorFlow first: $python -m pip install 'tensorflow>=2.15,<2.22'" >&2
  exit 1
}

# One file of Horovod includes four headers that a CPU build does not use. From TensorFlow 2.19 on
# the wheels lack some of them, or what these include in turn; empty ones do instead.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
shim=$work/shim source=$work/horovod
mkdir "$shim" "$source"
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

"$python" -m pip download --no-build-isolation --no-deps --no-binary horovod -d "$work" horovod==0.28.1
tar -xzf "$work"/horovod-*.tar.gz -C "$source" --strip-components=1
# Without debugging symbols it builds in three quarters of the time.
sed -i 's/"-O2" "-O3"/"-O2 -g" "-O3"/' "$source/CMakeLists.txt"
# Two faults of Gloo, which take more time than what gradcomp sends.
# All-gather and all-to-all post what a rank sends before what it receives. Where two ranks send to
# each other, the later one's word that it is ready to receive then waits behind all that it sends,
# and large messages go one way at a time. So receive first, as Gloo's all-reduce does.
gloo=$source/third_party/gloo/gloo
sed -i '/^ *out->send(/{N;s/\(.*\)\n\(.*out->recv.*\)/\2\n\1/}' "$gloo/allgatherv.cc"
sed -i -e 's/int recvRank = .*;/int recvRank = sendRank;/' \
  -e '/^ *in->send(/{N;N;N;s/\(.*\)\n\( *out->recv.*\)/\2\n\1/}' "$gloo/alltoallv.cc"
# The thread that handles sockets asks again at once while another holds a socket's lock. Where that
# one waits for a core, it would do so for a whole time slice, on the core that the other needs.
sed -i -e 's/^#include "gloo.*pair.h"/&\n#include <thread>/' \
  -e '/std::try_to_lock/{n;s/if (!lock) {/&\n    std::this_thread::yield();/}' "$gloo/transport/tcp/pair.cc"

known() { # whether a file has these calls, in this order
  calls=$(grep -o -E "$2" "$gloo/$1" | tr '\n' ' ')
  if [ "$calls" != "$3 " ]; then
    echo "$1 of this Horovod's Gloo is not the one that is known: $calls" >&2
    exit 1
  fi
}
known allgatherv.cc 'out->(send|recv)' 'out->recv out->send out->recv out->send'
known alltoallv.cc '= sendRank|(in|out)->(send|recv)' '= sendRank out->recv in->send'
known transport/tcp/pair.cc '<thread>|try_to_lock|thread::yield' '<thread> try_to_lock thread::yield'

# The installed one may be built for another TensorFlow.
"$python" -m pip install --no-build-isolation --no-deps --force-reinstall "$source"
