.PHONY: help test race long stepped majors lint installable bench bench-peers console-browser sim chaos mutants

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

test: ## the quick tier of the tests, on a real PostgreSQL; says in the end what was skipped
	@tools/test

race: ## the quick tier under the race detector
	go test -race -p 1 -timeout 20m ./...

long: ## the long tier: everything, before a release; Ctrl-C ends it, and make long goes on
	@tools/long

stepped: ## six hundred scripts, step by step on a real server; SEED=7 plays one and writes stepped.jsonl
ifdef SEED
	go test -race -v -run '^TestStepped' ./internal/consume -rapid.seed=$(SEED) -rapid.checks=1 -stepped.history=stepped.jsonl
else
	LONG_TESTS=1 go test -race -run '^TestStepped$$' ./internal/consume -rapid.checks=500 -timeout 1h
	LONG_TESTS=1 go test -race -run '^TestSteppedTwice$$' ./internal/consume -rapid.checks=100 -timeout 1h
endif

majors: ## the tests that meet the server, on PostgreSQL 13 to 18 (npm fetches what is missing)
	tools/majors

lint: ## format, vet, go.mod, staticcheck, of all modules
	tools/lint

bench: ## what the library promises, measured in some minutes
	go run ./cmd/bench

bench-peers: ## package jobs beside River on one server, in fifteen minutes
	cd cmd/bench/peers && go run .

installable: ## go install ...@version of the commands and an example, from an empty module cache
	tools/install

console-browser: ## the console in Chromium, judged by axe-core (npm fetches that)
	cd ops/console/browser && go test -count=1 -timeout 25m ./...

sim: ## watch workers survive crashes, rollbacks and late commits
	go run ./cmd/sim -workers 5 -writers 20

chaos: ## killed processes and servers, full disks, promotions; ten minutes for events, ten for jobs
	go run ./cmd/chaos
	go run ./cmd/chaos -jobs

mutants: ## plant mistakes in the protocol, one at a time, and see the simulation catch each
	go run ./cmd/mutants
