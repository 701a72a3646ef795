# Bare `make` lists the targets.
GO ?= go

# Property tests draw the same cases in every run; another seed, or 0 for a random one, explores further.
export RAPID_SEED ?= 1
export RAPID_NOFAILFILE ?= true

# Small heaps are collected too often: a third of the processor time of fsdp's tests went there.
test race far gpu-doubles nocgo lint: export GOGC ?= 400

.DEFAULT_GOAL := help
.PHONY: help run test race far gpu-doubles nocgo portable arm64 mpi lint generate generated same-bits bench workshop

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: ## train a GPT on the Go standard library's source with 2 ranks
	$(GO) run ./examples/gpt

# A package of tests takes two minutes at most, but on a machine that has much else to do: ten are go's limit.
test: ## run all tests of the library
	$(GO) test -timeout 30m ./...

# All of it takes 25 minutes on two cores, comm, its TCP and accept/parity most of them. A slice has every fourth test of these packages, and
# every fourth of the other packages. There properties are drawn 20 times, as their random cases seldom differ in what runs together.
SLICE ?=
ifneq ($(SLICE),)
race: export RAPID_CHECKS ?= 20
endif
race: ## run all tests under the race detector: SLICE=0, 1, 2 or 3 for a quarter of them
ifeq ($(SLICE),)
	$(GO) test -race -timeout 40m ./...
else
	for package in ./comm ./comm/internal/tcp ./fsdp/internal/accept/parity; do \
		list=$$($(GO) test -race -list '^(Test|Example)' $$package | awk '/^(Test|Example)/ && n++ % 4 == $(SLICE)' | paste -sd '|') && \
		test -n "$$list" && $(GO) test -race -timeout 40m $$package -run "^($$list)$$" || exit 1; \
	done
	list=$$($(GO) list ./... | awk '!/gofsdp\/(comm|comm\/internal\/tcp|fsdp\/internal\/accept\/parity)$$/ && n++ % 4 == $(SLICE)') && \
		test -n "$$list" && $(GO) test -race -timeout 40m $$list
endif
	@$(workshop) race

# Packages that train: tests say in code what of the processor they need, see kit.Needs.
TRAINING = ./fsdp ./fsdp/internal/accept/...

FAR ?= .
far: ## tests that train, on a device that is late and out of reach: FAR=Golden for some
	FSDP_TEST_DEVICE=far $(GO) test $(TRAINING) -timeout 30m -run '$(FAR)'

# NCCL's double adds as the host does, so that strategies have the same bits. All of it takes 16 minutes of processor. Most
# tests take less than a second; those with more than 20 are Parity (175), GoldenTraining (80), Transports (53),
# FrozenUnitsAreFreedInBackward (45), GoldenStrategies (43) and GoldenJoin (21). Properties are drawn 20 times. All faults
# take 11 s, and all waits that are left out 6.
GPU ?= .
gpu-doubles: export RAPID_CHECKS ?= 20
gpu-doubles: ## tests that train, on the doubles of GPUs (Linux, cgo, cc): GPU=Golden for some
	FSDP_TEST_DEVICE=gpu $(GO) test $(TRAINING) -timeout 180m -run '$(GPU)' -skip '^TestGPUFaults$$'
	FSDP_TEST_FAULTS=all $(GO) test ./fsdp/internal/accept/gpu -timeout 60m -run '^TestGPUFaults$$'
	FSDP_TEST_FAULTS=all $(GO) test ./fsdp/internal/engine/gpu -run '^TestLeftOut$$'

# Of the packages that train only examples and golden trainings: the rest is the same code with cgo.
nocgo: ## build without cgo, and test the packages that cgo changes
	CGO_ENABLED=0 $(GO) vet ./...
	CGO_ENABLED=0 $(GO) -C internal/workshop vet ./...
	cgo=$$($(GO) list -f '{{if .CgoFiles}}{{.ImportPath}}{{end}}' ./... | paste -sd '|') && \
		list=$$($(GO) list -test -f '{{.ForTest}}| {{join .Deps " "}} ' ./... | \
			awk -F '|' -v cgo=" ($$cgo) " '$$1 && $$2 ~ cgo && !/gofsdp\/fsdp(\/internal\/accept\/[a-z]*)?\|/ {print $$1}' | sort -u) && \
		test -n "$$list" && CGO_ENABLED=0 $(GO) test -timeout 30m $$list
	CGO_ENABLED=0 $(GO) test -timeout 30m ./fsdp ./fsdp/internal/accept/parity -run '^(TestGolden|Example)'

