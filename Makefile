# Everything is run from here; `make` alone lists the targets.
# Any OMNIVOICE_* setting may be given: `make up OMNIVOICE_API_PORT=9090`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Two stamps, because the tests need packages (a speech recogniser, linters) that a first `make demo` must not wait for.
LOCAL := $(VENV)/.installed-local
DEV := $(VENV)/.installed-dev
LOCK := pyproject.toml constraints.txt
# A GPU machine may have no package index: there the tests run on whatever Python it came with.
GPU_PYTHON ?= $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))

.DEFAULT_GOAL := help
.PHONY: help demo up down status doctor jobs test lint format types test-gpu soak clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(LOCAL) ## start everything, speak one sentence into ./demo.wav, stop what was started
	@$(BIN)/python -m infra.local demo

up: $(LOCAL) ## start Redis, an S3 server, the API and a worker, and leave them running
	@$(BIN)/python -m infra.local up

down: $(LOCAL) ## stop what `make up` started, and nothing else
	@$(BIN)/python -m infra.local down

status: $(LOCAL) ## what of it runs, and where
	@$(BIN)/python -m infra.local status

doctor: $(LOCAL) ## look at everything that its worker needs, and tell what is wrong
	@$(BIN)/python -m infra.local doctor

jobs: $(LOCAL) ## its jobs for an operator (JOBS='list --status failed'; JOBS=--help tells what there is)
	@$(BIN)/python -m infra.local jobs $(JOBS)

test: lint ## every check and every test that needs no GPU
	$(BIN)/python -m pytest tests/unit -n 2 --dist loadfile -m "not gpu and not soak"
	$(BIN)/python -m pytest tests --ignore tests/unit -n 2 --dist loadfile --no-loadscope-reorder -m "not gpu and not soak"

lint: $(DEV) types ## ruff, mypy and the import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(DEV) ## mypy alone
	$(BIN)/mypy

format: $(DEV) ## rewrite the sources as ruff wants them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test-gpu: ## the tests that need a CUDA device (GPU_PYTHON chooses the interpreter)
	$(GPU_PYTHON) -m pytest tests/gpu -m gpu --noconftest

soak: $(DEV) ## 10,000 jobs under random kills and faults, then a verdict (SOAK='--jobs 500 --seed 7' changes that)
	$(BIN)/python -m tests.soak $(SOAK)

clean: ## stop the local stack; remove its state, the virtual environment and all caches
	@if [ -x $(BIN)/python ] && [ -d .run ]; then $(BIN)/python -m infra.local down; fi
	rm -rf $(VENV) .run demo.wav build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(LOCAL): $(LOCK) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[local]'
	@touch $@

$(DEV): $(LOCK) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(LOCAL) $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: Python 3.11 or newer is needed; name one with PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "make: Python's venv module is missing; on Debian: apt-get install python3-venv" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@echo "installing packages into $(VENV); the first time takes some minutes"
