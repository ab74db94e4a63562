# Finds the GPU tests and benchmarks. Sourced, not run. Sets GPU_BINARIES, a folder, and lets the
# libraries that were packed with them be found.
# shellcheck shell=bash

# A machine with a GPU may have none of the packages: what pack_gpu.sh made elsewhere is run as it
# is. Otherwise they are built first.
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
packed=${INFERSCALE_GPU_PACK:-$repository/build/gpu}
if [[ -d $packed/bin && ! -f $repository/build/cuda/build.ninja ]]; then
  GPU_BINARIES=$packed/bin
  export LD_LIBRARY_PATH=$packed/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
else
  if ! command -v cmake >/dev/null || ! { command -v nvcc || ls /usr/local/cuda/bin/nvcc; } >/dev/null 2>&1; then
    echo "inferscale: error: no CUDA compiler here, and no $packed: make it with" \
      "tools/test/pack_gpu.sh on a machine that has one, and carry it" >&2
    exit 1
  fi
  make -C "$repository" build-cuda >&2
  # shellcheck disable=SC2034  # used by the script that sources this
  GPU_BINARIES=$repository/build/cuda/bin
fi
