# `make demo` and `make test` are all that a new machine with Python and make needs.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt

.PHONY: demo test test-all lint docs bench bench-gpu audit torture clean

# A second process helps with some of the runs, each of one thread: the digits' networks are too small for more to pay, and what
# one of them is at the other leaves alone. Figure 1 is left to the first, so that the helper is through when the report is
# written; should it not be, which exit code 1 says, all of it is asked for once more. Python keeps what it compiles, whatever the environment says:
# compiling torch at each start takes longer than a start.
REPRODUCE := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m studies.benzing2020 --preset digits --device cpu --store build/demo/runs
HELPED := forms keeping
DEMO := $(REPRODUCE) forgetting $(HELPED) figure1 --out build/demo/report
demo: .venv/demo
	mkdir -p build/demo
	@$(REPRODUCE) $(HELPED) --out build/demo/helper > build/demo/helper.log 2>&1 & helper=$$!; \
	trap 'kill $$helper; exit 130' INT TERM; \
	$(DEMO); ended=$$?; wait $$helper; \
	if [ $$ended -eq 1 ]; then $(DEMO); else exit $$ended; fi
	@echo "In one picture, what is forgotten and what is kept: build/demo/report/figures/forgetting.png"

# Without Chromium, tests that open a page in it are skipped; where CI is "true", they are not, and it has to be there.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile
CHROMIUM := sh scripts/ensure_chromium || test "$$CI" != true

# What a change has to pass, in minutes; CONTRIBUTING.md says which tests are left to the night.
test: .venv/test lint
	@$(CHROMIUM)
	$(PYTEST) -m "not nightly"

test-all: .venv/test lint
	@$(CHROMIUM)
	$(PYTEST)

lint: .venv/test
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/lint-imports

docs: .venv/test
	$(BIN)/python -m sphinx -W --keep-going -n -q docs build/docs
	@echo The site: build/docs/index.html

bench: .venv/bench
	$(BIN)/python -m benchmarks

# With the interpreter that is given, as it is: `make bench-gpu PYTHON=python3 DATA=folder BENCH="fisher plain-step"`.
bench-gpu:
	PYTHONPATH=src:lab/src $(PYTHON) -m benchmarks.gpu $(BENCH) $(if $(DATA),--data-dir "$(DATA)")

# What other libraries compute; CapyMOA's needs Java. About twenty minutes. CHECKOUTS is a folder with the code that is in no
# package, which you have checked out; without it, what to check out is said.
CHECKOUTS ?= build/audit
audit: .venv/audit
	ANCHORHOLD_AUDIT_CHECKOUTS="$(CHECKOUTS)" OMP_NUM_THREADS=1 PYTHONWARNINGS=ignore $(BIN)/python -m benchmarks.audit

# Kills, failing disks, damaged files, hostile command lines and servers. A C compiler is needed.
SECONDS ?= 600
SEED ?= 0
torture: .venv/test
	OMP_NUM_THREADS=1 $(BIN)/python -m torture --seconds $(SECONDS) --seed $(SEED)

.venv/made:
	PYTHON="$(PYTHON)" sh scripts/make_venv

# A stamp for each set of extras, so that the second call installs nothing.
# Python compiles what it imports; compiling all of torch ahead would take longer than the rest of the installation.
.venv/demo: .venv/made pyproject.toml lab/pyproject.toml constraints.txt
	$(INSTALL) --no-compile --editable . --editable lab
	@touch $@

.venv/test: .venv/made pyproject.toml lab/pyproject.toml constraints.txt
	$(INSTALL) --editable ".[test,lint,docs,lightning,huggingface]" --editable "lab[tensorboard,ray]"
# BackPACK, which curvlinops needs, asks for torchvision, which neither needs for what is compared here.
	$(INSTALL) --no-deps curvlinops-for-pytorch backpack-for-pytorch
	@touch $@

.venv/bench: .venv/made pyproject.toml lab/pyproject.toml constraints.txt
	$(INSTALL) --editable . --editable lab --requirement benchmarks/requirements.txt
# They ask for torchvision, curvlinops by way of BackPACK; none of them needs it for what is measured here.
	$(INSTALL) --no-deps backpack-for-pytorch nngeometry avalanche-lib curvlinops-for-pytorch kronfluence
	@touch $@

# None of them needs torchvision, or another torch, for what is measured here.
.venv/audit: .venv/made pyproject.toml lab/pyproject.toml constraints.txt
	$(INSTALL) --editable . --editable lab --requirement benchmarks/audit/requirements.txt
	$(INSTALL) --no-deps asdfghjkl avalanche-lib backpack-for-pytorch capymoa cl-gym clarena curvlinops-for-pytorch \
	  laplace-torch nngeometry posteriors sequel-core
	@touch $@

clean:
	rm -rf .venv build dist src/*.egg-info lab/src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
