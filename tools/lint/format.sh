#!/usr/bin/env bash
# Applies clang-format to every C++ and CUDA file of the repository.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
formatter=$(command -v clang-format-14 || command -v clang-format)
git ls-files -z --cached --others --exclude-standard -- '*.cc' '*.h' '*.cu' '*.cuh' |
  xargs -0 -r "$formatter" -i
