# Short verbs over CMake. `make help` lists them.
# Variables: MODEL=file.gguf (demo), JOBS=n, CHANGED=1 (lint only files changed against HEAD),
# VLLM=0.24.0 or 0.32.0 (test-vllm).
JOBS ?= $(shell nproc)
VLLM ?= 0.24.0
SETUP := tools/setup
BINARY := build/release/inferscale
SHELL := /bin/bash
# Lets ccache serve another clone of the repository as well.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help build build-cuda demo test test-gpu test-vllm wheel bench bench-gpu package lint format clean packages models configure

help: ## list these verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

packages:
	@$(SETUP)/announce.sh
	@$(SETUP)/install_packages.sh

models: packages
	@$(SETUP)/fetch_models.sh

configure: packages
	@cmake --preset release

build: configure ## build the program: build/release/inferscale
	@cmake --build --preset release --target inferscale_cli_main --parallel $(JOBS)

build-cuda: packages ## the program with CUDA for Hopper GPUs, the GPU tests and benchmarks: build/cuda
	@cmake --preset cuda
	@cmake --build --preset cuda --parallel $(JOBS) \
	  --target inferscale_cli_main inferscale_gpu_tests inferscale_gpu_benches

demo: build models ## memories in, answers out of injected KV; MODEL=x.gguf for another model
	@$(BINARY) demo $(if $(MODEL),--model "$(MODEL)")

test: build models ## all tests; unit tests under the sanitizers too
	@$(SETUP)/install_packages.sh test
	@tools/test/run_tests.sh $(JOBS)

test-gpu: ## the CUDA kernels' tests, on a machine with a GPU
	@tools/test/run_gpu_tests.sh

wheel: packages ## the vLLM connector: dist/inferscale-*.whl
	@$(SETUP)/install_packages.sh vllm
	@$(SETUP)/build_wheel.sh >/dev/null

test-vllm: build models ## the connector on a real vLLM on this CPU; VLLM=0.32.0 for that version
	@tools/test/run_vllm_tests.sh $(VLLM)

bench: build models ## measure; every benchmark prints one table
	@tools/test/run_benchmarks.sh

bench-gpu: ## every benchmark that needs a GPU, into bench/results
	@tools/test/run_gpu_benchmarks.sh

package: packages ## dist/inferscale-VERSION-linux-ARCH.tar.gz, which runs on any CPU and system like this
	@tools/package/make_package.sh $(JOBS) >/dev/null
	@tools/package/check_package.sh dist/inferscale-*-linux-$(shell uname -m).tar.gz

lint: packages ## format, naming and structure checks; CHANGED=1 for changed files only
	@$(SETUP)/install_packages.sh lint
	@cmake --preset release -DINFERSCALE_WERROR=OFF >/dev/null
	@tools/lint/lint.sh $(JOBS) $(if $(CHANGED),changed)

format: ## apply clang-format
	@$(SETUP)/install_packages.sh lint
	@tools/lint/format.sh

clean: ## remove the build folders; the cache of fetched things stays
	@rm -rf build dist
