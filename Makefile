# make run: the main job. make test: everything that must hold. Both install what they need, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PINS := constraints.txt
SECONDS_PER_TEST := 600

.PHONY: run test quick format clean

run: $(VENV)/installed
	$(BIN)/metasp run

test: $(VENV)/installed-dev
	$(BIN)/ruff format --check src tests
	$(BIN)/ruff check src tests
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/pytest --timeout $(SECONDS_PER_TEST) --durations 10

quick: $(VENV)/installed-dev
	$(BIN)/pytest --timeout $(SECONDS_PER_TEST) -m "not slow"

format: $(VENV)/installed-dev
	$(BIN)/ruff format src tests
	$(BIN)/ruff check --fix src tests

clean:
	rm -rf $(VENV) build dist

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
	$(BIN)/python -m pip install --quiet --constraint $(PINS) --editable '.[dev]'
	touch $@
