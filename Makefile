# Bare `make` lists the targets.
GO ?= go

# Property tests draw the same cases in every run; another seed, or 0 for a random one, explores further.
export RAPID_SEED ?= 1
export RAPID_NOFAILFILE ?= true

# Small heaps are collected too often: a third of the processor time of fsdp's tests went there.
test race race-slice far gpu-doubles nocgo lint: export GOGC ?= 400

.DEFAULT_GOAL := help
.PHONY: help run test race race-slice far gpu-doubles nocgo portable arm64 mpi mpich faults soak simulate netns slurm kube-check nccl-abi cublaslt-abi ptx-check gpu-build gpu-check cu-check lint generate generated memory bench bench-models bench-ops bench-formats bench-plan bench-search bench-join bench-state bench-gemm bench-comm bench-growth bench-against same-bits

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: ## train a GPT on the Go standard library's source with 2 ranks
	$(GO) run ./examples/gpt

# A package of tests takes two minutes at most, but on a machine that has much else to do: ten are go's limit.
test: ## run all tests
	$(GO) test -timeout 30m ./...

race: ## run all tests under the race detector
	$(GO) test -race -timeout 40m ./...

# All of it takes 25 minutes on two cores, comm and fsdp most of them. Of the tests of these two each slice has every third, and
# every third of the other packages. Properties are drawn 20 times, as their random cases seldom differ in what runs together.
SLICE ?= 0
race-slice: export RAPID_CHECKS ?= 20
race-slice: ## a third of all tests under the race detector: SLICE=0, 1 or 2
	for package in ./comm ./fsdp; do \
		list=$$($(GO) test -race -list '^(Test|Example)' $$package | awk '/^(Test|Example)/ && n++ % 3 == $(SLICE)' | paste -sd '|') && \
		test -n "$$list" && $(GO) test -race -timeout 40m $$package -run "^($$list)$$" || exit 1; \
	done
	list=$$($(GO) list ./... | awk '!/gofsdp\/(comm|fsdp)$$/ && n++ % 3 == $(SLICE)') && \
		test -n "$$list" && $(GO) test -race -timeout 40m $$list

# Left out, as they are about the memory of the host: what a step and a full state allocate, what is
# in RAM, how little of it is enough, and who shares it.
FAR ?= .
far: ## all tests of fsdp on a device that is late and out of reach: FAR=Golden for some
	FSDP_TEST_DEVICE=far $(GO) test ./fsdp -timeout 30m -run '$(FAR)' \
		-skip '^(TestStepAllocatesLittle|TestOffloadReadsAhead|TestLargerThanMemory|TestIntoAllocates|TestIntoOptimizersMemory|TestMuon(Knobs|Checkpoints|InOwnGroups|OnOneRank)|Example_muon)$$'

# Left out, as it cannot hold there: collectives of a pass do not come to the group, where tests count, delay and check
# them (Counts, Traffic, DiscardWaits, SetFullOwns, CollectivesOwn, CheckerIsStrict, ShardedAsText, RankLeaves, Group,
# CloseWaitsForGathers) or see who waits where (DeathIn); operations of the test's own have no kernels (Custom, FarDevice,
# ErrorInside, PanicInside, PlanLists); batches are copied (BatchModified); streams know no fake time (JoinFailures, JoinCallsFail,
# JoinCallsNever); Muon works in ordinary memory; stragglers are told by groups; only shards of the host sum passes in a
# tree (VirtualRanks), have a second copy (ExampleStrategy) or travel in 8 bits (Blocks); ExampleFits prints a plan of a
# host; and what is about threads, files or memory of the host. NCCL's double adds as the host does, so that strategies
# have the same bits. GPU=. tries everything else, 369 tests in 16 minutes of processor. Most take less than a second of it;
# those with more than 20 are Parity (175), GoldenTraining (80), Transports (53), FrozenUnitsAreFreedInBackward (45),
# GoldenStrategies (43) and GoldenJoin (21). Properties are drawn 20 times. All faults take 11 s, and all waits that are
# left out 6.
GPU ?= ^Test(GPU|ConfigDevice|AllFrozen|Average|Buffers|Checkpoints|Clip|CloseInside|EightBits|EMA|Evaluation|Export|FreezeIs|FullGrads|Import|JoinGenerates|JoinLearns|JustInTime|KnobsAtRandom|LiveMemory|Norms(Of|Take)|OldShapes|OneRankGathers|ParamNorms|Refused|ReservedIs|ShardRanks|SumsInHalf|Swap|TraceDir|UnitGroupsOwn|Units)
gpu-doubles: export RAPID_CHECKS ?= 20
gpu-doubles: ## tests of fsdp on the doubles of GPUs (Linux, cgo, cc): GPU=Golden for some
	FSDP_TEST_DEVICE=gpu $(GO) test ./fsdp -timeout 180m -run '$(GPU)' \
		-skip '^Test(GPUFaults|Counts|Stragglers|Traffic(8|16)|ForwardSeesBlocks|VectorsAreNoBlocks|SumsOfBlocks|Int8|DiscardWaits|SetFullOwns|CollectivesOwn|CheckerIsStrict|Custom|FarDevice|JoinFailures|JoinCallsFail|ShardedAsText|RankLeaves|Group|ErrorInside|PanicInside|PlanLists|CloseWaitsForGathers|DeathIn|Resident|BatchModified|JoinCallsNever|SetFullWithoutMemory|ProgramsAreCounted|Threads|Offload|JoinOffload|LargerThan|StepAllocates|IntoAllocates$$|IntoOptimizersMemory|Muon(Knobs|Checkpoints|InOwnGroups|OnOneRank|Share)|Optional(AtRandom|Never|Many|Faults|Virtual|Precision)|VirtualRanks)|^Example(Config_virtualRanks|Fits|Strategy|_muon)$$'
	FSDP_TEST_FAULTS=all $(GO) test ./fsdp -timeout 60m -run '^TestGPUFaults$$'
	FSDP_TEST_FAULTS=all $(GO) test ./fsdp/internal/engine/gpu -run '^TestLeftOut$$'

