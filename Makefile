# Every target makes its own virtual environment and installs what it needs:
# a fresh clone with git, make, a C++ compiler and Python 3.11-3.13 is enough.
#   make PYTHON=python3.12 ...        another interpreter
#   make PIP_ARGS='--index-url ...'   options for pip (a CPU build of torch, a mirror, a wheel folder)
PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-all lint bench figures clean

demo: $(STAMP)
	$(BIN)/bigbatch demo

test: $(STAMP)
	$(BIN)/python -m pytest -m "not slow and not gpu"

# Triton (694 MB) comes with CUDA builds of torch; beside a CPU build only its interpreter and compiler are of use here.
test-all: $(STAMP)
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt triton
	$(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: $(STAMP)
	$(BIN)/python -m bigbatch.benchmarks.prepare
	$(BIN)/python -m bigbatch.benchmarks.mlstm
	$(BIN)/python -m bigbatch.benchmarks.featurize

figures: $(STAMP)
	$(BIN)/bigbatch figures numerics

$(STAMP): setup.py constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else f"bigbatch needs Python 3.11 to 3.13; {sys.executable} is {v[0]}.{v[1]}: run make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt setuptools wheel
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt --no-build-isolation -e '.[dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) build bigbatch.egg-info .pytest_cache .ruff_cache
