#!/usr/bin/env bash
# Unpacks a package and runs it as a machine would that has nothing of ours: no library but the C
# library's, no environment. With --root DIR inside a bare system there (as root).
#   check_package.sh PACKAGE.tar.gz [--root DIR]
set -euo pipefail
# shellcheck source=tools/setup/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../setup/common.sh"

package=$(realpath -- "${1:?which package?}")
root=
[[ ${2:-} == --root ]] && root=$(realpath -- "${3:?which root?}")

scratch=$(mktemp -d "$root/tmp/inferscale-package-XXXXXX")
trap 'rm -rf -- "$scratch"' EXIT
(cd "$(dirname "$package")" && sha256sum --check --quiet "$(basename "$package").sha256")
tar --extract --gzip --file "$package" --directory "$scratch"
folder=$(find "$scratch" -mindepth 1 -maxdepth 1 -type d)
inside=${folder#"$root"}

# in_there COMMAND…
in_there() {
  if [[ -n $root ]]; then
    # /proc, by which a program learns where it stands, is there while the command runs.
    # shellcheck disable=SC2016
    unshare --mount sh -c 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"' "$root" \
      /usr/bin/env -i PATH=/usr/bin:/bin HOME=/tmp "$@"
  else
    env -i PATH=/usr/bin:/bin HOME=/tmp "$@"
  fi
}

for file in bin/inferscale lib/*.so* lib/backends/*.so; do
  for path in "$folder"/$file; do
    libraries=$(in_there /usr/bin/ldd "${path#"$root"}" 2>&1) || true
    if grep -q 'not found' <<<"$libraries"; then
      # A library of the package's is found through the program that loads it.
      [[ $path == */bin/* ]] && fail "${path#"$folder"/} lacks: $(grep 'not found' <<<"$libraries")"
      while read -r missing _; do
        [[ -f $folder/lib/$missing ]] || fail "${path#"$folder"/} lacks $missing"
      done < <(grep 'not found' <<<"$libraries")
    fi
  done
done
outside=$(in_there /usr/bin/ldd "$inside/bin/inferscale" | awk '$2 == "=>" { print $3 }' |
  grep -v "^$inside/" | grep -vE '/(libc|libm|libdl|libpthread|librt|libresolv)\.so' || true)
[[ -z $outside ]] || fail "the program takes libraries that are not its own: $outside"
if grep -qE "^(/root|/home|$REPOSITORY_ROOT)" <(readelf -d "$folder/bin/inferscale" |
  sed -n 's/.*r\(un\)\?path: \[\(.*\)\]/\2/p' | tr ':' '\n'); then
  fail "the program looks for libraries where it was built"
fi

in_there "$inside/bin/inferscale" --version >&2
in_there "$inside/bin/inferscale" status --json --data-dir "${scratch#"$root"}/data" >/dev/null ||
  fail "the program does not run"
say "the package is whole: $(basename "$package")"
if [[ -n ${INFERSCALE_PACKAGE_MODELS:-} ]]; then
  # Facts, KV and an answer, by the CPU backend that suits this machine.
  mkdir -p "$scratch/models"
  cp -- "$INFERSCALE_PACKAGE_MODELS"/*.gguf "$scratch/models/"
  models=${scratch#"$root"}/models
  flags=(--data-dir "${scratch#"$root"}/data" --model "$models/$CHAT_MODEL_FILE"
    --embedder "$models/$EMBEDDER_FILE")
  in_there "$inside/bin/inferscale" add "Anna parks on level 3" "${flags[@]}" >&2
  in_there "$inside/bin/inferscale" chat "Where does Anna park?" "${flags[@]}" >&2
  say "the package answers"
fi
