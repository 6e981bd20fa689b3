# Every target sets up what it needs. Python 3.11 or later; PYTHON=... chooses another.
PYTHON ?= $(firstword $(shell for name in python3.11 python3.12 python3.13 python3; do command -v $$name; done))
BIN := .venv/bin
CUDA := $(shell nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: \([0-9]*\).*/\1/p')
CUPY := $(if $(CUDA),$(if $(filter 12,$(CUDA)),$(comma)cuda12,$(comma)cuda13))
comma := ,
MNIST ?=

.PHONY: demo test lint kernels bench clean

demo: .venv/demo.stamp
	$(BIN)/python -m gpuloader.demo $(if $(MNIST),--data $(MNIST))

test: .venv/dev.stamp
	$(BIN)/python -m pytest

lint: .venv/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

kernels: .venv/dev.stamp
	$(BIN)/python -m gpuloader.kernels.compiling

bench: .venv/dev.stamp
	$(BIN)/python benchmarks/run.py

.venv/demo.stamp: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[demo$(CUPY)]'
	@touch $@

.venv/dev.stamp: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,demo$(or $(CUPY),$(comma)kernels)]'
	@touch $@

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed; none was found."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or later is needed; $(PYTHON) is older. Set PYTHON=..."; exit 1; }
	$(PYTHON) -m venv .venv

clean:
	rm -rf .venv build dist demo-output *.egg-info
