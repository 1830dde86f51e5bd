# The commands of this project. They build the Kubernetes servers once, into ~/.cache/nodemaintenance.

NODES ?= 3
CONTROL_PLANES ?= 0
DELIVERY ?= local
COMPONENTS ?= maintenance,admission,certificates
SIMULATORS ?= off
REAL ?= 0
ARGS ?=
WORKERS ?= 3
APART ?= 2
OVERLAY ?= knative
NODE ?=
REGISTRY ?= localhost:5000
IMAGE ?= $(REGISTRY)/nodemaintenance
ENGINES ?= local
CASES ?=
ROUNDS ?= 5
QUICK ?=
FULL ?=
FORCE ?=
PUSHED ?= build/pushed-image
ADD ?=
VERSION ?=
TRIES ?= 10000
SECONDS ?=
COMPONENT ?= maintenance
RUNS ?= 1
SEED ?= 1
MODULES ?=
AGAIN ?=
URL ?=
WITHOUT ?=
PYTHON ?= python3

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
# By default, pytest has one worker more than the two cores of most CI machines. Two workers would leave the cores idle
# for a third of the time, and with many workers, functions would miss their deadlines. tests/scheduling.py assigns the
# tests to the workers.
SHARED = -n $(WORKERS) --no-loadscope-reorder
TEST_ALL := not e2e and not real and not installs and not distribution
# Tests of the decision logic in kube/ and of the functions, without slow tests, and without the tests of
# docs/requirements.md, which collect all tests.
CHECKED := tests/kube tests/functions tests/console/operations tests/console/terminal tests/eventing/replay \
	$(filter-out %_requirements.py,$(wildcard tests/eventing/test_*.py tests/test_*.py)) --ignore=tests/kube/client \
	$(addprefix --ignore=tests/functions/maintenance/test_,states.py lost_lease.py)
# After an upgrade of the system's Python, .venv has no usable pip: remove the stamp, so that .venv is created again.
$(shell [ ! -e $(STAMP) ] || $(BIN)/python -c 'import pip' 2> /dev/null || rm -f $(STAMP) 2> /dev/null)
PIP := $(BIN)/python -m pip --disable-pip-version-check install
LOCK := requirements-dev.lock
# If uv is on the PATH, it creates .venv in seconds; UV= selects pip.
UV := $(shell command -v uv 2> /dev/null)

export PYTHONUNBUFFERED := 1
# The output contains bars and arrows, so it must be UTF-8 even in a Latin-1 locale.
export PYTHONUTF8 := 1
# Hundreds of processes import the same modules; without cached bytecode, each process would compile them again.
unexport PYTHONDONTWRITEBYTECODE
export PATH := $(CURDIR)/$(BIN):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help demo demo-mutex demo-real demo-vm test test-all test-slow test-distribution check checked e2e e2e-real e2e-installs fuzz mutants \
  screenshots requirements reference chart bundle up env status down deploy undeploy cluster-functest image plugin \
  container-build container-push container-build-and-push-community release release-files bench chaos performance lint build \
  lock clean needs

help: ## show this list
	@echo 'usage: make TARGET [NAME=VALUE ...]'
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/  \1@\2/p' $(MAKEFILE_LIST) | awk -F@ '{ printf "%-18s %s\n", $$1, $$2 }'

demo: $(STAMP) ## drain a node of a temporary cluster, and print the events
	@$(BIN)/python -m localcluster.demo $(ARGS)

demo-mutex: $(STAMP) ## upgrade four workers of a simulated OpenShift one at a time, with Jobs before and after each upgrade
	@$(BIN)/python -m localcluster.demo.upgrade $(ARGS)

demo-vm: $(STAMP) ## drain a node with one virtual machine of each kind on a simulated KubeVirt, then change the nodes' CPU labels
	@$(BIN)/python -m localcluster.demo.vm $(ARGS)

demo-real: $(STAMP) ## drain the node on which the product runs, as pods on two real nodes; requires root
	@$(BIN)/python -m localcluster.demo.real_nodes $(ARGS)

# tests.dependencies builds the servers before the first test, because pytest would hide the progress, and the compiler
# uses all cores.
test: $(STAMP) ## run the tests with WORKERS=3 concurrent workers (0: one by one); ARGS="-k cordon" passes options to pytest
	@$(BIN)/python -m tests.dependencies test
	@$(BIN)/python -m pytest $(SHARED) $(ARGS)

test-all: $(STAMP) ## run all tests except e2e tests, including long ones: crashes, a thousand nodes, generated faults, measured times, KubeVirt's own controllers
	@$(BIN)/python -m tests.dependencies test-all
	@$(BIN)/python -m pytest $(SHARED) -m '$(TEST_ALL)' $(ARGS)

