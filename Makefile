# Every target sets up what it needs. Needs Python 3.11 or later; PYTHON=... chooses the interpreter.
# Run each candidate instead of looking it up: version managers leave names on the PATH that do not start.
PYTHON ?= $(shell for name in python3.14 python3.13 python3.12 python3.11 python3; do \
  $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$name; break; }; done)
BIN := .venv/bin
comma := ,
# A path in a .pth file. What setuptools installs otherwise, a finder, costs every start of Python 15 ms; the tests start hundreds.
EDITABLE := --config-settings editable_mode=compat -e
# The newest CUDA that the driver supports. Without a GPU, or with a driver too old for CuPy, add no extra.
CUDA := $(shell $(PYTHON) gpuloader/system/driver.py)
CUPY := $(if $(CUDA),$(if $(filter 12,$(CUDA)),$(comma)cuda12,$(if $(filter-out 9 10 11,$(CUDA)),$(comma)cuda13)))
MNIST ?=

.PHONY: demo test test-frameworks chaos soak dist-test lint mutants kernels docs notebooks sanitize gpu-proof bench clean

demo: .venv/demo.stamp
	$(BIN)/gpuloader mnist --output demo-output $(if $(MNIST),--data $(MNIST))

# The tests start hundreds of programs. Each would compile the package anew where no bytecode may be written.
test: export PYTHONDONTWRITEBYTECODE :=
test: .venv/dev.stamp
	$(BIN)/python -m tests

# The frameworks are large, so they have their own environment. FRAMEWORKS=jax installs only that one.
FRAMEWORKS ?= torch==2.13.0 jax paddlepaddle ray[data,train] keras datasets pandas polars lightning accelerate transformers \
  torch_geometric s3fs boto3==1.43.117 moto[s3] flask flask-cors
# A separate pytest for each of these (commas join its arguments): some frameworks conflict with each other, or with a fork.
# The longest come first. What starts workers runs before what computes with JAX, after which a fork server starts them.
WITH_FRAMEWORKS := tests/torch_suite tests/frameworks \
  tests/torch,tests/examples,gpuloader/api/torch_loader.py,gpuloader/sources/torch_classes.py tests/api/test_from_ray.py \
  tests/sources/test_frameworks.py,tests/devices/test_interop.py,tests/fetch/test_start_methods.py \
  tests/test_documents.py,-m,frameworks tests/sources/tables,tests/sources/files/test_s3.py tests/paddle_suite,tests/dataset \
  tests/fetch/processes/test_fork_server.py,-k,forked_worker_computes
WITH_KERAS := torch jax
WITH_KERAS_ON_torch := tests/test_golden_states.py tests/test_golden_pickles.py tests/api/test_exact_values.py
.PHONY: $(WITH_FRAMEWORKS:%=with-frameworks/%) $(WITH_KERAS:%=with-keras/%)

# Two run at a time, since most of them wait; what one prints stays together.
test-frameworks: export PYTHONDONTWRITEBYTECODE :=
test-frameworks: .venv-frameworks/stamp
	$(MAKE) --no-print-directory --jobs=2 --keep-going --output-sync \
	  $(WITH_FRAMEWORKS:%=with-frameworks/%) $(WITH_KERAS:%=with-keras/%)

$(WITH_FRAMEWORKS:%=with-frameworks/%): with-frameworks/%: .venv-frameworks/stamp
	KERAS_BACKEND=torch .venv-frameworks/bin/python -m pytest $(subst $(comma), ,$*)

$(WITH_KERAS:%=with-keras/%): with-keras/%: .venv-frameworks/stamp
	KERAS_BACKEND=$* .venv-frameworks/bin/python -m pytest tests/keras gpuloader/api/keras_loader.py $(WITH_KERAS_ON_$*)

# Random loaders under random faults. A finding prints the command that runs its case again; SEED=... repeats a run.
SECONDS ?= 600
SEED ?=
chaos: .venv/dev.stamp
	$(BIN)/python -m tests.chaos --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

# The same loaders in one process, for as long as a training runs: whether it grows.
MINUTES ?= 60
soak: .venv/dev.stamp
	$(BIN)/python -m tests.chaos --soak $(MINUTES) $(if $(SEED),--seed $(SEED))

# Runs each .py in notebooks/ and writes the .ipynb next to it; NOTEBOOKS="02 05" runs only those.
notebooks: .venv-frameworks/notebooks.stamp
	.venv-frameworks/bin/python notebooks/execute.py $(NOTEBOOKS)

dist-test: .venv/dev.stamp
	.ci/dist-test

lint: .venv/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# MODULE=gpuloader/staging.py, or a package; MUTANTS="--sample 50" passes options on. Cosmic Ray makes the
# mutants, in an environment of its own; the tests run in that of `make test`.
MODULE ?=
MUTANTS ?=
mutants: .venv/dev.stamp .venv-mutants/stamp
	@test -n "$(MODULE)" || { echo "Set MODULE to a file or a package, such as MODULE=gpuloader/epoch."; exit 1; }
	.venv-mutants/bin/python -m tests.mutants --python $(BIN)/python $(MUTANTS) $(MODULE)

