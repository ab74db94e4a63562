#!/usr/bin/env bash
# Runs the tests of tests/gpu on this machine's GPU. --memcheck: some of them, under
# compute-sanitizer.
set -euo pipefail
# shellcheck source=tools/test/gpu_binaries.sh
source "$(dirname "${BASH_SOURCE[0]}")/gpu_binaries.sh"
PATH=$PATH:/usr/local/cuda/bin
failed=()
for source in "$repository"/tests/gpu/*_test.cc; do
  name=$(basename "$source" .cc)
  if [[ ! -x $GPU_BINARIES/$name ]]; then
    failed+=("$name (not there)")
    continue
  fi
  checker=()
  if [[ ${1:-} == --memcheck ]]; then
    # Each case runs a hundred times slower under the checker.
    export INFERSCALE_TEST_CASES=${INFERSCALE_TEST_CASES:-40}
    checker=(compute-sanitizer --tool memcheck --leak-check full --error-exitcode 9)
  fi
  printf '\n== %s ==\n' "$name"
  "${checker[@]}" "$GPU_BINARIES/$name" --gtest_brief=1 || failed+=("$name")
done
if ((${#failed[@]})); then
  echo "failed: ${failed[*]}" >&2
  exit 1
fi