check: $(STAMP) ## run the linters and the fast tests, in about a minute, without crashes and large clusters
	@$(BIN)/python -m localcluster build
	@$(MAKE) --no-print-directory --jobs 2 lint checked

# This target runs concurrently with the linters, which occupy one core, so none of its tests measures time.
checked: $(STAMP)
	@$(BIN)/python -m pytest $(SHARED) $(CHECKED) $(ARGS)

test-slow: $(STAMP) ## run only the tests that `make test-all` adds to those of `make test`
	@$(BIN)/python -m tests.dependencies test-all
	@$(BIN)/python -m pytest $(SHARED) -m '(slow or alone) and $(TEST_ALL)' $(ARGS)

# .ci/run leaves out this target, because building Helm and OLM's validators takes several minutes.
test-distribution: $(STAMP) ## check the Helm chart, the OLM bundle, the krew manifest and the release workflow with Helm, OLM's validators, krew and actionlint
	@$(BIN)/python -m tests.dependencies test-distribution
	@$(BIN)/python -m pytest $(SHARED) -m distribution $(ARGS)

# Each worker has its own network namespace, because Knative's data plane has fixed ports.
e2e: $(STAMP) ## run the tests on real brokers, and large scenarios; ARGS="-k faults" passes options to pytest
	@$(BIN)/python -m tests.dependencies e2e
	@$(BIN)/python -m tests.network_namespace $(APART) --no-loadscope-reorder -m e2e -rP $(ARGS)

# The tests that check for leftovers on the host run alone.
e2e-real: $(STAMP) ## build the image on a Debian base, run the product as pods on real nodes, and drain them; requires root
	@$(BIN)/python -m tests.dependencies e2e-real
	@$(BIN)/python -m pytest -m real -rP tests/real/test_leftovers.py $(ARGS)
	@$(BIN)/python -m pytest -n 2 --no-loadscope-reorder -m real -rP tests/real --ignore tests/real/test_leftovers.py $(ARGS)

# .ci/run leaves out this target, because starting RabbitMQ's 28 dispatchers on two cores takes several minutes.
e2e-installs: $(STAMP) ## install other configurations on real nodes: all optional components, one process for all functions, RabbitMQ; requires root
	@$(BIN)/python -m tests.dependencies e2e-installs
	@$(BIN)/python -m pytest -m installs -rP tests/real $(ARGS)

fuzz: $(STAMP) ## send invalid and hostile requests to every endpoint of the running product; TRIES=10000 SEED=1
	@$(BIN)/python -m localcluster build
	@$(BIN)/python -m tests.fuzz $(TRIES) $(SEED)

# For each mutant, mypy runs first, and then the tests. AGAIN=1 continues an interrupted run, and tests the surviving
# mutants again. mutmut has its own directory, because one of its dependencies renames processes, which would break
# `make bench`.
mutants: $(STAMP) ## mutate each line of kube/ and of the functions, and list the mutants that no test detects; MODULES=kube AGAIN=1; more than an hour
	@$(PIP) --quiet --upgrade --target $(VENV)/mutmut 'mutmut>=3.8,<4'
	@$(BIN)/python -m localcluster build
	@PYTHONPATH='$(CURDIR)/$(VENV)/mutmut' nice -n 10 $(BIN)/python -m tests.mutation $(if $(AGAIN),--again) $(MODULES)

screenshots: $(STAMP) ## update the console's screenshots in docs/screenshots
	@$(BIN)/python -m localcluster build
	@SCREENSHOTS=docs/screenshots $(BIN)/python -m pytest -m '$(TEST_ALL)' tests/console/web/test_display_modes.py tests/console/web/test_record_pages.py tests/console/web/test_upgrades.py tests/console/web/test_virtual_machines.py

requirements: $(STAMP) ## update docs/requirements.md, which lists the tests of each requirement
	@page=$$($(BIN)/python -m tests.proofs) && printf '%s\n' "$$page" > docs/requirements.md

reference: $(STAMP) ## update docs/reference.md, which lists functions, event types, permissions and metrics
	@page=$$($(BIN)/python -m tests.reference) && printf '%s\n' "$$page" > docs/reference.md

chart: $(STAMP) ## update the templates of the Helm chart charts/node-maintenance, which are generated from manifests/
	@$(BIN)/python -m localcluster build
	@$(BIN)/python -m localcluster.chart

up: $(STAMP) ## start a cluster with the product; NODES=3, of which CONTROL_PLANES=0 are control-plane nodes; DELIVERY=local, knative or rabbitmq, or with REAL=2 also pods or serving; COMPONENTS=maintenance,admission,certificates (also: mutex, virtualization, cpu-labels, node-conditions, notifications); SIMULATORS=on simulates OpenShift (for mutex) and KubeVirt (for virtualization), SIMULATORS=kubevirt runs KubeVirt's own control plane and simulates its nodes; REAL=2 adds two real nodes, which run containers (requires root)
	@$(BIN)/python -m localcluster up --nodes $(NODES) --control-planes $(CONTROL_PLANES) --delivery $(DELIVERY) --components '$(COMPONENTS)' --simulators $(SIMULATORS) --real $(REAL)

