PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/ready
LIGHT = $(VENV)/light
SOURCES = pyproject.toml constraints.txt setup.py $(wildcard src/pna/ops/*.[ch] src/pna/population/*.[ch])
# Of all the bytecode, tests and notebooks need a quarter. They write it, even where the environment
# says otherwise: every process reads it. As many processes as cores run at a time, of one thread.
INSTALL = $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt
# a recent pip finds the packages in half the time
NEW = $(PYTHON) -m venv $(VENV) && $(INSTALL) --upgrade pip
ONE_THREAD = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1
PYTEST = $(ONE_THREAD) $(BIN)/pytest -n auto --dist worksteal
LINT = $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy
DOCS = $(ONE_THREAD) $(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet --jobs auto docs docs/site

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-every test-gpu lint bench docs dist clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(if $(wildcard $(READY)),$(READY),$(LIGHT))  ## train PNA and five baselines on small graphs, in minutes: demo/index.html
	$(BIN)/pna demo

test: lint  ## lint, then every test that is not slow, as many at a time as there are cores
	$(PYTEST) -m "not slow"

test-all: $(READY)  ## every test, and when a core is idle lint and the documentation
	nice sh -c '$(LINT) && $(DOCS)' & others=$$!; $(PYTEST); tests=$$?; wait $$others && exit $$tests

test-every: $(READY)  ## every test with every combination of its parameters
	$(PYTEST) --every-case

test-gpu:  ## every test that runs on a GPU, with PYTHON as it is: nothing is installed
	-$(PYTHON) setup.py --quiet build_ext --inplace
	PYTHONPATH="$(CURDIR)/src$${PYTHONPATH:+:$$PYTHONPATH}" OMP_NUM_THREADS=1 $(PYTHON) -m pytest -m gpu \
	  $$($(PYTHON) -c "import xdist" 2>/dev/null && echo -n auto --dist worksteal)

lint: $(READY)  ## ruff and mypy
	$(LINT)

bench: $(READY)  ## measure this machine: benchmarks/results/
	$(BIN)/python benchmarks/aggregate.py
	$(BIN)/pna bench layer --out benchmarks/results/layer.csv
	$(BIN)/pna bench train --out benchmarks/results/train.csv
	$(BIN)/pna bench example --out benchmarks/results/example.csv
	$(BIN)/pna bench generate --out benchmarks/results/generate.csv
	$(BIN)/pna bench kernels --out benchmarks/results/kernels.csv
	$(BIN)/pna bench tables

docs: $(READY)  ## the documentation, its notebooks executed: docs/site/index.html
	$(DOCS)

dist: $(READY)  ## sdist and wheel, the wheel installed into an empty environment and tried: dist/
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(PYTHON) -m venv dist/empty
	dist/empty/bin/python -m pip install --quiet --constraint constraints.txt dist/*.whl
	env -u PYTHONPATH dist/empty/bin/pna doctor
	env -u PYTHONPATH dist/empty/bin/python examples/graph_set.py
	rm -rf dist/empty

clean:  ## remove the environment and whatever was built
	rm -rf $(VENV) build dist demo docs/site docs/jupyter_execute src/pna.egg-info src/pna/ops/_cpu.*
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(READY): $(SOURCES)
	$(NEW)
	$(INSTALL) --editable '.[dev]'
	touch $@

$(LIGHT): $(SOURCES)  # what the demo needs: a third of the packages
	$(NEW)
	$(INSTALL) --editable '.[plot]'
	touch $@
