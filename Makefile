# Bare `make` lists the targets.
GO ?= go

# Property tests draw the same cases in every run; another seed, or 0 for a random one, explores further.
export RAPID_SEED ?= 1
export RAPID_NOFAILFILE ?= true

.DEFAULT_GOAL := help
.PHONY: help run test race race-slice far nocgo portable arm64 mpi mpich faults soak netns slurm kube-check nccl-abi gpu-check cu-check lint generate generated memory bench bench-models bench-ops bench-join bench-state bench-gemm bench-comm bench-against same-bits

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: ## train a GPT on the Go standard library's source with 2 ranks
	$(GO) run ./examples/gpt

test: ## run all tests
	$(GO) test ./...

race: ## run all tests under the race detector
	$(GO) test -race -timeout 20m ./...

# Whole, fsdp takes 5 minutes under the race detector.
SLICE ?= 0
race-slice: ## race detector on comm, optim, shard, internal, and every third test of fsdp: SLICE=0, 1 or 2
	$(GO) test -race -timeout 20m ./comm/... ./optim/... ./shard ./internal/...
	list=$$($(GO) test -race -list '^(Test|Example)' ./fsdp | awk '/^(Test|Example)/ && n++ % 3 == $(SLICE)' | paste -sd '|') && \
		test -n "$$list" && $(GO) test -race -timeout 20m ./fsdp -run "^($$list)$$"

# Left out, as they are about the memory of the host: what a step and a full state allocate, what is
# in RAM, how little of it is enough, and who shares it.
FAR ?= .
far: ## all tests of fsdp on a device that is late and out of reach: FAR=Golden for some
	FSDP_TEST_DEVICE=far $(GO) test ./fsdp -run '$(FAR)' \
		-skip '^(TestStepAllocatesLittle|TestOffloadReadsAhead|TestLargerThanMemory|TestIntoAllocates|TestIntoOptimizersMemory)$$'

nocgo: ## build and test without cgo
	CGO_ENABLED=0 $(GO) build ./...
	CGO_ENABLED=0 $(GO) test ./...

portable: ## test the kernels without assembly, and build for arm64
	$(GO) test -tags purego ./internal/kernel/... ./internal/ops
	$(GO) test -tags purego ./fsdp -run TestGoldenGradients
	GOARCH=arm64 $(GO) vet ./...

# Left out for time, minutes each under emulation: the contracts of groups, the comparison of all transports, and
# TestSharedGatherCopies. Left out as they cannot pass there: tests of deadlines so short that emulated ranks miss them,
# TestNoMemory, which maps 64 TiB, and TestAddressLimit, as the emulator ignores limits of addresses. Tests that start
# themselves again run: see .ci/arm64.
arm64: ## test kernels, shared memory and groups on an emulated arm64 (Debian: qemu-user)
	GOARCH=arm64 CGO_ENABLED=0 $(GO) test -exec "$(CURDIR)/.ci/arm64" ./internal/kernel/... ./internal/half
	GOARCH=arm64 CGO_ENABLED=0 $(GO) test -exec "$(CURDIR)/.ci/arm64" -skip '^TestNoMemory$$' ./internal/shm
	GOARCH=arm64 CGO_ENABLED=0 $(GO) test -exec "$(CURDIR)/.ci/arm64" \
		-skip 'Contract$$|^TestSameBitsEverywhere$$|^TestSharedGatherCopies$$|Timeout|^TestSilentRank$$|^TestAddressLimit$$' ./comm

mpi: ## test the groups over Open MPI (Debian: openmpi-bin libopenmpi-dev pkg-config)
	$(GO) vet -tags mpi ./comm/mpi
	$(GO) test -tags mpi ./comm/mpi

mpich: ## test the groups over MPICH (Debian: mpich libmpich-dev pkg-config)
	$(GO) test -tags mpi,mpich ./comm/mpi

faults: ## every fault in every collective over every transport, bits that flip on the wire, checkpoints that cannot be opened, a few minutes
	$(GO) run ./internal/faults

soak: ## ten minutes of random collectives with random faults
	$(GO) run ./internal/faults -soak 10m

netns: ## ranks, fsdprun and mpirun on hosts of their own, in network namespaces (root; Debian: iproute2 openmpi-bin)
	$(GO) test -tags netns ./internal/netns

slurm: ## train under Slurm on two such hosts, cancel, requeue, go on with the same bits (root; Debian: slurmctld slurmd munge iproute2)
	internal/netns/slurm.sh

kube-check: ## the Kubernetes manifests against the API's and Kubeflow's own checks (network, some minutes)
	cd examples/cluster/kubecheck && $(GO) test .

nccl-abi: ## compare our declarations of NCCL with real releases from Python wheels, no GPU needed
	nccl/abi/check.sh

gpu-check: ## the process group over NCCL on this machine's GPUs: contract and bandwidths; fails without a GPU
	nccl/gpucheck/run.sh

cu-check: ## the adapter for gorgonia.org/cu, with NVIDIA's headers from Python's wheels (network, pip)
	nccl/cuadapter/check.sh

lint: ## gofmt, vet, staticcheck
	@test -z "$$(gofmt -l .)" || { gofmt -l .; exit 1; }
	$(GO) vet ./...
	$(GO) vet -tags gpu ./nccl/gpucheck
	$(GO) tool staticcheck ./...

generate: ## generate the assembly again
	$(GO) generate ./...

generated: ## check that generating changes nothing
	@tree() { git status --porcelain; git diff; }; before=$$(tree); $(GO) generate ./... && \
		test "$$before" = "$$(tree)" || { git status --short; exit 1; }

# The tool has a training program of its own, since examples/gpt has no flags for strategies, frozen parameters or offload.
same-bits: ## compare trainings bit for bit with another commit: BASE=main~1, RENAMED=New=Old,… for public names
	$(GO) run ./internal/samebits -base "$(BASE)" -renamed "$(RENAMED)"

memory: ## what a rank holds with DDP, in one unit, by blocks, and under each strategy, planned and counted
	$(GO) run ./internal/bench memory

bench: ## a GPT's steps beside the processor's peak, and beside PyTorch: TORCH=python of a venv that has it
	$(GO) run ./internal/bench train -torch "$(TORCH)"

bench-models: ## passes of whole models on one core, beside PyTorch: TORCH=python of a venv that has it
	$(GO) run ./internal/bench models -run '^[^/]+$$' -bfloat16 -torch "$(TORCH)"

bench-ops: ## passes of single operations on one core, beside PyTorch: TORCH=python of a venv that has it
	$(GO) run ./internal/bench models -run ^op/ -bfloat16 -seconds 3 -torch "$(TORCH)"

bench-join: ## what Join and JoinCalls cost with even data, and what a rank without a batch takes
	$(GO) run ./internal/bench join -seconds 8

bench-state: ## optimizer state made whole against broadcasts, PyTorch's with TORCH=python, and checkpoints beside files; needs more than 23 GB of memory
	$(GO) run ./internal/bench state -torch "$(TORCH)"

bench-gemm: ## GFLOP/s of the matrix product
	$(GO) test ./internal/kernel/gemm -run '^$$' -bench Gemm -benchtime 200ms

bench-comm: ## GB/s of the collectives, beside Gloo, Open MPI, MPICH and memcpy
	$(GO) run ./internal/bench comm

# The measurements are a program of their own, since it is compiled at both commits from one source.
bench-against: ## steps, collectives and checkpoints in turns with those of another commit: BASE=main~1
	$(GO) run ./internal/bench against -base "$(BASE)" -renamed "$(RENAMED)"
