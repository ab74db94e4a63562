#!/usr/bin/env bash
# Builds llama.cpp once per commit, flags, compiler and CPU, into the cache.
# Prints the folder that holds lib/ and include/ as its only line on standard output.
#   build_llama.sh [--source DIR] [--cuda] [--portable | --dispatch] [--cc CC] [--cxx CXX]
# --dispatch: shared libraries with a CPU backend for each generation of processors (make package).
set -euo pipefail
# shellcheck source=tools/setup/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

source_dir=${INFERSCALE_LLAMA_SOURCE_DIR:-}
cuda=OFF
native=ON
project=third_party/llama
library=libllama.a
cc=${CC:-cc}
cxx=${CXX:-c++}
while (($#)); do
  case $1 in
    --source) source_dir=$2 && shift 2 ;;
    --cuda) cuda=ON && shift ;;
    --portable) native=OFF && shift ;;
    --dispatch) native=OFF && project=third_party/llama/dispatch && library=libllama.so && shift ;;
    --cc) cc=$2 && shift 2 ;;
    --cxx) cxx=$2 && shift 2 ;;
    *) fail "build_llama.sh: unknown argument '$1'" ;;
  esac
done

flags=(-DCMAKE_BUILD_TYPE=Release "-DGGML_NATIVE=$native" "-DLLAMA_CUDA=$cuda")
if [[ $cuda == ON ]]; then
  # "native" asks the driver; a machine without a GPU builds for Hopper unless told otherwise.
  architectures=${INFERSCALE_CUDA_ARCHITECTURES:-$(nvidia-smi -L >/dev/null 2>&1 && echo native || echo 90)}
  flags+=("-DCMAKE_CUDA_ARCHITECTURES=$architectures")
fi

identity() {
  if [[ -n $source_dir ]]; then
    # A source tree of the user's own: its content decides, not a commit that we cannot know.
    [[ -f $source_dir/include/llama.h ]] ||
      fail "INFERSCALE_LLAMA_SOURCE_DIR='$source_dir' holds no llama.cpp (include/llama.h is missing)"
    (cd "$source_dir" && find src include common vendor ggml -type f -print0 | sort -z |
      xargs -0 sha256sum | sha256sum)
  else
    echo "$LLAMA_COMMIT"
  fi
  printf '%s\n' "${flags[@]}"
  "$cxx" --version | head -n1
  [[ $native == OFF ]] || grep -m1 -E '^(flags|Features)' /proc/cpuinfo || uname -m
  cat "$REPOSITORY_ROOT/$project/CMakeLists.txt"
}
key=$(identity | sha256sum | cut -c1-24)
prefix="$CACHE_DIR/llama/$key"

if [[ ! -f $prefix/share/complete ]]; then
  hold_lock llama-build
  if [[ ! -f $prefix/share/complete ]]; then
    if [[ -z $source_dir ]]; then
      source_dir=$("$REPOSITORY_ROOT/tools/setup/fetch_llama.sh")
    fi
    minutes="2 to 4"
    [[ $library == libllama.a ]] || minutes="10 to 15"
    say "building llama.cpp once into $prefix ($minutes minutes on 2 cores)"
    scratch_folder llama-build
    launcher=()
    if command -v ccache >/dev/null; then
      launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
    fi
    log="$CACHE_DIR/llama-build.log"
    if ! {
      cmake -S "$REPOSITORY_ROOT/$project" -B "$SCRATCH/build" -G Ninja -Wno-dev \
        "-DCMAKE_C_COMPILER=$cc" "-DCMAKE_CXX_COMPILER=$cxx" \
        "-DLLAMA_SOURCE_DIR=$source_dir" "-DCMAKE_INSTALL_PREFIX=$SCRATCH/prefix" \
        "${flags[@]}" "${launcher[@]}" &&
        cmake --build "$SCRATCH/build" --target archives --parallel "$(nproc)" &&
        cmake --install "$SCRATCH/build"
    } </dev/null >"$log" 2>&1; then
      tail -n 30 "$log" >&2
      fail "llama.cpp did not build; the whole log is $log"
    fi
    [[ -f $SCRATCH/prefix/lib/$library ]] || fail "llama.cpp built, but lib/$library is missing"
    identity >"$SCRATCH/prefix/share/complete"
    rm -rf -- "$prefix"
    mkdir -p "$CACHE_DIR/llama"
    mv -- "$SCRATCH/prefix" "$prefix"
    say "llama.cpp is ready in $prefix"
  fi
fi
printf '%s\n' "$prefix"
