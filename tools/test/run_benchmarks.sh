#!/usr/bin/env bash
# Runs every benchmark of the program, on one thread, and keeps their JSON in build/bench.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
binary=build/release/inferscale
mkdir -p build/bench
for name in codec retrieval ingest ttft decode; do
  printf '\n== %s ==\n' "$name"
  "$binary" bench "$name"
done