# Of fsdp only what says that there is no device, and trainings: the rest is the same code with cgo.
nocgo: ## build without cgo, and test the packages that cgo changes
	CGO_ENABLED=0 $(GO) vet ./...
	cgo=$$($(GO) list -f '{{if .CgoFiles}}{{.ImportPath}}{{end}}' ./... | paste -sd '|') && \
		list=$$($(GO) list -test -f '{{.ForTest}}| {{join .Deps " "}} ' ./... | \
			awk -F '|' -v cgo=" ($$cgo) " '$$1 && $$2 ~ cgo && !/gofsdp\/fsdp\|/ {print $$1}' | sort -u) && \
		test -n "$$list" && CGO_ENABLED=0 $(GO) test -timeout 30m $$list
	CGO_ENABLED=0 $(GO) test -timeout 30m ./fsdp -run '^(Test(Golden|GPU|ConfigDevice)|Example)'

portable: ## test the kernels without assembly, and build for arm64 and for 32 bits
	$(GO) test -timeout 30m -tags purego ./internal/kernel/... ./internal/ops
	$(GO) test -timeout 30m -tags purego ./fsdp -run TestGoldenGradients
	GOARCH=arm64 $(GO) vet ./...
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
		-skip 'Contract$$|^TestSameBitsEverywhere$$|^TestSharedGatherCopies$$|^TestHalving(Counts|SameBits|Mismatch)$$|Timeout|^TestSilentRank$$|^TestAddressLimit$$|^TestLanesOfSockets$$' ./comm

mpi: ## test the groups over Open MPI (Debian: openmpi-bin libopenmpi-dev pkg-config)
	$(GO) vet -tags mpi ./comm/mpi
	$(GO) test -timeout 30m -tags mpi ./comm/mpi

mpich: ## test the groups over MPICH (Debian: mpich libmpich-dev pkg-config)
	$(GO) test -tags mpi,mpich ./comm/mpi

SEED ?= 0
faults: ## every fault in every collective over every transport, bits that flip on the wire, checkpoints that cannot be opened, a few minutes: SEED=number of an earlier run
	$(GO) -C internal/workshop run ./faults -seed $(SEED)

soak: ## ten minutes of random collectives with random faults
	$(GO) -C internal/workshop run ./faults -soak 10m

FAULTS ?= 100000
SIMULATE_RANKS ?= 64,256,1000
# It fails if one rank hangs, one commit is lost, or one error is late, without a fault, or names nobody who was at fault.
simulate: ## 100,000 random faults in simulated jobs of 8 to 64 ranks, and what joining and more takes: FAULTS=number SIMULATE_RANKS=64,256,1000 SIMULATE_SEED=1
	SIMULATE_FAULTS=$(FAULTS) SIMULATE_RANKS=$(SIMULATE_RANKS) $(GO) test ./fsdp/internal/simulate -v -count 1 -timeout 10h

netns: ## ranks, fsdprun and mpirun on hosts of their own, in network namespaces (root; Debian: iproute2 openmpi-bin)
	$(GO) -C internal/workshop test -tags netns ./netns

slurm: ## train under Slurm on two such hosts, cancel, requeue, go on with the same bits (root; Debian: slurmctld slurmd munge iproute2)
	internal/workshop/netns/slurm.sh

kube-check: ## the Kubernetes manifests against the API's and Kubeflow's own checks (network, some minutes)
	$(GO) -C internal/workshop/kubecheck test .

nccl-abi: ## compare our declarations of NCCL with real releases from Python wheels, no GPU needed
	internal/workshop/abi/nccl/check.sh

