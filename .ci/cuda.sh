#!/usr/bin/env bash
# Compiles csrc/cuda for every GPU that is supported, and prints what the kernels take. Without a
# CUDA toolkit, installs one under .venvs/cuda or, with --if-found, says that this was left out.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
source "$ROOT/.ci/nvcc.sh"

bin=$(find_nvcc)
if [[ -z $bin && ${1:-} == --if-found ]]; then
  echo "cuda: left out, since there is no nvcc of CUDA 13; make cuda installs one (300 MB in .venvs/cuda)"
  exit
fi
require_nvcc
export PATH=$bin:$PATH
if ! command -v cuobjdump >/dev/null || ! command -v nvdisasm >/dev/null; then
  install cuda-dumpers "cuda: installing the disassembler in .venvs/cuda (6 MB) ..." "${DUMPERS[@]}"
  export PATH=$PATH:$(echo "$TOOLS"/lib/python3*/site-packages/nvidia/cu13/bin)
fi

compile_kernels
python -m bench.cuda_table "$OUT"
.ci/cuda_extension.sh
