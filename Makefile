# sandbox-run: every task a developer or the CI needs. `make` alone lists them.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Go's own installer puts it where a bare PATH does not look.
export PATH := $(PATH):/usr/local/go/bin:/usr/sbin:/sbin

# One place for versions of tools that are built from source.
export GOLANGCI_LINT_VERSION := v2.14.0
export GOVULNCHECK_VERSION   := v1.8.0
export GOTESTSUM_VERSION     := v1.13.0

# May be set on the command line.
export FUZZTIME   ?= 10s# time per fuzz target in test-all
export COVER_MIN  ?= 80#  the gate: more than this many percent of statements
export TESTFLAGS  ?=#     further flags for go test, e.g. TESTFLAGS='-run TestExec -v'
IMAGES            ?= $(patsubst images/%.yaml,%,$(wildcard images/*.yaml))# what `make images` builds
BENCHFLAGS        ?=#     further flags for the benchmark

# Static, reproducible, small.
GOBUILD_ENV   := CGO_ENABLED=0
GOBUILD_FLAGS := -trimpath -ldflags "-s -w" -tags thin# sandbox-run without the kit, which is an executable of its own

.PHONY: help
help: ## List the targets (default)
	@awk 'BEGIN {FS = ":.*## "} /^[a-z][a-z-]*:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile

.PHONY: build
build: ## Build the executables into bin/, static
	@mkdir -p bin
	$(GOBUILD_ENV) go build $(GOBUILD_FLAGS) -o bin/ ./cmd/...
	@# Containers are Linux's wherever the command is, and the daemon's machine may be of either kind.
	@[[ $$(go env GOOS) == linux ]] || for arch in amd64 arm64; do \
		$(GOBUILD_ENV) GOOS=linux GOARCH=$$arch go build $(GOBUILD_FLAGS) -o bin/sandbox-helper-linux-$$arch ./cmd/sandbox-helper; \
	done

.PHONY: install
install: ## Install the executables into $GOBIN (or $GOPATH/bin)
	$(GOBUILD_ENV) go install $(GOBUILD_FLAGS) ./cmd/...

.PHONY: check
check: ## Check formatting, vet, lint and run the unit tests: no root, no toolchain but Go (a minute)
	@scripts/deps.sh lint
	@scripts/check.sh

.PHONY: test
test: ## Run one real test of everything that matters, with coverage; installs missing packages first (8 minutes on two cores)
	@scripts/deps.sh test
	@scripts/test.sh

.PHONY: test-all
test-all: ## Run the long form of every test with -race, virtual machines, and each fuzz target for FUZZTIME (75 minutes on two cores)
	@scripts/deps.sh test-all
	@scripts/test-all.sh

.PHONY: images
images: build ## Build the project's own images into the default store: all of them, or IMAGES='python node'
	@scripts/deps.sh images
	bin/sandbox-run image build $(IMAGES)

.PHONY: vet
vet: ## Run go vet for linux/amd64, linux/arm64, darwin/arm64 and windows/amd64
	@for target in linux/amd64 linux/arm64 darwin/arm64 windows/amd64; do \
		echo "go vet $$target"; \
		CGO_ENABLED=0 GOOS=$${target%/*} GOARCH=$${target#*/} go vet ./...; \
	done

.PHONY: lint
lint: vet ## Check formatting, vet on four platforms, wording, golangci-lint, shellcheck
	@scripts/deps.sh lint
	@scripts/lint.sh

.PHONY: vuln
vuln: ## Look for known vulnerabilities that the code reaches (GOVULNDB names a mirror of the database)
	@scripts/vuln.sh

.PHONY: cover
cover: ## Print coverage by package and require more than COVER_MIN % over all of them
	@scripts/cover.sh

.PHONY: bench
bench: build ## Measure start-up, throughput and overhead against the reference command (BENCHFLAGS)
	@scripts/deps.sh bench
	go run ./internal/bench/cmd $(BENCHFLAGS)

.PHONY: attack
attack: build ## Attack this machine's sandboxes (doctor --attack), and run the tests that show the attacks can succeed
	@scripts/deps.sh test
	bin/sandbox-run doctor --attack
	SANDBOX_RUN_TEST_BIN=$(CURDIR)/bin go test -count=1 -timeout 10m -run 'Attack|Threat|Weakens' $(TESTFLAGS) ./internal/attack/... ./internal/conformance ./pkg/sandbox/... ./internal/linux/spawn

.PHONY: clean
clean: ## Remove what the targets above have made, the built lint tools included
	rm -rf bin cover
