#!/usr/bin/env bash
# Packs the GPU tests and benchmarks of build/cuda, stripped, with the libraries that a bare system
# lacks, for a machine with a GPU: bin/ and lib/ below FOLDER (build/gpu).
#   pack_gpu.sh [FOLDER]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder=${1:-build/gpu}
rm -rf -- "$folder"
mkdir -p "$folder/bin" "$folder/lib"
for source in tests/gpu/*_test.cc bench/*_gpu_bench.cc; do
  name=$(basename "$source" .cc)
  if [[ ! -x build/cuda/bin/$name ]]; then
    echo "inferscale: $name is not built, and left out" >&2
    continue
  fi
  strip -o "$folder/bin/$name" "build/cuda/bin/$name"
  ldd "build/cuda/bin/$name" | awk '$2 == "=>" && $3 ~ "^/" {print $3}' |
    grep -vE '/(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s)\.so' |
    xargs -r cp -L -t "$folder/lib"
done
du -sh "$folder"
