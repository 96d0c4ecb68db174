# `make demo` and `make test` do all set-up themselves, on a fresh clone with Python 3.11 or newer.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= $(firstword $(foreach name,python3.11 python3,$(shell command -v $(name) 2>/dev/null)))
BIN := .venv/bin
PROTOS := $(wildcard proto/veilsum_proto/*.proto)
TORCH := $(shell grep '^torch==' constraints.txt)
# PyTorch's wheels on PyPI bring several gigabytes of CUDA along; those of its own index for processors do not. GPU=1 takes the former.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
TORCH_FROM := --no-deps --retries 1 $(if $(GPU),,--extra-index-url $(TORCH_INDEX))
ARGS ?=
# Set or not: hundreds of processes that tests start, and each worker, would compile everything anew.
unexport PYTHONDONTWRITEBYTECODE
# Tests wait for processes and disks half of the time, so there are more workers than cores.
WORKERS ?= $(shell echo $$((2 * $$(getconf _NPROCESSORS_ONLN) + 1)))

.PHONY: help venv tools tools-debian tools-helm tools-s3 tools-if-possible demo deploy-local test test-costs test-system test-loaded lint style types format bench audit mutants proto proto-check constraints docs wheels wheelhouse clean

help:
	@echo "Try it"
	@echo "  make demo          a coordinator and four hospitals on this machine (ARGS=\"--json\" for programs; GPU=1 with CUDA)"
	@echo "  make deploy-local  the services of deploy/compose.yaml without containers, and a study (ARGS=\"--keep\" to look around)"
	@echo "Check it"
	@echo "  make test          format, lint, types, import contracts, generated code and the tests (fetches the tools they run)"
	@echo "  make test-system   what takes long: kills at every write, chaos, load, guides, Ray, images, all planted faults"
	@echo "  make test-costs    what each test takes of the processors, with all processes that it starts (ARGS=FILE)"
	@echo "  make test-loaded   tests that once waited for the clock, repeated beside busy processes"
	@echo "  make lint format   ruff, mypy and import contracts; ruff's fixes"
	@echo "  make bench         speed, against peers in the same run (ARGS=\"sums --quick\")"
	@echo "  make mutants       plant faults in the code that guards records and let its tests find them (ARGS=\"--sample 300\")"
	@echo "  make audit         known advisories on every pinned version, bills of materials, into audit/ (needs the network)"
	@echo "Maintain it"
	@echo "  make venv tools    only install: Python packages into .venv; Prometheus, Alertmanager, nginx, Helm and a server of S3 into .tools"
	@echo "  make proto         write the code generated from proto/; make proto-check compares"
	@echo "  make constraints   pin what is installed now, after an upgrade"
	@echo "  make docs          the site of the documentation, readable without a network, into build/site"
	@echo "  make wheels        the wheels of the last commit, the same bytes wherever they are made, into dist/"
	@echo "  make wheelhouse    all that a machine without a network installs from, into wheelhouse/ (WHAT=participant, analyst or coordinator for one alone)"
	@echo "  make clean         remove everything that make made"

# Run time only: all that the demo needs.
.venv/.runtime: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; set PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "$(PYTHON) is older than 3.11; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "Installing into .venv; this takes minutes the first time" >&2
	@test -x $(BIN)/python || "$(PYTHON)" -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH_FROM) $(TORCH)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

# With the development tools.
.venv/.installed: .venv/.runtime
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,ray,simulation]'
	@touch $@

venv: .venv/.installed

tools: tools-debian tools-helm tools-s3

tools-debian:
	@deploy/tools/fetch.sh

tools-helm:
	@"$(PYTHON)" deploy/helm/fetch.py

tools-s3:
	@cmp -s deploy/tools/s3.txt .tools/s3/installed.txt || { "$(PYTHON)" -m venv .tools/s3 && mkdir -p .tools/bin && \
		.tools/s3/bin/python -m pip install --quiet --disable-pip-version-check -r deploy/tools/s3.txt && \
		ln -sf ../s3/bin/moto_server .tools/bin/moto_server && cp deploy/tools/s3.txt .tools/s3/installed.txt; }

# Tests that need a program which cannot be fetched are skipped, and say so in the end; VEILSUM_REQUIRE_TOOLS=1 demands it.
tools-if-possible: .venv/.installed
	@make --no-print-directory --keep-going tools || test "$${VEILSUM_REQUIRE_TOOLS:-}" != 1

deploy-local: .venv/.installed tools
	@PYTHONPATH=tests $(BIN)/python -m local $(ARGS)

demo: .venv/.runtime
	@$(BIN)/veilsum demo $(ARGS)

PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# Types, imports and generated code are checked while the tests run; their output comes last.
test: style tools-if-possible
	@checks=$$(mktemp); trap 'rm -f "$$checks"' EXIT; \
	make --no-print-directory --keep-going types proto-check > "$$checks" 2>&1 & beside=$$!; \
	status=0; $(PYTEST) $(ARGS) || status=$$?; \
	wait $$beside || status=1; \
	cat "$$checks"; exit $$status

# What is dear here and shows what another test shows belongs to test-system.
test-costs: .venv/.installed tools-if-possible
	PYTHONPATH=tests $(PYTEST) -p costs $(ARGS)

# Whole federations for long, and properties with all their examples: for a release, and for whoever changes the protocol.
test-system: .venv/.installed tools-if-possible
	$(PYTEST) -m "system or hypothesis" --hypothesis-profile=thorough $(ARGS)

# Tests that once waited by the clock, three times beside four busy processes (ARGS="--busy 8 --times 20 tests/...").
test-loaded: .venv/.installed tools-if-possible
	$(BIN)/python tests/loaded.py $(ARGS)

lint: style types

style: .venv/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.installed
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.installed
	PYTHONPATH=tests $(BIN)/python -m benchmarks $(ARGS)

# Fails where an advisory names a pinned version, and where the database of advisories cannot be asked.
audit: .venv/.installed
	@test -x .tools/audit/bin/pip-audit || { $(BIN)/python -m venv .tools/audit && \
		.tools/audit/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt pip-audit==2.10.1; }
	@$(BIN)/python deploy/tools/audit.py

# All of them take hours; what is in mutants.jsonl is not judged again while module and tests are the same.
mutants: .venv/.installed
	PYTHONPATH=tests $(BIN)/python -m mutants $(ARGS)

# $(call generate,directory): write the code of every .proto below the directory.
define generate
PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -I proto \
	--python_out=$(1) --mypy_out=quiet:$(1) --mypy_grpc_out=quiet:$(1) $(PROTOS)
endef

proto: .venv/.installed
	$(call generate,proto)

proto-check: .venv/.installed
	@generated=$$(mktemp -d); trap 'rm -rf "$$generated"' EXIT; \
	$(call generate,"$$generated"); \
	for file in "$$generated"/veilsum_proto/*; do \
		diff -u "proto/veilsum_proto/$${file##*/}" "$$file" \
			|| { echo "proto/veilsum_proto/$${file##*/} is stale: run \`make proto\`" >&2; exit 1; }; \
	done; \
	for file in proto/veilsum_proto/*_pb2*; do \
		test -e "$$generated/veilsum_proto/$${file##*/}" \
			|| { echo "$$file comes from no .proto: delete it, or run \`make proto\`" >&2; exit 1; }; \
	done

# After an upgrade in .venv: what is installed now becomes what everyone installs.
constraints: .venv/.installed
	{ echo '# Exact versions that veilsum is built and tested with, for `pip install -c constraints.txt`; `make constraints` writes it.'; \
	  $(BIN)/python -m pip freeze --all --exclude-editable --exclude veilsum --exclude pip --exclude wheel | sed 's/+cpu$$//'; } > constraints.new
	mv constraints.new constraints.txt

# Sphinx lies in a folder of its own, which python reads before .venv: a product that is installed has nothing of it.
MERMAID := mermaid@11.17.2
MERMAID_SHA256 := 581ed7d74bd9048d0e3a91363927d72ef22942d7722546b27f7cc29e35390eb8
.tools/docs/installed.txt: .venv/.runtime deploy/site/requirements.txt Makefile
	@rm -rf .tools/docs && mkdir -p .tools/docs
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target .tools/docs -r deploy/site/requirements.txt
	@if command -v npm > /dev/null && packed=$$(cd .tools/docs && npm pack --silent $(MERMAID)); then \
		cd .tools/docs && tar -xzf "$$packed" --strip-components=2 package/dist/mermaid.min.js && \
		rm "$$packed" && echo "$(MERMAID_SHA256)  mermaid.min.js" | sha256sum --check --quiet; \
		else echo "without npm and its registry, diagrams stay text" >&2; fi
	@cp deploy/site/requirements.txt $@

# A warning fails it, and so does a page that would load anything from elsewhere.
SITE ?= build/site
docs: .venv/.installed .tools/docs/installed.txt
	@rm -rf "$(SITE)"
	@PYTHONPATH=.tools/docs $(BIN)/python -m sphinx --quiet --fail-on-warning -b html -c deploy/site -d "$(SITE).read" . "$(SITE)"
	@! grep -rnoE --include='*.html' --include='*.css' --exclude-dir=_downloads $(ELSEWHERE) "$(SITE)"
	@echo "$(SITE)/index.html: $$(find "$(SITE)" -name '*.html' | wc -l) pages, $$(du -sm "$(SITE)" | cut -f1) MB"
ELSEWHERE := '(src|srcset|data|poster)="(https?:)?//[^"]*|<link[^>]+href="(https?:)?//[^"]*|url\(.?(https?:)?//[^)]*|@import[^;]*'

# The whole platform and each party's part (docs/decisions/0110-what-a-hospital-installs.md): an environment holds one of them.
PARTIES := participant analyst coordinator

# Of the last commit and nothing that lies about; hatchling gives files the same order, time and mode everywhere.
DIST ?= dist
wheels: .venv/.runtime
	@rm -rf "$(DIST)" && mkdir -p "$(DIST)/source"
	@git archive HEAD | tar -x -C "$(DIST)/source"
	@cd "$(DIST)" && "$(abspath $(BIN))/python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir . ./source $(addprefix ./source/,$(PARTIES))
	@cd "$(DIST)" && rm -rf source && sha256sum -- *.whl | tee SHA256SUMS

# For machines without a network: wheels of what is pinned and of this software, for this machine's Python and processor.
WHAT ?= platform
WHEELHOUSE ?= wheelhouse
wheelhouse: .venv/.runtime
	@rm -rf "$(WHEELHOUSE).part" && mkdir "$(WHEELHOUSE).part"
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$(WHEELHOUSE).part" \
		$(if $(filter $(PARTIES),$(WHAT)),./$(WHAT),.)
	$(if $(filter analyst,$(WHAT)),,@$(BIN)/python -m pip download --quiet --disable-pip-version-check --dest "$(WHEELHOUSE).part" $(TORCH_FROM) $(TORCH))
	@$(BIN)/python -m pip download --quiet --disable-pip-version-check --only-binary=:all: -c constraints.txt \
		--find-links "$(WHEELHOUSE).part" --dest "$(WHEELHOUSE).part" "$(WHEELHOUSE).part"/veilsum*.whl
	@cp constraints.txt "$(WHEELHOUSE).part/"
	@cd "$(WHEELHOUSE).part" && sha256sum -- *.whl constraints.txt > SHA256SUMS
	@rm -rf "$(WHEELHOUSE)" && mv "$(WHEELHOUSE).part" "$(WHEELHOUSE)"
	@echo "$(WHEELHOUSE): $$(ls "$(WHEELHOUSE)" | grep -c whl$$) wheels, $$(du -sm "$(WHEELHOUSE)" | cut -f1) MB; docs/support.md says how to install them"

clean:
	rm -rf wheelhouse wheelhouse.part .venv .tools audit build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache veilsum-demo*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
