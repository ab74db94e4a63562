#!/usr/bin/env bash
# Runs every benchmark that needs a GPU, or those named, each into bench/results/NAME.json; those of
# vLLM (ttft, throughput, exactness, tiers, ingest, others' connectors) where Python finds it.
#   run_gpu_benchmarks.sh [inject] [retrieval] [vllm]
set -euo pipefail
# shellcheck source=tools/test/gpu_binaries.sh
source "$(dirname "${BASH_SOURCE[0]}")/gpu_binaries.sh"
cd "$repository"
results=${INFERSCALE_BENCH_RESULTS:-bench/results}
mkdir -p "$results"
names=("$@")
((${#names[@]})) || names=(inject retrieval vllm)
for name in "${names[@]}"; do
  printf '\n== %s ==\n' "$name"
  case $name in
    inject | retrieval) "$GPU_BINARIES/${name}_gpu_bench" --out "$results/$name.json" ;;
    vllm)
      if "${PYTHON:-python3}" -c 'import vllm' 2>/dev/null; then
        "$repository/tools/test/run_gpu_vllm.sh" bench
        "$repository/tools/test/run_gpu_vllm.sh" tiers
        "$repository/tools/test/run_gpu_vllm.sh" beside
      else
        echo "inferscale: no vLLM for ${PYTHON:-python3}: ttft and throughput are not measured" >&2
      fi
      ;;
    *) echo "inferscale: error: no benchmark is called '$name'" >&2 && exit 1 ;;
  esac
done