# For the architectures that a kernel distinguishes, and for the CPU with sanitizers, under which their tests run.
kernels: .venv/dev.stamp
	$(BIN)/python -m benchmarks.gpu.compiling
	$(BIN)/python -m tests.kernels.sanitized

# Builds into build/site; warnings are errors. The variable silences the theme's announcement of MkDocs 2.
docs: .venv/docs.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "The pages are in build/site. To use the search as well: python -m http.server -d build/site"

# TOOL=racecheck runs another of its tools. API errors go unreported: tests provoke some on purpose. For the host's
# backtraces, the sanitizer keeps Python's frames, and so batches that a test has dropped.
TOOL ?= memcheck
sanitize: .venv/dev.stamp
	@command -v compute-sanitizer >/dev/null || \
	  { echo "compute-sanitizer is not on the PATH; it comes with the CUDA toolkit."; exit 1; }
	compute-sanitizer --tool $(TOOL) --report-api-errors no --show-backtrace device \
	  --target-processes application-only --error-exitcode 1 $(BIN)/python -m pytest -o timeout=1800 tests/gpu

# Doctor, tests, sanitizer and benchmarks in under eight minutes; again for what is left. PARTS="doctor suite" chooses.
PARTS ?=
gpu-proof: .venv-proof/stamp
	.venv-proof/bin/python benchmarks/gpu/proof.py $(if $(PARTS),--parts $(PARTS))

# PEERS="torch grain" installs those loaders first, and PEERS=all those that have wheels; BENCH="--case jpeg --plot bench.png"
# passes options on. They stay out of .venv, whose tests are to pass without them.
PEERS ?=
BENCH ?=
ALL_PEERS := torch torchvision paddlepaddle grain spdl spdl-io tensorflow-cpu nvidia-dali-cuda120
bench: .venv-bench/stamp
	$(if $(PEERS),.venv-bench/bin/python -m pip install --no-compile --quiet --disable-pip-version-check \
	  $(patsubst paddle,paddlepaddle,$(if $(filter all,$(PEERS)),$(ALL_PEERS),$(PEERS))))
	.venv-bench/bin/python -m benchmarks.peers $(BENCH)

.venv/demo.stamp: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(EDITABLE) '.[demo$(CUPY)]'
	@touch $@

# Compiling all modules of these packages takes over a minute, and the tests import few of them, which are compiled then.
.venv/dev.stamp: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check $(EDITABLE) '.[dev,demo$(if $(CUPY),$(CUPY)$(subst cuda,nvimgcodec-cu,$(CUPY)),$(comma)kernels)]'
	@touch $@

.venv/docs.stamp: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check $(EDITABLE) '.[docs]'
	@touch $@

.venv-bench/stamp: pyproject.toml | .venv/bin/python
	$(BIN)/python -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check -e '.[bench$(CUPY)]'
	@touch $@

# Downloads have limits of their own, and the minutes of the proof begin after them. PyTorch is the floor of some goals,
# which are not measured where it cannot be had. It stays out of .venv, whose tests are to pass without it.
.venv-proof/stamp: pyproject.toml | .venv/bin/python
	$(BIN)/python -m venv .venv-proof
	timeout 600 .venv-proof/bin/python -m pip install --quiet --disable-pip-version-check \
	  -e '.[dev,demo$(if $(CUPY),$(CUPY)$(subst cuda,nvimgcodec-cu,$(CUPY)),$(comma)kernels)]'
	$(if $(CUPY),-timeout 1200 .venv-proof/bin/python -m pip install --quiet --disable-pip-version-check torch)
	@touch $@

# In two steps, of which CI runs the first beside other installations: two builds of this package at once would share a folder.
.venv-frameworks/packages: pyproject.toml | .venv/bin/python
	$(BIN)/python -m venv .venv-frameworks
	.venv-frameworks/bin/python -m pip install --no-compile --quiet --disable-pip-version-check \
	  hypothesis pytest pytest-timeout $(FRAMEWORKS)
	@touch $@

.venv-frameworks/stamp: .venv-frameworks/packages
	.venv-frameworks/bin/python -m pip install --no-compile --quiet --disable-pip-version-check $(EDITABLE) '.[audio,images,video]'
	@touch $@

.venv-mutants/stamp: | .venv/bin/python
	$(BIN)/python -m venv .venv-mutants
	.venv-mutants/bin/python -m pip install --quiet --disable-pip-version-check 'cosmic-ray>=8.7'
	@touch $@

.venv-frameworks/notebooks.stamp: pyproject.toml .venv-frameworks/stamp
	.venv-frameworks/bin/python -m pip install --quiet --disable-pip-version-check $(EDITABLE) '.[notebooks]'
	@touch $@

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed, but none was found. Set PYTHON=..."; exit 1; }
	@$(PYTHON) -c '' 2>/dev/null || { echo "$(PYTHON) does not start. Set PYTHON=... to Python 3.11 or later."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or later is needed; $(PYTHON) is older. Set PYTHON=..."; exit 1; }
	$(PYTHON) -m venv .venv

clean:
	rm -rf .venv .venv-bench .venv-frameworks .venv-mutants .venv-proof build dist demo-output *.egg-info