# The targets env, down and status work with any Python and do not set up .venv, because the shell evaluates the output
# of `make env`, and a cluster may outlive .venv.
UP_COMMAND = python=$(BIN)/python; $$python -c '' > /dev/null 2>&1 || python=$(PYTHON); $$python -m localcluster.up

env: ## print the running cluster's export lines; use: eval "$(make -s env)"
	@$(UP_COMMAND) env

down: ## stop the cluster that `make up` started
	@$(UP_COMMAND) down

status: ## show the running cluster's processes: state, restarts and reason of the last exit
	@$(UP_COMMAND) status

deploy: $(STAMP) ## install the last pushed image on the cluster of your kubeconfig; OVERLAY=mine is the directory of your own overlay, which extends one of manifests/overlays, VERSION=1.2.3 selects another image
	@$(BIN)/python -m localcluster.deploy apply '$(OVERLAY)' --image '$(if $(VERSION),$(IMAGE):v$(VERSION))' --pushed-image '$(shell cat $(PUSHED) 2> /dev/null)'

undeploy: $(STAMP) ## remove an overlay from the cluster of your kubeconfig; OVERLAY as in `make deploy`; FORCE=1 first ends all maintenances and upgrade runs
	@$(BIN)/python -m localcluster.deploy remove '$(OVERLAY)' $(if $(filter 1,$(FORCE)),--force)

cluster-functest: $(STAMP) ## test the installed product on the cluster of your kubeconfig: drain NODE=name, then restore it
	@$(BIN)/python -m tests.functest $(NODE)

# ENGINE is the first container engine that works on this host. FLAGS are passed to the engine's build command, such as
# --network host; BASE is the base image.
ENGINE = $(eval ENGINE := $$(shell for engine in podman docker buildah; do $$$$engine info > /dev/null 2>&1 && { echo $$$$engine; break; }; done))$(ENGINE)
FLAGS ?=
BASE ?= python:3.13-slim
REVISION = $(shell git rev-parse HEAD 2> /dev/null || echo unknown)
# The commit's date is the layers' timestamp, so that the same sources and libraries produce the same layers.
DATED = $(if $(filter docker,$(ENGINE)),,--layers --timestamp $(shell git log -1 --format=%ct 2> /dev/null || echo 0))
BUILD_IMAGE = $(ENGINE) build --file Dockerfile --build-arg BASE=$(BASE) --build-arg VERSION=$(or $(VERSION),unreleased) --build-arg REVISION=$(REVISION) $(strip $(DATED) $(FLAGS))

image: ## build the image with podman, docker or buildah, and its SBOM build/sbom.json; IMAGE=localhost:5000/nodemaintenance VERSION=1.2.3 BASE=python:3.13-slim FLAGS="--network host"
	@[ -n '$(ENGINE)' ] || { echo 'error: cannot build an image: no working podman, docker or buildah found: install one of them' >&2; exit 1; }
	@$(BUILD_IMAGE) --tag $(IMAGE):$(if $(VERSION),v$(VERSION),latest) .
	@mkdir -p build
	@$(BUILD_IMAGE) --target sbom --output type=local,dest=build .

plugin: $(STAMP) ## build the wheel of kubectl maintenance in build/plugin; URL=https://downloads.example also writes archives and a manifest for krew, which users download from that URL
	@$(BIN)/python -m localcluster.plugin build/plugin $(URL)

# The image's name is $(REGISTRY)/nodemaintenance, or $(IMAGE) if it is set; VERSION=1.2.3 becomes the tag v1.2.3. The
# file PUSHED contains the name of the last pushed image, which `make deploy` uses by default. For a registry on
# localhost, podman and buildah need a flag to use HTTP; docker needs none.
HTTP_FLAG = $(if $(filter localhost:%,$(IMAGE)),$(if $(filter docker,$(ENGINE)),,--tls-verify=false))
container-build container-push:
	@[ -n '$(VERSION)' ] || { echo 'error: VERSION is required: make $@ VERSION=1.2.3, and REGISTRY=registry.example if the registry is not $(REGISTRY)' >&2; exit 1; }
	@$(if $(filter %build,$@),$(MAKE) --no-print-directory image)
	@[ -n '$(ENGINE)' ] || { echo 'error: cannot push an image: no working podman, docker or buildah found: install one of them' >&2; exit 1; }
	@$(if $(filter %push,$@),$(ENGINE) push $(HTTP_FLAG) $(IMAGE):v$(VERSION) && mkdir -p $(dir $(PUSHED)) && echo '$(IMAGE):v$(VERSION)' > $(PUSHED))

