# Everything a person does here. The servers are built once, into ~/.cache/nodemaintenance.

NODES ?= 3
CONTROL_PLANES ?= 0
DELIVERY ?= local
WINGS ?= maintenance,admission,certificates
ACTORS ?= off
REAL ?= 0
ARGS ?=
WORKERS ?= 3
APART ?= 2
OVERLAY ?= knative
NODE ?=
IMAGE ?=
ENGINES ?= local
CASES ?=
ROUNDS ?= 5
QUICK ?=
FULL ?=
ADD ?=
VERSION ?=
TRIES ?= 10000
SECONDS ?=
WING ?= maintenance
RUNS ?= 1
SEED ?= 1
MODULES ?=
AGAIN ?=
PYTHON ?= python3

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
# One more than the two cores that most machines of a CI have: with two workers these rest for a third of the time, with
# many functions miss their deadlines. tests/scheduling.py says who runs what.
SHARED = -n $(WORKERS) --no-loadscope-reorder
TEST_ALL := not e2e and not real and not installs
# Every rule and every step, without slow tests; nor who proves what, for which all are collected.
CHECKED := tests/kube tests/functions tests/console/operations tests/console/terminal tests/eventing/replay \
	$(filter-out %_requirements.py,$(wildcard tests/eventing/test_*.py tests/test_*.py)) --ignore=tests/kube/client \
	$(addprefix --ignore=tests/functions/maintenance/test_,states.py lost_lease.py)
# What was installed for another Python, which a new release of the system has put below it, is none of its own.
$(shell [ ! -e $(STAMP) ] || $(BIN)/python -c 'import pip' 2> /dev/null || rm -f $(STAMP) 2> /dev/null)
PIP := $(BIN)/python -m pip --disable-pip-version-check install
LOCK := requirements-dev.lock
# uv sets up .venv in seconds, if it is on the PATH; UV= uses pip all the same.
UV := $(shell command -v uv 2> /dev/null)

export PYTHONUNBUFFERED := 1
# What is shown has bars and arrows, and is UTF-8 on a terminal of Latin-1, too.
export PYTHONUTF8 := 1
# Hundreds of processes import the same modules; without compiled ones kept, each compiles them anew, the tests most of all.
unexport PYTHONDONTWRITEBYTECODE
export PATH := $(CURDIR)/$(BIN):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help demo demo-mutex demo-real demo-vm test test-all check checked e2e e2e-real e2e-installs fuzz mutants screenshots requirements up env status down deploy cluster-functest image container-build \
  container-push container-build-and-push-community bench chaos performance lint build lock clean needs

help: ## show this list
	@echo 'usage: make TARGET [NAME=VALUE ...]'
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/  \1@\2/p' $(MAKEFILE_LIST) | awk -F@ '{ printf "%-18s %s\n", $$1, $$2 }'

demo: $(STAMP) ## drain a node of a cluster made for it, and watch
	@$(BIN)/python -m localcluster.demo $(ARGS)

demo-mutex: $(STAMP) ## upgrade four workers of an OpenShift that is played, one by one with Jobs, and watch
	@$(BIN)/python -m localcluster.demo.upgrade $(ARGS)

demo-vm: $(STAMP) ## drain a node with virtual machines of each kind on a KubeVirt that is played, relabel CPUs, and watch
	@$(BIN)/python -m localcluster.demo.vm $(ARGS)

demo-real: $(STAMP) ## drain the node on which the product runs, as pods of two real nodes; as root
	@$(BIN)/python -m localcluster.demo.real_nodes $(ARGS)

# What a target needs is built before its first test: pytest would hide the progress, and a compiler takes both cores.
test: $(STAMP) ## run the tests, WORKERS=3 side by side (0: one by one); ARGS="-k cordon" goes to pytest
	@$(BIN)/python -m tests.dependencies test
	@$(BIN)/python -m pytest $(SHARED) $(ARGS)

test-all: $(STAMP) ## run these and the long ones: kills, crowds, a thousand nodes, generated faults, measured times, KubeVirt's own controllers
	@$(BIN)/python -m tests.dependencies test-all
	@$(BIN)/python -m pytest $(SHARED) -m '$(TEST_ALL)' $(ARGS)

check: $(STAMP) ## check style, types, rules and functions, without faults and crowds: the inner loop, about a minute
	@$(BIN)/python -m localcluster build
	@$(MAKE) --no-print-directory --jobs 2 lint checked

# Beside the linters, whose types take one core for half of the time: nothing is measured meanwhile.
checked: $(STAMP)
	@$(BIN)/python -m pytest $(SHARED) $(CHECKED) $(ARGS)

# Each worker has a network of its own: Knative's data plane listens where there is room for one.
e2e: $(STAMP) ## run the tests on real brokers, and those of size; ARGS="-k faults" goes to pytest
	@$(BIN)/python -m tests.dependencies e2e
	@$(BIN)/python -m tests.network_namespace $(APART) --no-loadscope-reorder -m e2e -rP $(ARGS)

