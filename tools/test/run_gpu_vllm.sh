#!/usr/bin/env bash
# The connector on a real vLLM on this machine's GPU, with CUDA graphs.
#   run_gpu_vllm.sh tests [PYTEST-ARGUMENT...]   every case of bookkeeping and windows, under both model runners
#   run_gpu_vllm.sh bench [OPTION...]            exactness, ttft and throughput into bench/results, the
#                                                other shapes, and text with the arena's bytes as cache
#   run_gpu_vllm.sh tiers [OPTION...]            more facts than the arena holds, and chats during ingest
#   run_gpu_vllm.sh beside [OPTION...]           LMCache, where Python finds it, and the paper's own
#                                                connector, where PAPER is a checkout of it
# PYTHON (python3) finds vllm, the wheel (or python/ with its built module) and pytest.
set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
python=${PYTHON:-python3}
export PYTHONPATH=$repository/python${PYTHONPATH:+:$PYTHONPATH}
what=${1:?tests or bench}
shift
case $what in
  tests)
    cd "$repository/tests/vllm"
    # Without the plugins of whatever else is installed there.
    export INFERSCALE_TEST_VLLM_DEVICE=cuda PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
    (($#)) || set -- test_layouts.py test_bookkeeping.py test_preemption.py test_tiers.py test_windows.py
    failed=0
    for runner in 0 1; do
      printf '\n== VLLM_USE_V2_MODEL_RUNNER=%s ==\n' "$runner"
      VLLM_USE_V2_MODEL_RUNNER=$runner "$python" -m pytest -q -p no:cacheprovider -p no:warnings \
        --tb=short --show-capture=no "$@" || failed=1
    done
    exit "$failed"
    ;;
  bench)
    cd "$repository"
    results=${INFERSCALE_BENCH_RESULTS:-bench/results}
    "$python" bench/vllm_ttft.py exactness throughput --codec bf16 --budget-seconds 330 \
      --out "$results" "$@" || failed=1
    "$python" bench/vllm_ttft.py exactness throughput --codec int4 --modes kv,ceiling \
      --budget-seconds 330 --out "$results" "$@" || failed=1
    "$python" bench/vllm_ttft.py --codec bf16 --block-size 64 --modes kv,ceiling \
      --budget-seconds 250 --out "$results" "$@" || failed=1
    for shape in Qwen2.5-7B Mistral-7B; do
      "$python" bench/vllm_ttft.py --shape "$shape" --codec bf16 --gpu-bytes 8G \
        --modes text,kv,ceiling --budget-seconds 250 --out "$results" "$@" || failed=1
    done
    "$python" bench/vllm_throughput.py --large-cache --users 100 --budget-seconds 250 \
      --out "$results" "$@" || failed=1
    exit "${failed:-0}"
    ;;
  tiers)
    cd "$repository"
    "$python" bench/vllm_tiers.py ingest --codec bf16 --gpu-bytes 6G --pinned-bytes 28G \
      --host-bytes 40G --users 10,100 --budget-seconds 400 \
      --out "${INFERSCALE_BENCH_RESULTS:-bench/results}" "$@"
    ;;
  beside)
    cd "$repository"
    results=${INFERSCALE_BENCH_RESULTS:-bench/results}
    # The last line of what Python says is the reason.
    if reason=$("$python" -c 'import lmcache.integration.vllm.vllm_v1_adapter' 2>&1); then
      "$python" bench/vllm_lmcache.py --out "$results" "$@" || failed=1
    else
      echo "inferscale: LMCache is not measured: $(tail -n 1 <<<"$reason")" >&2
    fi
    if [[ -d ${PAPER:-} ]]; then
      "$python" bench/vllm_paper.py --paper "$PAPER" --gpu-memory-utilization 0.6 --memories 50 \
        --users 100 --out "$results" "$@" || failed=1
    else
      echo "inferscale: the paper's connector is not measured: PAPER is no folder" >&2
    fi
    exit "${failed:-0}"
    ;;
  *) echo "inferscale: error: tests, bench, tiers or beside, not '$what'" >&2 && exit 1 ;;
esac
