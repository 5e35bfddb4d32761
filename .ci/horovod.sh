#!/usr/bin/env bash
# Builds Horovod for the TensorFlow in .venv.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# TensorFlow's wheels from 2.19 on lack four headers that one file of Horovod includes and a CPU build does not use.
shim=$ROOT/build/horovod-shim
for header in compiler/tf2xla/xla_op_kernel.h compiler/tf2xla/xla_op_registry.h \
  compiler/xla/shape.h compiler/xla/client/xla_builder.h; do
  mkdir -p "$(dirname "$shim/tensorflow/$header")"
  : >"$shim/tensorflow/$header"
done

export CXXFLAGS="-I$shim" MAKEFLAGS="-j$(nproc)"
export HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1
# A cached wheel may be of another TensorFlow, and an installed one too.
python -m pip install --no-cache-dir --no-build-isolation --no-deps --force-reinstall "horovod==$HOROVOD_VERSION"
