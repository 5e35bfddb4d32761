#!/usr/bin/env bash
# Installs what pyproject.toml lists into .venv, and gradcomp itself in place, its C++ part left to extension.sh.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

python -m pip install --upgrade pip setuptools
# What is imported is compiled then, a tenth of it.
python -m pip install --no-compile "tensorflow==$TENSORFLOW_VERSION" "cmake<4" ninja pybind11 scikit-build-core
python -m pip install --no-compile --no-build-isolation -C wheel.cmake=false -C editable.mode=inplace -e ".[demo,test,lint]"