# Without assembly a kernel takes ten times as long: properties are drawn 20 times.
portable: export RAPID_CHECKS ?= 20
portable: ## test the kernels without assembly, and build for arm64 and for 32 bits
	$(GO) test -timeout 30m -tags purego ./internal/kernel/... ./internal/ops
	$(GO) test -timeout 30m -tags purego ./fsdp/internal/accept/parity -run TestGoldenGradients
	$(GO) vet -tags purego ./internal/kernel/... ./internal/ops
	GOARCH=arm64 $(GO) vet ./...
	GOARCH=arm64 $(GO) -C internal/workshop vet ./...
	GOARCH=386 $(GO) build ./comm/... ./fsdp ./fsdp/nn ./optim ./shard

# Left out for time, minutes each under emulation: the contracts of groups, the comparison of all transports, sums by
# halving of many ranks, and TestSharedGatherCopies. Properties are drawn 20 times. Left out as they cannot pass there: tests of deadlines so short that emulated ranks miss them,
# TestNoMemory, which maps 64 TiB, TestAddressLimit, as the emulator ignores limits of addresses, and TestLanesOfSockets,
# as it counts no bytes of sockets. Tests that start themselves again run: see .ci/arm64.
arm64: export RAPID_CHECKS ?= 20
arm64: ## test kernels, shared memory and groups on an emulated arm64 (Debian: qemu-user)
	GOARCH=arm64 CGO_ENABLED=0 $(GO) test -timeout 30m -exec "$(CURDIR)/.ci/arm64" ./internal/kernel/... ./internal/half
	GOARCH=arm64 CGO_ENABLED=0 $(GO) test -timeout 30m -exec "$(CURDIR)/.ci/arm64" -skip '^TestNoMemory$$' ./internal/shm
	GOARCH=arm64 CGO_ENABLED=0 $(GO) test -timeout 30m -exec "$(CURDIR)/.ci/arm64" \
		-skip 'Contract$$|^TestSameBitsEverywhere$$|^TestSharedGatherCopies$$|^TestHalving(Counts|SameBits|Mismatch)$$|Timeout|^TestSilentRank$$|^TestAddressLimit$$|^TestLanesOfSockets$$' ./comm ./comm/transport ./comm/internal/...

MPI ?= openmpi
mpi: ## test the groups over Open MPI, or MPICH with MPI=mpich (Debian: openmpi-bin libopenmpi-dev pkg-config, or mpich libmpich-dev pkg-config)
	$(GO) vet -tags mpi,$(MPI) ./comm/mpi
	$(GO) test -timeout 30m -tags mpi,$(MPI) ./comm/mpi

lint: ## gofmt, vet, staticcheck
	@test -z "$$(gofmt -l .)" || { gofmt -l .; exit 1; }
	$(GO) vet ./...
	$(GO) -C internal/workshop vet ./...
	$(GO) -C internal/workshop vet -tags gpu ./gpucheck
	$(GO) -C internal/workshop vet -tags netns ./netns
	staticcheck=$$($(GO) -C internal/workshop tool -n staticcheck) && $$staticcheck ./... && cd internal/workshop && $$staticcheck ./...

generate: ## generate the assembly and the pictures of docs again
	$(GO) generate ./...
	$(GO) -C internal/workshop generate ./...

generated: ## check that generating changes nothing
	@tree() { git status --porcelain; git diff; }; before=$$(tree); $(MAKE) -s generate && \
		test "$$before" = "$$(tree)" || { git status --short; exit 1; }

# The workshop's programs run in its directory, so paths are made absolute.
workshop = $(MAKE) --no-print-directory -C internal/workshop \
	$(foreach v,TORCH CUBLAS PTXAS,$(if $($v),$v="$(if $(findstring /,$($v)),$(abspath $($v)),$($v))"))

same-bits: ## compare trainings bit for bit with another commit: BASE=main~1, RENAMED=New=Old,… for public names
	@$(workshop) same-bits

bench: ## a GPT's steps beside the processor's peak, and beside PyTorch: TORCH=python of a venv that has it
	@$(workshop) bench

workshop: ## list the targets of internal/workshop, which run from here, too: more benchmarks, faults, clusters, GPUs
	@$(workshop) help

.DEFAULT:
	@$(workshop) $@
