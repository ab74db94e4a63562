#!/usr/bin/env bash
# Installs the distribution's packages that are missing, and only those.
#   install_packages.sh [lint|test|vllm]
set -euo pipefail
# shellcheck source=tools/setup/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

tables=("$REPOSITORY_ROOT/tools/setup/packages.txt")
[[ -z ${1:-} ]] || tables+=("$REPOSITORY_ROOT/tools/setup/packages_$1.txt")

distribution=$(
  # shellcheck source=/dev/null
  source /etc/os-release
  printf '%s-%s' "${ID:-unknown}" "${VERSION_ID:-}"
)
case $distribution in
  debian-12) column=2 ;;
  ubuntu-24.04) column=3 ;;
  *)
    say "this system ($distribution) is neither Debian 12 nor Ubuntu 24.04: install yourself what" \
      "$REPOSITORY_ROOT/tools/setup/packages.txt lists"
    exit 0
    ;;
esac

mapfile -t wanted < <(awk -v column="$column" \
  '!/^#/ && NF && $column != "none" { print ($column == "-" ? $2 : $column) }' "${tables[@]}")
missing=()
for package in "${wanted[@]}"; do
  status=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $status == installed ]] || missing+=("$package")
done
((${#missing[@]})) || exit 0

install_line="apt-get install -y --no-install-recommends ${missing[*]}"
say "needs ${#missing[@]} packages: ${missing[*]}"
say "(all of them on a bare system: about 230 MB to download, 950 MB of disk, 2 minutes)"
if ((EUID == 0)); then
  as_root=(env)
elif sudo -n true 2>/dev/null || [[ -t 0 && -t 2 && -z ${CI:-} ]] && command -v sudo >/dev/null; then
  as_root=(sudo env)
else
  fail "these packages are missing and sudo cannot be used without a password here; run this, then" \
    "the same command again:
  sudo apt-get update && sudo $install_line"
fi
export_line=(DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=a)
# The lists may be old or absent: update them, but an unreachable mirror need not be fatal.
"${as_root[@]}" "${export_line[@]}" apt-get update -q >&2 || say "apt-get update failed, going on"
# shellcheck disable=SC2086
"${as_root[@]}" "${export_line[@]}" $install_line </dev/null >&2 ||
  fail "apt-get could not install the packages. The line was: sudo $install_line"
