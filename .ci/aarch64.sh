#!/usr/bin/env bash
# Compiles the CPU kernels and their tests in C++ for aarch64, and runs the sweep in QEMU: it must end with the same
# digest as on x86-64. Says what is missing where that is left out. threads_test forks, which QEMU does not survive.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

readonly BUILD=$ROOT/build/aarch64
if ! command -v aarch64-linux-gnu-g++ >/dev/null; then
  echo "aarch64: left out, since there is no aarch64-linux-gnu-g++ (apt-get install g++-aarch64-linux-gnu qemu-user)"
  exit
fi

build() {
  cmake -S . -B "$BUILD" -G Ninja -DGRADCOMP_NATIVE_TESTS=ON -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
    -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ "-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64;-L;/usr/aarch64-linux-gnu"
  cmake --build "$BUILD" --parallel "$(nproc)"
}

echo "aarch64: compiling the kernels (about 1 minute the first time) ..."
logged aarch64 "The log names the file and line; g++ for this machine compiles the same files." build
if command -v qemu-aarch64 >/dev/null; then
  ctest --test-dir "$BUILD" --no-tests=error --output-on-failure --tests-regex kernel_sweep
else
  echo "aarch64: compiled and not run, since there is no qemu-aarch64 (apt-get install qemu-user)"
fi
