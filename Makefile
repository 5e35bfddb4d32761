# `make` lists the targets. Each brings .venv and the extension up to date first.
.DEFAULT_GOAL := help
.PHONY: help setup demo bench test coverage lint sanitize sanity test-tf-versions aarch64 cuda clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## create or refresh .venv: TensorFlow, Horovod, the extension (all targets do it)
	@.ci/setup.sh

demo: setup ## train on Fashion-MNIST over Horovod with five codecs, print the table (about 8 minutes)
	@.venv/bin/python -m bench.demo

bench: setup ## kernels, all-reduces, overlap and training, each in its small size (under 10 minutes)
	@.venv/bin/python -m bench

# Type checks and downloads leave a core idle; sanity measures, and so runs alone.
test: setup ## every check and test
	@echo "lint, sanitizers, older TensorFlows and aarch64 run together, and tell what they did as each ends (some minutes) ..."
	@$(MAKE) --no-print-directory --jobs=2 --keep-going --output-sync=target lint sanitize test-tf-versions aarch64
	@$(MAKE) --no-print-directory sanity
	@.ci/cuda.sh --if-found
	@.ci/test.sh

coverage: setup ## the tests again, with coverage of gradcomp/, which takes a quarter longer
	@.ci/test.sh --cov --cov-report=term

lint: setup ## ruff, mypy, import-linter, clang-format
	@.ci/lint.sh

sanitize: setup ## the kernel tests under AddressSanitizer and UBSan
	@.ci/sanitize.sh

sanity: setup ## no kernel takes twice as long as it may (half a minute)
	@.venv/bin/python -m bench.kernels --check

test-tf-versions: setup ## the same built ops in older TensorFlows
	@.ci/tf_versions.sh

aarch64: setup ## the kernels compiled for aarch64 and run in QEMU, where both are: the same bytes
	@.ci/aarch64.sh

cuda: setup ## compile the CUDA kernels for every GPU, show what they take, build gradcomp._cuda and the GPU ops
	@.ci/cuda.sh

clean: ## remove what was built (.venv and .venvs stay: delete them by hand)
	rm -rf build dist results gradcomp/*.so gradcomp/_gpu_ops.tensorflow .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