# The tests of what is left on the machine run alone.
e2e-real: $(STAMP) ## build the image on a Debian that is fetched once, run the product as pods of real nodes, and drain these; as root
	@$(BIN)/python -m tests.dependencies e2e-real
	@$(BIN)/python -m pytest -m real -rP tests/real/test_leftovers.py $(ARGS)
	@$(BIN)/python -m pytest -n 2 --no-loadscope-reorder -m real -rP tests/real --ignore tests/real/test_leftovers.py $(ARGS)

# Not in .ci/run, which has its time: 28 dispatchers of RabbitMQ beside all else take two cores some minutes.
e2e-installs: $(STAMP) ## install on real nodes what e2e-real leaves out: all optional components, one process for all, RabbitMQ; as root
	@$(BIN)/python -m tests.dependencies e2e-installs
	@$(BIN)/python -m pytest -m installs -rP tests/real $(ARGS)

fuzz: $(STAMP) ## send hostile requests to every door of a product at work; TRIES=10000 SEED=1
	@$(BIN)/python -m localcluster build
	@$(BIN)/python -m tests.fuzz $(TRIES) $(SEED)

# mypy first, then tests; AGAIN=1 goes on where it was ended, and judges anew what survived. The tool has a folder of its own:
# what it brings renames processes, which hides what `make bench` reads of them.
mutants: $(STAMP) ## change each line of the rules and of the steps, and list the changes that nothing notices; MODULES=kube AGAIN=1; more than an hour
	@$(PIP) --quiet --upgrade --target $(VENV)/mutmut 'mutmut>=3.8,<4'
	@$(BIN)/python -m localcluster build
	@PYTHONPATH='$(CURDIR)/$(VENV)/mutmut' nice -n 10 $(BIN)/python -m tests.mutation $(if $(AGAIN),--again) $(MODULES)

screenshots: $(STAMP) ## make the pictures of the console in docs/screenshots anew
	@$(BIN)/python -m localcluster build
	@SCREENSHOTS=docs/screenshots $(BIN)/python -m pytest -m '$(TEST_ALL)' tests/console/web/test_display_modes.py tests/console/web/test_upgrades.py tests/console/web/test_virtual_machines.py

requirements: $(STAMP) ## write docs/requirements.md anew: which tests prove what
	@page=$$($(BIN)/python -m tests.proofs) && printf '%s\n' "$$page" > docs/requirements.md

up: $(STAMP) ## start a cluster with the product on it; NODES=3 CONTROL_PLANES=0 (so many of them) DELIVERY=local, knative or rabbitmq WINGS=maintenance,admission,certificates (beside mutex, virtualization, cpu-labels) ACTORS=on plays OpenShift for mutex, KubeVirt for virtualization; ACTORS=kubevirt runs KubeVirt itself, with its nodes played; REAL=2 (as root) adds so many nodes that run containers
	@$(BIN)/python -m localcluster up --nodes $(NODES) --control-planes $(CONTROL_PLANES) --delivery $(DELIVERY) --wings '$(WINGS)' --actors $(ACTORS) --real $(REAL)

# For these three nothing is set up first: what is up was started by what is there, and what `env` prints is evaluated.
# A cluster is up without its environment, too, so that any Python will do.
LOOK = python=$(BIN)/python; $$python -c '' > /dev/null 2>&1 || python=$(PYTHON); $$python -m localcluster.up

env: ## print the export lines of the cluster that is up, quietly with make -s, for eval
	@$(LOOK) env

down: ## end what `make up` started
	@$(LOOK) down

status: ## show the processes of what is up: state, restarts, why each ended last
	@$(LOOK) status

deploy: $(STAMP) ## install on the cluster of your kubeconfig; OVERLAY=mine, a folder of yours over one of manifests/overlays, which names the image
	@$(BIN)/python -m localcluster.deploy '$(OVERLAY)'

cluster-functest: $(STAMP) ## try what is installed on the cluster of your kubeconfig; NODE=name is drained and given back
	@$(BIN)/python -m tests.functest $(NODE)

# The first of these that works here. FLAGS go to its build, as --network host; BASE is what the image stands on.
ENGINE = $(eval ENGINE := $$(shell for engine in podman docker buildah; do $$$$engine info > /dev/null 2>&1 && { echo $$$$engine; break; }; done))$(ENGINE)
FLAGS ?=
BASE ?= python:3.13-slim
REVISION = $(shell git rev-parse HEAD 2> /dev/null || echo unknown)
# The commit's date: the same sources and libraries give the same layers.
DATED = $(if $(filter docker,$(ENGINE)),,--layers --timestamp $(shell git log -1 --format=%ct 2> /dev/null || echo 0))
BUILD_IMAGE = $(ENGINE) build --file Dockerfile --build-arg BASE=$(BASE) --build-arg VERSION=$(or $(VERSION),unreleased) --build-arg REVISION=$(REVISION) $(strip $(DATED) $(FLAGS))