CUBLAS ?=
cublaslt-abi: ## the same of cuBLASLt: CUBLAS=directory with its include and lib, else from wheels of 500 MB
	internal/workshop/abi/cublaslt/check.sh $(CUBLAS)

PTXAS ?=
ptx-check: ## registers and spills of all kernels on sm_80, sm_90 and sm_100: PTXAS=path of ptxas, else from a wheel of 40 MB
	internal/gpu/kernels/ptxas.sh $(PTXAS)

gpu-build: ## build .gpu, the test programs that a machine with GPUs and without Go needs: see internal/workshop/gpucheck
	internal/workshop/gpucheck/run.sh build .gpu

gpu-check: gpu-build ## training on this machine's GPUs: speed, kernels, PyTorch beside it, parity, contract; fails without a GPU
	GPUCHECK_SECONDS=7200 .gpu/run.sh parts .gpu .gpu/out

cu-check: ## the adapter for gorgonia.org/cu, with NVIDIA's headers from Python's wheels (network, pip)
	nccl/cuadapter/check.sh

lint: ## gofmt, vet, staticcheck
	@test -z "$$(gofmt -l .)" || { gofmt -l .; exit 1; }
	$(GO) vet ./...
	$(GO) -C internal/workshop vet ./...
	$(GO) -C internal/workshop vet -tags gpu ./gpucheck
	staticcheck=$$($(GO) -C internal/workshop tool -n staticcheck) && $$staticcheck ./... && cd internal/workshop && $$staticcheck ./...

generate: ## generate the assembly again
	$(GO) generate ./...

generated: ## check that generating changes nothing
	@tree() { git status --porcelain; git diff; }; before=$$(tree); $(GO) generate ./... && \
		test "$$before" = "$$(tree)" || { git status --short; exit 1; }

# The tool has a training program of its own, since examples/gpt has no flags for strategies, frozen parameters or offload.
same-bits: ## compare trainings bit for bit with another commit: BASE=main~1, RENAMED=New=Old,… for public names
	$(GO) -C internal/workshop run ./samebits -base "$(BASE)" -renamed "$(RENAMED)"

# The programs run in the directory of their module, so a relative path is made absolute.
torch = $(if $(findstring /,$(TORCH)),$(abspath $(TORCH)),$(TORCH))

memory: ## what a rank holds with DDP, in one unit, by blocks, and under each strategy, planned and counted
	$(GO) -C internal/workshop run ./bench memory

bench: ## a GPT's steps beside the processor's peak, and beside PyTorch: TORCH=python of a venv that has it
	$(GO) -C internal/workshop run ./bench train -torch "$(torch)"

bench-models: ## passes of whole models on one core, beside PyTorch: TORCH=python of a venv that has it
	$(GO) -C internal/workshop run ./bench models -run '^[^/]+$$' -bfloat16 -torch "$(torch)"

bench-ops: ## passes of single operations on one core, beside PyTorch: TORCH=python of a venv that has it
	$(GO) -C internal/workshop run ./bench models -run ^op/ -bfloat16 -seconds 3 -torch "$(torch)"

bench-formats: ## steps over a slow link, and the time to a loss, by the types in which parameters and gradients travel
	$(GO) -C internal/workshop run ./bench formats -context 128 -prefetch 2

# Nothing else should run: nice -n -20 keeps most of it away.
bench-plan: ## steps beside what package plan says of them after a calibration: 1 and 2 ranks, slow links, prefetch 0 to 2
	$(GO) -C internal/workshop run ./bench plan -size tiny,small,medium

bench-search: ## what fsdp.Tune chooses beside the fastest of many settings, on 20 random models
	$(GO) -C internal/workshop run ./bench search -rounds 10 -seconds 1

bench-join: ## what Join and JoinCalls cost with even data, and what a rank without a batch takes
	$(GO) -C internal/workshop run ./bench join -seconds 8

bench-state: ## optimizer state made whole against broadcasts, PyTorch's with TORCH=python, and checkpoints beside files; needs more than 23 GB of memory
	$(GO) -C internal/workshop run ./bench state -torch "$(torch)"

bench-gemm: ## GFLOP/s of the matrix product
	$(GO) test ./internal/kernel/gemm -run '^$$' -bench Gemm -benchtime 200ms

bench-growth: ## open files, goroutines, memory and time to join of 2 to 256 ranks over TCP, also after a reduction
	$(GO) -C internal/workshop run ./bench growth -reduce

bench-comm: ## GB/s of the collectives, beside Gloo, Open MPI, MPICH and memcpy
	$(GO) -C internal/workshop run ./bench comm

# The measurements are a program of their own, since it is compiled at both commits from one source.
bench-against: ## steps, collectives and checkpoints in turns with those of another commit: BASE=main~1
	$(GO) -C internal/workshop run ./bench against -base "$(BASE)" -renamed "$(RENAMED)"
