#!/usr/bin/env bash
# Makes dist/inferscale-VERSION-linux-ARCH.tar.gz: the program with every library that is not the
# C library's, for any machine of this architecture whose C library is as new as this one's.
set -euo pipefail
# shellcheck source=tools/setup/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../setup/common.sh"
cd "$REPOSITORY_ROOT"

jobs=${1:-$(nproc)}
version=$(sed -n 's/^project(inferscale VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
architecture=$(uname -m)
name="inferscale-$version-linux-$architecture"

cmake --preset package >&2
cmake --build build/package --target inferscale_cli_main --parallel "$jobs" >&2
llama_prefix=$(tools/setup/build_llama.sh --dispatch --cc cc --cxx c++)

stage="build/package/stage/$name"
rm -rf -- build/package/stage
cmake --install build/package --prefix "$stage" >/dev/null
mkdir -p "$stage/lib/backends" "$stage/share/doc/licenses"
cp -- "$llama_prefix"/lib/backends/libggml-cpu-*.so "$stage/lib/backends/"

# Part of the C library, which has to be the machine's own: it and the kernel belong together.
is_of_libc() {
  case $1 in
    ld-linux* | linux-vdso* | libc.so* | libm.so* | libdl.so* | libpthread.so* | librt.so* | \
      libresolv.so* | libutil.so*) return 0 ;;
    *) return 1 ;;
  esac
}

# What is bundled must be told with its licence.
licence_of() {
  local package file
  file=$(realpath -- "$1")
  # Of a merged /usr the package's list may still say /lib.
  package=$(dpkg-query --search "$file" "${file#/usr}" 2>/dev/null | head -n1 | cut -d: -f1) || true
  [[ -n $package && -f /usr/share/doc/$package/copyright ]] ||
    fail "the licence of $1 is not to be found: it needs a package with a copyright file"
  cp -- "/usr/share/doc/$package/copyright" "$stage/share/doc/licenses/$package"
}

while read -r soname path; do
  is_of_libc "$soname" && continue
  [[ -f $path ]] || fail "$soname is not to be found"
  cp -- "$(realpath -- "$path")" "$stage/lib/$soname"
  [[ $path == "$llama_prefix"/* ]] || licence_of "$path"
done < <(LD_LIBRARY_PATH="$llama_prefix/lib" ldd "$stage/bin/inferscale" "$stage"/lib/backends/*.so |
  awk '$2 == "=>" { print $1, $3 }' | sort -u)
cp -- "$llama_prefix/share/LICENSE" "$stage/share/doc/licenses/llama.cpp"
cp -- LICENSE THIRD_PARTY_NOTICES.md CHANGELOG.md "$stage/share/doc/"
cp -- tools/package/README.md "$stage/README.md"
cp -R -- docs "$stage/share/doc/docs"
find "$stage" -type f \( -name '*.so*' -o -path '*/bin/*' \) -exec strip --strip-unneeded -- {} +
chmod -R u=rwX,go=rX "$stage"

mkdir -p dist
# The same sources make the same bytes.
date=$(git log -1 --format=%cI 2>/dev/null || echo 2026-01-01T00:00:00Z)
tar --directory build/package/stage --sort=name --owner=0 --group=0 --numeric-owner \
  --mtime="$date" --create "$name" | gzip --no-name --best >"dist/$name.tar.gz.partial"
mv -- "dist/$name.tar.gz.partial" "dist/$name.tar.gz"
(cd dist && sha256sum "$name.tar.gz" >"$name.tar.gz.sha256")
say "made dist/$name.tar.gz ($(du -h "dist/$name.tar.gz" | cut -f1))"
printf '%s\n' "dist/$name.tar.gz"