container-build-and-push-community:
	@$(MAKE) --no-print-directory container-build
	@$(MAKE) --no-print-directory container-push

# The image's name if the user sets IMAGE or REGISTRY; empty if both have their default values.
NAMED_IMAGE = $(if $(filter-out file,$(origin IMAGE) $(origin REGISTRY)),$(IMAGE))

bundle: $(STAMP) ## update the OLM bundle, its catalog entry and deploy/olm.yaml, which are generated from manifests/olm; IMAGE=registry.example/nodemaintenance sets the image's name
	@$(BIN)/python -m release.olm --image '$(NAMED_IMAGE)'

release: $(STAMP) ## commit VERSION=1.2.3, build its image, charts, wheel, OLM files, SBOM and checksums into build/release, and create the tag; IMAGE=registry.example/nodemaintenance URL=https://download.example WITHOUT=image; pushes nothing
	@$(BIN)/python -m release '$(VERSION)' --image '$(NAMED_IMAGE)' --url '$(URL)' --without '$(WITHOUT)'

release-files: $(STAMP) ## build the files of `make release` from the commit with the tag, without a new tag
	@$(BIN)/python -m release '$(VERSION)' --image '$(NAMED_IMAGE)' --url '$(URL)' --without '$(WITHOUT)' --files-only

# OPERATOR and OPERATOR_CRD are passed through the environment, so that they need no quoting.
bench: $(STAMP) ## compare drains with kubectl drain and with a minimal client that only evicts; ENGINES=local,knative,rabbitmq CASES="10 pods" ROUNDS=5 QUICK=1 FULL=1 ADD=1; OPERATOR=program OPERATOR_CRD=file adds another operator
	@$(BIN)/python -m bench --engines $(ENGINES) --cases '$(CASES)' --rounds $(ROUNDS) $(if $(QUICK),--quick) $(if $(FULL),--full) $(if $(ADD),--add)

chaos: $(STAMP) ## inject faults during drains of twenty nodes, and check invariants; SEED=1 SECONDS=300 ENGINES=local,knative,rabbitmq; COMPONENT=mutex SEED=1 RUNS=50 upgrades the nodes instead
	@$(BIN)/python -m chaos --engines $(ENGINES) --component $(COMPONENT) --seed $(SEED) --runs $(RUNS) $(if $(SECONDS),--seconds $(SECONDS))

performance: $(STAMP) ## update docs/performance.md from the latest results of `make bench`
	@$(BIN)/python -m bench.page

lint: $(STAMP) ## check style, wording and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python -m tests.wording
	@$(BIN)/mypy

build: $(STAMP) ## build the servers now instead of at their first use
	@$(BIN)/python -m localcluster build

clean: ## stop the cluster and remove all generated files in this directory
	@$(UP_COMMAND) down
	@rm -rf $(VENV) .cluster build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "the built servers stay in $${XDG_CACHE_HOME:-$$HOME/.cache}/nodemaintenance: remove that directory to build them again"

# A working .venv is kept, because $(PYTHON) may be the Python in .venv, and programs in .venv may be running. --no-deps
# skips resolving, because the lock file is complete. This project is built with the setuptools of the lock file.
$(STAMP): $(LOCK) pyproject.toml | needs
	@echo 'setting up $(VENV): $(if $(UV),uv,pip) installs the packages of $(LOCK)$(if $(UV),, (about a minute))'
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || { $(NEW_VENV); }
	@{ $(INSTALL_LOCK) && $(INSTALL_PROJECT); } || { echo 'error: cannot set up $(VENV), see the error above: if the package index is unreachable, connect to the network or set $(if $(UV),UV_DEFAULT_INDEX,PIP_INDEX_URL) to a mirror, then run make again' >&2; exit 1; }
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

# uv keeps pinned versions that the requirements still allow. The lock file has no annotations and no header, because
# they would contain local paths.
lock: ## pin the packages of requirements-dev.txt in requirements-dev.lock, with hashes; ARGS=--upgrade selects the newest versions
	@[ -n '$(UV)' ] || { echo 'error: uv is required to write $(LOCK): install it (pipx install uv), then run make lock again' >&2; exit 1; }
	@$(UV) pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-annotate --no-header --output-file $(LOCK) requirements-dev.txt $(ARGS) > /dev/null

# Every target that sets up .venv runs this target first. It installs missing distribution packages, or lists them.
needs:
	@command -v $(PYTHON) >/dev/null || { echo 'error: Python 3.10 or newer is required: install it, or set its path: make PYTHON=/path/to/python3' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "error: Python 3.10 or newer is required, but $(PYTHON) is older: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -m localcluster.programs.packages --delivery $(DELIVERY) --real '$(REAL)' --engines '$(ENGINES)' $(MAKECMDGOALS)
