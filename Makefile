# Everything a person does here. The servers are built once, into ~/.cache/nodemaintenance.

NODES ?= 3
DELIVERY ?= local
ARGS ?=
PYTHON ?= python3

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp

export PYTHONUNBUFFERED := 1
export PATH := $(CURDIR)/$(BIN):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help demo test e2e screenshots up env down bench lint build clean

help: ## show this list
	@echo 'usage: make TARGET [NAME=VALUE ...]'
	@sed -n 's/^\([a-z0-9]*\):[^#]*## \(.*\)/  \1@\2/p' $(MAKEFILE_LIST) | awk -F@ '{ printf "%-14s %s\n", $$1, $$2 }'

demo: $(STAMP) ## drain a node of a cluster made for it, and watch
	@$(BIN)/python -m localcluster.demo $(ARGS)

# The build comes first by itself, since pytest would hide its progress.
test: $(STAMP) ## run the tests; ARGS="-k cordon" goes to pytest
	@$(BIN)/python -m localcluster build
	@$(BIN)/python -m pytest $(ARGS)

e2e: $(STAMP) ## run the tests on real brokers, and those of size; ARGS="-k faults" goes to pytest
	@$(BIN)/python -m localcluster build
	@$(BIN)/python -m localcluster build --delivery knative
	@$(BIN)/python -m localcluster build --delivery rabbitmq
	@$(BIN)/python -m pytest -m e2e -s tests $(ARGS)

screenshots: $(STAMP) ## make the pictures of the console in docs/screenshots anew
	@$(BIN)/python -m localcluster build
	@SCREENSHOTS=docs/screenshots $(BIN)/python -m pytest tests/console/web/test_looks.py

up: $(STAMP) ## start a cluster with the product on it; NODES=3 DELIVERY=local, knative or rabbitmq
	@$(BIN)/python -m localcluster up --nodes $(NODES) --delivery $(DELIVERY)

# Nothing is set up first: what this prints is evaluated.
env: ## print the export lines of the cluster that is up, quietly with make -s, for eval
	@[ -x $(BIN)/python ] || { echo 'error: no cluster is up: make up starts one' >&2; exit 1; }
	@$(BIN)/python -m localcluster env

down: $(STAMP) ## end what `make up` started
	@$(BIN)/python -m localcluster down

bench: ## compare with other ways to drain
	@echo 'bench: not built yet'

lint: $(STAMP) ## check style and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

build: $(STAMP) ## build the servers now, not at the first use
	@$(BIN)/python -m localcluster build

clean: ## end the cluster and remove what was made in this folder
	@if [ -x $(BIN)/python ] && [ -d .cluster ]; then $(BIN)/python -m localcluster down; fi
	@rm -rf $(VENV) .cluster build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo 'the built servers stay in ~/.cache/nodemaintenance; remove that folder to have them built again'

$(STAMP): requirements.txt requirements-dev.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo 'error: Python 3.10 or newer is needed: install it, or give its path: make PYTHON=/path/to/python3' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "error: Python 3.10 or newer is needed, $(PYTHON) is older: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo 'error: this Python has no venv module: install it (Debian and Ubuntu: apt install python3-venv)' >&2; exit 1; }
	@echo 'setting up $(VENV)'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt --editable .
	@touch $@
