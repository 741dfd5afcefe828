# Each target's comment is its help text. Builds share one target directory in the user's cache, so that a fresh
# clone does not compile the world again.
SHELL := /bin/bash -eu -o pipefail
export CARGO_TARGET_DIR ?= $(HOME)/.cache/tidegate/target
export PIP_DISABLE_PIP_VERSION_CHECK = 1
PYTHON ?= python3
VENV := .venv
SUITE_VENV ?= $(HOME)/.cache/tidegate/suite
SUITE_OPTIONS ?= --compare
ECOSYSTEM_VENVS ?= $(HOME)/.cache/tidegate/ecosystem
BIN := $(VENV)/bin
.DEFAULT_GOAL := help

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(BIN)/maturin: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tidegate needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/pip install --quiet --group dev
	touch $@

install: $(BIN)/maturin ## Build the extension and install it into .venv, editable
	$(BIN)/maturin develop --release --quiet

demo: install ## Replay an outage against the fault server and show what tidegate made of it
	$(BIN)/tidegate demo

test: test-rust test-python ## Run every test

test-rust: ## Run the tests of the core, which need no Python
	cargo test --release --quiet

test-python: install ## Run the tests of the package
	$(BIN)/pytest -q

quota: install ## Work off 2,000 calls against a quota that is announced, in one process and in four; takes a minute
	$(BIN)/python tests/python/announced_quota.py

chaos: install ## Kill processes while they run tools, and count what became of every action
	$(BIN)/python tests/chaos/run.py

suite: install ## Run the official SDK's tests against the drop-ins, over a real socket; both bars as one line of JSON
	$(BIN)/python tests/suite/judge.py $(SUITE_VENV) --pythonpath python $(SUITE_OPTIONS)

# Two environments, as what is not ready for openai 3 goes with nothing that needs it.
$(ECOSYSTEM_VENVS)/installed: pyproject.toml
	for group in ecosystem ecosystem-openai2; do \
		$(PYTHON) -m venv $(ECOSYSTEM_VENVS)/$$group; \
		$(ECOSYSTEM_VENVS)/$$group/bin/pip install --quiet --upgrade 'pip>=25.1'; \
		$(ECOSYSTEM_VENVS)/$$group/bin/pip install --quiet --upgrade --group $$group; \
	done
	$(ECOSYSTEM_VENVS)/ecosystem/bin/pip install --quiet --upgrade --no-deps 'instructor>=1.17'
	touch $@

ecosystem: install $(ECOSYSTEM_VENVS)/installed ## Run LangChain, the Agents SDK and others over tidegate, against the fault server
	PYTHONPATH=python $(ECOSYSTEM_VENVS)/ecosystem/bin/python -m pytest -q \
		tests/python/ecosystem tests/python/test_docs.py -k 'not test_blocks_run'
	PYTHONPATH=python $(ECOSYSTEM_VENVS)/ecosystem-openai2/bin/python -m pytest -q \
		tests/python/ecosystem tests/python/test_docs.py -k 'llama_index or test_instructor'

# One of the two bars: in the other, some tests look whether the server has heard of a closed stream before it can.
suite-core: install ## Run the core selection of those tests over the wire, without comparing the traffic
	$(BIN)/python tests/suite/judge.py $(SUITE_VENV) --pythonpath python --select core --mode wire

# The oldest version of the official SDK that the drop-ins are for, as in pyproject.toml.
OLDEST_OPENAI := 3.50.0
OLDEST_VENV ?= $(HOME)/.cache/tidegate/openai-$(OLDEST_OPENAI)

oldest: install ## Test the drop-ins with the oldest version of the official SDK that they are for
	test -x $(OLDEST_VENV)/bin/python || $(PYTHON) -m venv $(OLDEST_VENV)
	$(OLDEST_VENV)/bin/pip install --quiet --upgrade 'pip>=25.1'
	$(OLDEST_VENV)/bin/pip install --quiet --group dev 'openai==$(OLDEST_OPENAI)'
	PYTHONPATH=python $(OLDEST_VENV)/bin/python -m pytest -q -p no:cacheprovider $(wildcard tests/python/test_dropin*.py tests/python/test_fast*.py) tests/python/test_httpx_transport.py tests/python/test_results.py

simulate: ## Run the fleet simulator and print its figures beside those of common retry policies
	cargo run --release --quiet --example simulate

plot: ## Draw docs/images/retry-storm.svg from the simulator
	cargo run --release --quiet --example simulate -- --plot docs/images/retry-storm.svg

picture: install ## Draw docs/images/dashboard.svg from a run that Prometheus scrapes
	$(BIN)/python docs/draw_dashboard.py

check: lint layers test suite-core ## What continuous integration runs: format, lints, layers, stubs, every test

# With optimisation, though nothing is run: what the tests and the extension have built is then used again. The
# core without Python is looked at too, beside one example that makes cargo choose the features of the first pass.
lint: install ## Format, clippy, ruff, types, and the stub beside the extension it describes
	cargo fmt --check
	cargo clippy --release --quiet --all-targets --features python -- -D warnings
	cargo clippy --release --quiet --lib --example simulate -- -D warnings
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest tidegate._core

$(VENV)/.bench: pyproject.toml $(BIN)/maturin
	$(BIN)/pip install --quiet --group bench
	touch $@

bench: install $(VENV)/.bench ## Measure each mechanism, then tidegate beside its peers; takes half an hour
	cargo bench --benches
	$(BIN)/python benches/python/run.py --markdown

bench-smoke: install $(VENV)/.bench ## One pass of every bench: does it run?
	cargo bench --quiet --benches -- --test
	$(BIN)/python benches/python/run.py --quick

layers: ## One file names reqwest, one asyncio, one the clock; locks survive a fork
	@! grep -rlE 'reqwest::(Client|Proxy|Error)' src --include='*.rs' | grep -v '^src/transport/reqwest.rs$$'
	@! grep -rlE '"asyncio"' src --include='*.rs' | grep -v '^src/python/bridge.rs$$'
	@! grep -rlE 'SystemTime::now|std::time::Instant::now' src --include='*.rs' | grep -v '^src/clock.rs$$'
	@! grep -rlE '\bparking_lot\b' src --include='*.rs' | grep -v '^src/lock.rs$$'
	@! grep -rl 'pyo3::' src --include='*.rs' | grep -v '^src/python/'

fmt: $(BIN)/maturin ## Format everything
	cargo fmt
	$(BIN)/ruff format --quiet .
	$(BIN)/ruff check --quiet --fix .

clean: ## Remove what was built here; the shared target directory stays
	rm -rf $(VENV) target dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

.PHONY: check ecosystem lint layers bench bench-smoke help install demo test test-rust test-python quota chaos suite suite-core oldest simulate plot picture fmt clean
