#!/usr/bin/env bash
# All static checks. Needs a configured build/release for clang-tidy.
#   lint.sh [JOBS] [changed]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
jobs=${1:-$(nproc)}
failed=0

# tool NAME prints the pinned version of a clang tool, or the plain one.
tool() { command -v "$1-14" || command -v "$1"; }
step() { printf 'lint: %s\n' "$1"; }

if [[ ${2:-} == changed ]]; then
  list() { { git diff --name-only --diff-filter=d HEAD -- "$@" && git ls-files --others --exclude-standard -- "$@"; } | sort -u; }
else
  list() { git ls-files --cached --others --exclude-standard -- "$@" | while read -r file; do [[ -f $file ]] && printf '%s\n' "$file"; done; }
fi
mapfile -t sources < <(list '*.cc' '*.h' '*.cu' '*.cuh')
mapfile -t compiled < <(list 'src/*.cc' 'tests/*.cc')
mapfile -t scripts < <(list '*.sh' .ci/run)

step "structure"
python3 tools/lint/check_dependencies_test.py >/dev/null 2>&1 || {
  python3 tools/lint/check_dependencies_test.py || true
  failed=1
}
python3 tools/lint/check_dependencies.py || failed=1

if ((${#scripts[@]})); then
  step "shellcheck on ${#scripts[@]} scripts"
  shellcheck -x "${scripts[@]}" || failed=1
fi
if ((${#sources[@]})); then
  step "clang-format on ${#sources[@]} files"
  "$(tool clang-format)" --dry-run -Werror "${sources[@]}" || failed=1
fi
if ((${#compiled[@]})); then
  step "clang-tidy on ${#compiled[@]} files"
  printf '%s\0' "${compiled[@]}" |
    xargs -0 -n 1 -P "$jobs" "$(tool clang-tidy)" -p build/release --quiet 2> >(grep -v ' warnings generated' >&2 || true) ||
    failed=1
fi
if ((failed)); then
  printf 'lint: failed\n' >&2
  exit 1
fi
step "passed"
