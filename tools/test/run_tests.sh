#!/usr/bin/env bash
# Builds the release, address-sanitizer and thread-sanitizer tests and runs them all in one ctest,
# whose summary closes the output. With INFERSCALE_TEST_VLLM=1 the connector's tests on vLLM first.
#   run_tests.sh [JOBS]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
jobs=${1:-$(nproc)}

for preset in release asan tsan; do
  printf 'inferscale: building the tests (%s)\n' "$preset"
  cmake --preset "$preset" >/dev/null
  cmake --build --preset "$preset" --target inferscale_tests --parallel "$jobs"
done

# Real vLLM is gigabytes of downloads: CI asks for it. Before ctest, whose summary comes last.
if [[ ${INFERSCALE_TEST_VLLM:-} == 1 ]]; then
  for version in 0.24.0 0.32.0; do
    printf 'inferscale: testing the connector with vLLM %s\n' "$version"
    tools/test/run_vllm_tests.sh "$version"
  done
fi

mkdir -p build/tests
cat >build/tests/CTestTestfile.cmake <<CTEST
subdirs("$PWD/build/asan" "$PWD/build/tsan" "$PWD/build/release")
CTEST

export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=1:allocator_may_return_null=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-second_deadlock_stack=1}
# The thread sanitizer of GCC cannot map its shadow where the kernel randomises addresses widely.
launcher=()
if setarch "$(uname -m)" --addr-no-randomize true 2>/dev/null; then
  launcher=(setarch "$(uname -m)" --addr-no-randomize)
fi
exec "${launcher[@]}" ctest --test-dir build/tests --output-on-failure --no-tests=error \
  --parallel "$jobs"
