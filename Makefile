# The few commands of everyday work. CARGO and FLAGS can be set: make test FLAGS='-p monarch-ledger'.

CARGO ?= cargo
FLAGS ?= --workspace

.PHONY: help
help: ## What there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: test
test: test-servers ## The whole suite, on real servers that it starts itself
	$(CARGO) test --no-fail-fast $(FLAGS)

.PHONY: demo
demo: servers ## One move, shown on real servers; with KEEP=1 they are left running
	$(CARGO) run --release --package monarch-cli --features demo -- \
		demo $(if $(filter-out 0,$(KEEP)),--keep)

# How often each side of a case is measured, and how many times as many rows there are.
RUNS ?= 5
SCALE ?= 1

.PHONY: bench
bench: servers ## Copy and stream against psql and a subscription; CASES='insert' names some
	$(CARGO) run --release --package monarch-bench -- --runs $(RUNS) --scale $(SCALE) $(CASES)

.PHONY: bench-blobs
bench-blobs: ## Objects against rclone in the same run, and five million keys
	tests/harness/install servers rclone
	$(CARGO) run --release --package monarch-blobs --example bench

.PHONY: histories
histories: servers ## The workflow histories that the replay test reads, made anew
	$(CARGO) build --workspace --bin monarch
	$(CARGO) run --package monarch-demo --example histories -- \
		"$$($(CARGO) metadata --no-deps --format-version 1 \
			| sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/debug/monarch" \
		worker/tests/histories

.PHONY: bench-outbox
bench-outbox: servers ## How fast the outbox drains; QUEUED='10000 1000000' names lengths of the queue
	$(CARGO) run --release --package monarch-outbox --example bench -- $(QUEUED)

.PHONY: servers
servers: ## Install the servers that the demo runs, where they are missing
	tests/harness/install servers

.PHONY: test-servers
test-servers: ## Install all that the suite runs, a browser among it, where it is missing
	tests/harness/install servers moto azurite chromium axe-core

.PHONY: fmt
fmt: ## Format the code
	$(CARGO) fmt --all

.PHONY: lint
lint: ## Clippy, with warnings denied
	$(CARGO) clippy $(FLAGS) --all-targets -- -D warnings

.PHONY: doc
doc: ## Documentation, with warnings denied
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --no-deps $(FLAGS)

# How long the fuzzer runs each target, and how long new random moves are begun.
SECONDS ?= 60
MINUTES ?= 10

.PHONY: fuzz
fuzz: ## The parsers over made-up input, SECONDS each
	SEED=$(SEED) fuzz/run $(SECONDS)

.PHONY: soak
soak: servers ## Random moves for MINUTES, or the one of SEED
	$(CARGO) run --package monarch-random --bin soak -- \
		$(if $(SEED),--seed $(SEED) --moves 1,--minutes $(MINUTES))
