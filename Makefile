# Sets everything up by itself: `make test` and `make demo` work in a fresh clone on a fresh machine.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Parity with facenet-pytorch over a folder of pictures and videos: make test-parity DATA=folder
DATA ?= .

.PHONY: setup test test-slow test-external test-parity demo lint types format check clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

test: setup
	$(BIN)/python -m pytest -q

test-slow: setup
	$(BIN)/python -m pytest -q -m slow

# TensorFlow and DALI have pins of their own, so they get an environment of their own.
test-external: setup
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[external]'
	$(BIN)/python -m pytest -q -m external
	test -x $(VENV)-tf/bin/python || $(PYTHON) -m venv $(VENV)-tf
	$(VENV)-tf/bin/python -m pip install --quiet --editable '.[hdf5,parquet,tfrecord]' \
		tensorflow-cpu nvidia-dali-cuda120 hypothesis psutil pytest scikit-image
	$(VENV)-tf/bin/python -m pytest -q -m external tests/test_formats

test-parity: setup
	$(BIN)/python -m benchmarks.detector_parity $(DATA)
	$(BIN)/python -m benchmarks.detector_parity $(DATA) --runtime torch

demo: setup
	$(BIN)/python examples/demo.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

check: lint types test

clean:
	rm -rf $(VENV) $(VENV)-tf demo-data build dist *.egg-info
