#!/usr/bin/env bash
# Installs vLLM for the CPU and the wheel, and runs tests/vllm on them.
#   run_vllm_tests.sh VERSION [PYTEST-ARGUMENT...]   VERSION: 0.24.0 or 0.32.0
set -euo pipefail
# shellcheck source=tools/setup/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../setup/common.sh"

version=${1:?name a version of vLLM}
shift
requirements="requirements_vllm_$version.txt"
[[ -f $REPOSITORY_ROOT/tools/setup/$requirements ]] ||
  fail "vLLM $version is not supported; there is: $(cd "$REPOSITORY_ROOT/tools/setup" && echo requirements_vllm_*.txt)"
"$REPOSITORY_ROOT/tools/setup/install_packages.sh" vllm
python=$("$REPOSITORY_ROOT/tools/setup/python.sh" "$requirements")
cuda=/usr/local/cuda/lib64
[[ -d $cuda ]] && export LD_LIBRARY_PATH="$cuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
# PyPI's torch is the CUDA build and wants its libraries at import, GPU or not.
if ! "$python" -c 'import torch' 2>/dev/null; then
  say "no CUDA toolkit here: installing the libraries that torch loads"
  "$python" -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps \
    --only-binary :all: --requirement "$REPOSITORY_ROOT/tools/setup/requirements_cuda_$version.txt" \
    </dev/null >&2
fi
wheel=$("$REPOSITORY_ROOT/tools/setup/build_wheel.sh")

# Beside the shared environment, so that tests of two versions of the wheel do not meet.
site="$REPOSITORY_ROOT/build/wheel/site-$version"
rm -rf "$site"
"$python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$site" "$wheel" \
  </dev/null >&2
cd "$REPOSITORY_ROOT/tests/vllm"
PYTHONPATH="$site" exec "$python" -m pytest -q -p no:cacheprovider "$@"
