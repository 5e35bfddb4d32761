#!/usr/bin/env bash
# Installs what pyproject.toml lists into .venv, and gradcomp itself in place, its C++ part left to extension.sh.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# For Horovod's build: cmake 4 refuses its CMakeLists, newer setuptools its setup.py; the rest it imports while building.
horovod_build=("cmake<4" "setuptools<80" wheel packaging cloudpickle psutil pyyaml)
python -m pip install --upgrade pip
python -m pip install "tensorflow==$TENSORFLOW_VERSION" "${horovod_build[@]}" ninja pybind11 scikit-build-core
python -m pip install --no-build-isolation -C wheel.cmake=false -C editable.mode=inplace -e ".[demo,test,lint]"
