# Bare `make` lists the targets.
GO ?= go

# Property tests draw the same cases in every run; another seed, or 0 for a random one, explores further.
export RAPID_SEED ?= 1
export RAPID_NOFAILFILE ?= true

.DEFAULT_GOAL := help
.PHONY: help run test race nocgo portable mpi mpich faults soak netns nccl-abi gpu-check cu-check lint generate memory bench bench-join bench-state bench-gemm bench-comm same-bits

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: ## train a GPT on the Go standard library's source with 2 ranks
	$(GO) run ./examples/gpt

test: ## run all tests
	$(GO) test ./...

race: ## run all tests under the race detector
	$(GO) test -race -timeout 20m ./...

nocgo: ## build and test without cgo
	CGO_ENABLED=0 $(GO) build ./...
	CGO_ENABLED=0 $(GO) test ./...

portable: ## test the kernels without assembly, and build for arm64
	$(GO) test -tags purego ./internal/kernel/... ./internal/ops
	$(GO) test -tags purego ./fsdp -run TestGoldenGradients
	GOARCH=arm64 $(GO) vet ./...

mpi: ## test the groups over Open MPI (Debian: openmpi-bin libopenmpi-dev pkg-config)
	$(GO) vet -tags mpi ./comm/mpi
	$(GO) test -tags mpi ./comm/mpi

mpich: ## test the groups over MPICH (Debian: mpich libmpich-dev pkg-config)
	$(GO) test -tags mpi,mpich ./comm/mpi

faults: ## every fault in every collective over every transport, a few minutes
	$(GO) run ./comm/faults

soak: ## ten minutes of random collectives with random faults
	$(GO) run ./comm/faults -soak 10m

netns: ## ranks on hosts of their own, in network namespaces (root, iproute2)
	$(GO) test -tags netns ./comm/netns

nccl-abi: ## compare our declarations of NCCL with real releases from Python wheels, no GPU needed
	nccl/abi/check.sh

gpu-check: ## the process group over NCCL on this machine's GPUs: contract and bandwidths; fails without a GPU
	nccl/gpucheck/run.sh

cu-check: ## the adapter for gorgonia.org/cu, with NVIDIA's headers from Python's wheels (network, pip)
	nccl/cuadapter/check.sh

lint: ## gofmt, vet, staticcheck
	@test -z "$$(gofmt -l .)" || { gofmt -l .; exit 1; }
	$(GO) vet ./...
	$(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...

generate: ## generate the assembly again
	$(GO) generate ./...

# The tool has a training program of its own, since examples/gpt has no flags for strategies, frozen parameters or offload.
same-bits: ## compare trainings bit for bit with another commit: BASE=main~1, RENAMED=New=Old,… for public names
	$(GO) run ./internal/samebits -base "$(BASE)" -renamed "$(RENAMED)"

memory: ## what a rank holds under each sharding strategy, planned and counted
	$(GO) run ./internal/bench -memory

bench: ## tokens/s and GFLOP/s of a GPT, against Gorgonia's TapeMachine; how much communication is hidden
	$(GO) run ./internal/bench

bench-join: ## what Join costs with even data, and what a rank without a batch takes
	$(GO) run ./internal/bench -join -seconds 8

bench-state: ## optimizer state made whole, and checkpoints, beside plain copies and files; needs 15 GB of memory
	$(GO) run ./internal/bench -state

bench-gemm: ## GFLOP/s of the matrix product
	$(GO) test ./internal/kernel/gemm -run '^$$' -bench Gemm -benchtime 200ms

bench-comm: ## GB/s of the collectives, beside Gloo, Open MPI, MPICH and memcpy
	$(GO) run ./comm/bench
