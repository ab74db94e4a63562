# Short verbs over CMake. `make help` lists them.
# Variables: MODEL=file.gguf (demo), JOBS=n, CHANGED=1 (lint only files changed against HEAD).
JOBS ?= $(shell nproc)
SETUP := tools/setup
BINARY := build/release/inferscale
SHELL := /bin/bash
# Lets ccache serve another clone of the repository as well.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help build demo test bench lint format clean packages models configure

help: ## list these verbs
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

packages:
	@$(SETUP)/announce.sh
	@$(SETUP)/install_packages.sh

models: packages
	@$(SETUP)/fetch_models.sh

configure: packages
	@cmake --preset release

build: configure ## build the program: build/release/inferscale
	@cmake --build --preset release --target inferscale_cli_main --parallel $(JOBS)

demo: build models ## memories in, answers out of injected KV; MODEL=x.gguf for another model
	@$(BINARY) demo $(if $(MODEL),--model "$(MODEL)")

test: build models ## all tests; unit tests under the sanitizers too
	@$(SETUP)/install_packages.sh test
	@tools/test/run_tests.sh $(JOBS)

bench: build models ## measure; every benchmark prints one table
	@tools/test/run_benchmarks.sh

lint: packages ## format, naming and structure checks; CHANGED=1 for changed files only
	@$(SETUP)/install_packages.sh lint
	@cmake --preset release -DINFERSCALE_WERROR=OFF >/dev/null
	@tools/lint/lint.sh $(JOBS) $(if $(CHANGED),changed)

format: ## apply clang-format
	@$(SETUP)/install_packages.sh lint
	@tools/lint/format.sh

clean: ## remove the build folders; the cache of fetched things stays
	@rm -rf build
