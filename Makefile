# `make demo` and `make test` are all that a new machine with Python and make needs.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt

.PHONY: demo test quick lint bench bench-gpu clean

# One thread: the digits' networks are too small for more to pay.
demo: .venv/demo
	OMP_NUM_THREADS=1 $(BIN)/python -m holdfast reproduce all --preset digits --device cpu --store build/demo/runs --out build/demo/report

test: .venv/test lint
	sh scripts/ensure_chromium
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2

quick: .venv/test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 -m "not slow"

lint: .venv/test
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/lint-imports

bench: .venv/bench
	$(BIN)/python -m benchmarks

# With the interpreter that is given, as it is: `make bench-gpu PYTHON=python3 DATA=folder BENCH="fisher plain-step"`.
bench-gpu:
	PYTHONPATH=src $(PYTHON) -m benchmarks.gpu $(BENCH) $(if $(DATA),--data-dir "$(DATA)")

.venv/made:
	PYTHON="$(PYTHON)" sh scripts/make_venv

# A stamp for each set of extras, so that the second call installs nothing.
.venv/demo: .venv/made pyproject.toml constraints.txt
	$(INSTALL) --editable ".[cli,report]"
	@touch $@

.venv/test: .venv/made pyproject.toml constraints.txt
	$(INSTALL) --editable ".[test,lint,cli,experiments,report,tensorboard]"
	@touch $@

.venv/bench: .venv/made pyproject.toml constraints.txt
	$(INSTALL) --editable ".[bench]"
# Each of the three asks for torchvision, which none of them needs for what is measured here.
	$(INSTALL) --no-deps backpack-for-pytorch nngeometry avalanche-lib
	@touch $@

clean:
	rm -rf .venv build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
