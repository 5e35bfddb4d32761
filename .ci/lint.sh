#!/usr/bin/env bash
# All static checks; every one runs, so that one run shows all that is to be done.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

failed=()
check() {
  echo "lint: $1"
  shift
  "$@" || failed+=("$1")
}
clang_format() { find csrc tests -name '*.h' -o -name '*.cc' -o -name '*.cu' | xargs clang-format --dry-run -Werror; }

check "ruff check" ruff check --quiet
check "ruff format" ruff format --quiet --check
check "mypy" mypy --no-error-summary
check "import-linter" lint-imports --no-logo
check "clang-format" clang_format
if ((${#failed[@]})); then
  echo "lint: failed: ${failed[*]} (ruff format, ruff check --fix and clang-format -i mend most)"
  exit 1
fi
