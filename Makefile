# strake. The two commands: make up (a mounted file system), make test (everything that has to hold).

SHELL := /bin/sh
export PATH := $(PATH):/usr/local/go/bin
# Lets an older go fetch the version that go.mod names.
export GOTOOLCHAIN ?= auto

VERSION   := $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
GOBUILD    = CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=$(VERSION)"
# Packages that go through a mount or run for minutes; the race detector would only slow the kernel's clients down.
MOUNTED    = ./server/suite/...
INPROCESS  = $$(go list ./... | grep -v '/server/suite')
FUZZTIME  ?= 20s

.PHONY: up down build bundle test soak lint bench fuzz race proto clean

up:
	@.ci/install --run
	@$(MAKE) --no-print-directory build
	@.ci/up

down:
	@.ci/down

# Without a bundle (no network, no node) the binary is whole but for the dashboard's page.
build:
	@.ci/bundle || echo "make: the dashboard's bundle is not built, see above; the binary gets the placeholder page" >&2
	$(GOBUILD) -o bin/strake .

bundle:
	@.ci/bundle

test:
	@.ci/install
	@$(MAKE) --no-print-directory build
	go vet ./...
	go test -count=1 -timeout 2m .
	@$(MAKE) --no-print-directory race
	@# The race detector allocates; what counts allocations runs again without it.
	go test -count=1 -timeout 5m -run '(?i)alloc' $(INPROCESS)
	if [ -d server/suite ]; then STRAKE_SUITE_BIN=$(CURDIR)/bin/strake go test -count=1 -timeout 30m $(MOUNTED); fi

race:
	go test -race -count=1 -timeout 10m $(INPROCESS)

soak:
	@.ci/install
	@$(MAKE) --no-print-directory build
	STRAKE_SOAK=1 STRAKE_SUITE_BIN=$(CURDIR)/bin/strake go test -count=1 -timeout 12h -v ./...

lint:
	go vet ./...
	go tool staticcheck ./...
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo "run gofmt -w on these"; exit 1; }

bench: build
	go test -run '^$$' -bench . -benchtime 1s -timeout 30m $(INPROCESS)
	bin/strake bench foundation

fuzz:
	@FUZZTIME=$(FUZZTIME) .ci/fuzz

proto:
	@.ci/install --proto
	go build -o bin/ google.golang.org/protobuf/cmd/protoc-gen-go github.com/planetscale/vtprotobuf/cmd/protoc-gen-go-vtproto
	cd fs/wire && PATH="$(CURDIR)/bin:$$PATH" protoc --go_out=wirepb --go_opt=paths=source_relative \
		--go-vtproto_out=wirepb --go-vtproto_opt=paths=source_relative,features=marshal+unmarshal+size+pool \
		--go-vtproto_opt='pool=github.com/strakefs/strake/fs/wire/wirepb.*' wire.proto

clean:
	@if [ -s bin/up.pid ]; then echo "a file system is up; make down first" >&2; exit 1; fi
	rm -rf bin assets/node_modules