image: ## build the image with podman, docker or buildah, and build/sbom.json, a list of what is in it; IMAGE=nodemaintenance VERSION=1.2.3 BASE=python:3.13-slim FLAGS="--network host"
	@[ -n '$(ENGINE)' ] || { echo 'error: none of podman, docker and buildah is there, or works, to build an image with' >&2; exit 1; }
	@$(BUILD_IMAGE) --tag $(or $(IMAGE),nodemaintenance):$(if $(VERSION),v$(VERSION),latest) .
	@mkdir -p build
	@$(BUILD_IMAGE) --target sbom --output type=local,dest=build .

# IMAGE is the name with its registry, VERSION=1.2.3 becomes the tag v1.2.3.
container-build container-push:
	@[ -n '$(IMAGE)' ] && [ -n '$(VERSION)' ] || { echo 'error: say what to make: make $@ IMAGE=registry.example/nodemaintenance VERSION=1.2.3' >&2; exit 1; }
	@$(if $(filter %build,$@),$(MAKE) --no-print-directory image)
	@[ -n '$(ENGINE)' ] || { echo 'error: none of podman, docker and buildah is there, or works, to push an image with' >&2; exit 1; }
	@$(if $(filter %push,$@),$(ENGINE) push $(IMAGE):v$(VERSION))

container-build-and-push-community:
	@$(MAKE) --no-print-directory container-build
	@$(MAKE) --no-print-directory container-push

# OPERATOR and OPERATOR_CRD reach it by the environment, where no quotes get in the way.
bench: $(STAMP) ## compare with kubectl drain and a floor; ENGINES=local,knative,rabbitmq CASES="10 pods" ROUNDS=5 QUICK=1 FULL=1 ADD=1; OPERATOR=program OPERATOR_CRD=file adds one
	@$(BIN)/python -m bench --engines $(ENGINES) --cases '$(CASES)' --rounds $(ROUNDS) $(if $(QUICK),--quick) $(if $(FULL),--full) $(if $(ADD),--add)

chaos: $(STAMP) ## do mischief to twenty nodes and judge all that happens; SEED=1 SECONDS=300 ENGINES=local,knative,rabbitmq; WING=mutex SEED=1 RUNS=50 upgrades them instead
	@$(BIN)/python -m chaos --engines $(ENGINES) --wing $(WING) --seed $(SEED) --runs $(RUNS) $(if $(SECONDS),--seconds $(SECONDS))

performance: $(STAMP) ## write docs/performance.md anew, of what make bench measured last; `make bench performance` does both
	@$(BIN)/python -m bench.page

lint: $(STAMP) ## check style and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

build: $(STAMP) ## build the servers now, not at the first use
	@$(BIN)/python -m localcluster build

clean: ## end the cluster and remove what was made in this folder
	@$(LOOK) down
	@rm -rf $(VENV) .cluster build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "the built servers stay in $${XDG_CACHE_HOME:-$$HOME/.cache}/nodemaintenance; remove that folder to have them built again"

# A venv that works stays: it is on the PATH, so $(PYTHON) is its own by now, and a program at work is not written anew.
# --no-deps skips resolving: the lock file is complete. The build of this project uses the setuptools of the lock file.
$(STAMP): $(LOCK) pyproject.toml | needs
	@echo 'setting up $(VENV): $(if $(UV),uv,pip) installs the packages of $(LOCK)$(if $(UV),, (about a minute))'
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || { $(NEW_VENV); }
	@{ $(INSTALL_LOCK) && $(INSTALL_PROJECT); } || { echo 'error: $(VENV) is not set up, the reason is above: if the package index cannot be reached, connect to the network or set $(if $(UV),UV_DEFAULT_INDEX,PIP_INDEX_URL) to a mirror, then run make again' >&2; exit 1; }
	@touch $@

ifdef UV
NEW_VENV = rm -rf $(VENV) && $(UV) venv --quiet --python "$$(command -v $(PYTHON))" $(VENV)
INSTALL_LOCK = $(UV) pip sync --quiet --python $(BIN)/python --require-hashes $(LOCK)
INSTALL_PROJECT = $(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
else
NEW_VENV = $(PYTHON) -m venv --clear $(VENV)
INSTALL_LOCK = $(PIP) --quiet --no-deps --require-hashes --requirement $(LOCK)
INSTALL_PROJECT = $(PIP) --quiet --no-deps --no-build-isolation --editable .
endif

# Versions stay as they are where the requirements allow them. Without annotations and header, which name paths and options.
lock: ## pin the packages of requirements-dev.txt in requirements-dev.lock, with hashes; ARGS=--upgrade takes the newest versions
	@[ -n '$(UV)' ] || { echo 'error: uv is needed to write $(LOCK): install it (pipx install uv), then run make lock again' >&2; exit 1; }
	@$(UV) pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-annotate --no-header --output-file $(LOCK) requirements-dev.txt $(ARGS) > /dev/null

# Comes first, whatever the targets are: programs of the distribution are installed, or all that is missing is said.
needs:
	@command -v $(PYTHON) >/dev/null || { echo 'error: Python 3.10 or newer is needed: install it, or give its path: make PYTHON=/path/to/python3' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "error: Python 3.10 or newer is needed, $(PYTHON) is older: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -m localcluster.programs.packages --delivery $(DELIVERY) --real '$(REAL)' --engines '$(ENGINES)' $(MAKECMDGOALS)
