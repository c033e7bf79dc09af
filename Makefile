# Entry points; `make help` lists them. Everything lives in .venv and in the user's cache folder (~/.cache/wasmckpt).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO_SAMPLES ?= nbody

# What `make test` must be able to run: there, a missing one of these fails a test instead of skipping it.
REQUIRED ?= clang,cargo,pip,wasm-tools,wasmtime,wasm3,wamr,wasmer,wasmedge,arm64,compiled

# Wasm3's package returns pointers of other types, which gcc refuses from version 14 on.
PIP := CFLAGS="$(CFLAGS) -Wno-incompatible-pointer-types" $(BIN)/python -m pip install --disable-pip-version-check --quiet

# Many tests wait for a program they started: one more than there are cores. Files stay together, in their order.
WORKERS ?= $(shell cores=$$(nproc); echo $$((cores < 3 ? cores + 1 : 4)))
PARALLEL ?= -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: help demo check test soak bench runtimes samples lint clean
.DELETE_ON_ERROR:

help:
	@echo "make demo   from a fresh clone to the main job: freeze on one runtime, go on with another (< 2 min)"
	@echo "make check  lint, types, layers and the quick tests, for every edit (< 3 min)"
	@echo "make test   installs what tests need and runs all of them; CI calls it"
	@echo "make soak   everything exhaustive (hours); goes on where it was stopped"
	@echo "make runtimes  the runtimes that no Python package carries: 15 minutes the first time"
	@echo "make bench  measures, ratios within one run"
	@echo "Tiers: docs/testing.md"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
		{ rm -rf $(VENV); echo "no venv module: install python3-venv, or name another: make PYTHON=..." >&2; exit 1; }

# Two stamps, so that the demo does not wait for the test tools.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(PIP) -e '.[wasm3]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(PIP) -e '.[wasm3,dev]'
	@touch $@ $(VENV)/.installed

demo: $(VENV)/.installed
	@.ci/install-toolchain
	@$(BIN)/python -m tests.support.samples --into build/samples $(DEMO_SAMPLES)
	@$(BIN)/python -m wasmckpt.cli.demo

# Runtimes that no Python package carries: built or fetched once, into the cache folder.
runtimes: $(VENV)/.installed-dev
	@.ci/install-toolchain
	@$(BIN)/wasmckpt runtimes install wamr wasmer wasmedge

samples: $(VENV)/.installed-dev
	@$(BIN)/python -m tests.support.samples

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

check: lint
	WASMCKPT_TIER=check $(BIN)/python -m pytest -q $(PARALLEL)

test: runtimes
	$(BIN)/python -m tests.support.samples > /dev/null
	$(BIN)/python -m tests.support.versitygw > /dev/null
	$(BIN)/python -m tests.support.arm64 > /dev/null
	$(BIN)/python -m tests.support.compiled > /dev/null
	$(MAKE) --no-print-directory lint
	WASMCKPT_TIER=test WASMCKPT_REQUIRE="$(REQUIRED)" $(BIN)/python -m pytest -q $(PARALLEL) --durations=15

soak: runtimes
	$(BIN)/python -m tests.support.samples > /dev/null
	$(BIN)/python -m tests.support.versitygw > /dev/null
	$(BIN)/python -m tests.support.arm64 > /dev/null
	$(BIN)/python -m tests.support.compiled > /dev/null
	$(MAKE) --no-print-directory lint
	WASMCKPT_TIER=soak WASMCKPT_REQUIRE="$(REQUIRED)" $(BIN)/python -m pytest -q $(PARALLEL) --durations=30 --timeout=7200

bench: $(VENV)/.installed-dev
	.ci/install-toolchain
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
