# Every target sets up what it needs. Python 3.11 or later; PYTHON=... chooses another.
# Names are run, not only looked up: a version manager leaves names on the PATH that start nothing.
PYTHON ?= $(shell for name in python3.14 python3.13 python3.12 python3.11 python3; do \
  $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$name; break; }; done)
BIN := .venv/bin
comma := ,
# The newest CUDA that the driver runs; without a GPU, or with a driver too old for CuPy, no extra is added.
CUDA := $(shell nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: \([0-9]*\).*/\1/p')
CUPY := $(if $(CUDA),$(if $(filter 12,$(CUDA)),$(comma)cuda12,$(if $(filter-out 9 10 11,$(CUDA)),$(comma)cuda13)))
MNIST ?=

.PHONY: demo test test-frameworks dist-test lint kernels docs notebooks sanitize bench clean

demo: .venv/demo.stamp
	$(BIN)/gpuloader mnist --output demo-output $(if $(MNIST),--data $(MNIST))

test: .venv/dev.stamp
	$(BIN)/python -m pytest

# Their own environment, as they are large; FRAMEWORKS=jax takes one of them alone.
FRAMEWORKS ?= torch==2.13.0 jax paddlepaddle ray[data,train]
# One process each: frameworks do not all bear each other, nor a fork.
test-frameworks: .venv-frameworks/stamp
	set -e; for tests in tests/devices/test_interop.py tests/sources/test_frameworks.py \
	  tests/test_documents.py tests/examples tests/loader/test_from_ray.py; do \
	  .venv-frameworks/bin/python -m pytest $$tests; done

# Runs each text in notebooks/ and writes the .ipynb beside it; NOTEBOOKS="02 05" only those.
notebooks: .venv-frameworks/notebooks.stamp
	.venv-frameworks/bin/python notebooks/execute.py $(NOTEBOOKS)

dist-test: .venv/dev.stamp
	.ci/dist-test

lint: .venv/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

kernels: .venv/dev.stamp
	$(BIN)/python -m gpuloader.kernels.compiling

# Into build/site, any warning being an error. What the theme has to say of its own future is none.
docs: .venv/docs.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "The pages are in build/site; to search in them, too: python -m http.server -d build/site"

# Another of its tools: TOOL=racecheck. Errors that tests provoke on purpose are no findings.
TOOL ?= memcheck
sanitize: .venv/dev.stamp
	@command -v compute-sanitizer >/dev/null || \
	  { echo "compute-sanitizer is not on the PATH; it comes with the CUDA toolkit."; exit 1; }
	compute-sanitizer --tool $(TOOL) --report-api-errors no --target-processes application-only \
	  --error-exitcode 1 $(BIN)/python -m pytest -o timeout=1800 tests/gpu

# PEERS="torch grain" installs those loaders first; BENCH="--case jpeg --plot bench.png" is handed on.
PEERS ?=
BENCH ?=
bench: .venv/bench.stamp
	$(if $(PEERS),$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  $(patsubst paddle,paddlepaddle,$(PEERS)))
	$(BIN)/gpuloader bench $(BENCH)

.venv/demo.stamp: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[demo$(CUPY)]'
	@touch $@

.venv/dev.stamp: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,demo$(or $(CUPY),$(comma)kernels)]'
	@touch $@

.venv/docs.stamp: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $@

.venv/bench.stamp: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[bench$(CUPY)]'
	@touch $@

.venv-frameworks/stamp: pyproject.toml | .venv/bin/python
	$(BIN)/python -m venv .venv-frameworks
	.venv-frameworks/bin/python -m pip install --quiet --disable-pip-version-check -e . \
	  hypothesis pytest pytest-timeout $(FRAMEWORKS)
	@touch $@

.venv-frameworks/notebooks.stamp: pyproject.toml .venv-frameworks/stamp
	.venv-frameworks/bin/python -m pip install --quiet --disable-pip-version-check -e '.[notebooks]'
	@touch $@

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed; none was found. Set PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or later is needed; $(PYTHON) is older. Set PYTHON=..."; exit 1; }
	$(PYTHON) -m venv .venv

clean:
	rm -rf .venv .venv-frameworks build dist demo-output *.egg-info
