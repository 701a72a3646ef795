#!/usr/bin/env bash
# Checks training on the GPUs of this machine, and measures it. See doc.go.
#
#	run.sh build DIR               builds the test programs into DIR, packed, with a copy of this script
#	run.sh parts DIR OUT [PART]…   runs the parts, or those named, with the programs in DIR
#	run.sh [ARGUMENT]…             runs gpucheck alone with these arguments, such as -test.run Rates
#
# "build" needs Go and a C compiler, "parts" only DIR. The parts run in the order of names, below, each
# under a time limit. A part that fails or times out does not stop the next one. Each reports when it
# ends. OUT gets three files: log has every line, table has the figures and how the parts ended, and
# NAME.json, named after the GPU, has the rates for fsdpplan.
#
#	GPUCHECK_SECONDS    the time limit of all parts together, 570 if not set
#	GPUCHECK_SCALE      tiny for the short form, in which everything runs once on sizes of no use
#	GPUCHECK_BIN        the test program, if run.sh should not build gpucheck
#	FSDP_CUDA_LIBRARY   the CUDA driver, if it is not the system's libcuda.so.1
#	FSDP_NCCL_LIBRARY, FSDP_CUBLASLT_LIBRARY   others than the script finds
#	GPUCHECK_PYTHON     a python with PyTorch to compare with, if it is not python3
#	RAPID_CHECKS        random cases of each property
#
# Exit status: 0 all is well, 3 there is no GPU, other: a failure.
set -euo pipefail

self=$(cd "$(dirname "$0")" && pwd)/$(basename "$0")
names=(machine training rates kernels pytorch parity collectives curve contract)

# build builds the test programs into the directory $1.
build() {
	mkdir -p "$1"
	local dir name
	dir=$(cd "$1" && pwd)
	cp "$self" "$dir"
	cd "$(dirname "$self")"
	export CGO_ENABLED=1
	"${GO:-go}" test -c -tags gpu -ldflags '-s -w' -o "$dir/gpucheck" .
	for name in device blaslt gpu ops; do
		"${GO:-go}" -C ../../.. test -c -ldflags '-s -w' -o "$dir/$name.test" "./internal/$name"
	done
	gzip -3f "$dir/gpucheck" "$dir"/*.test
	du -h "$dir"/*.gz
}

# wheel prints a library that pip has installed somewhere below the given directories.
wheel() {
	find "${@:2}" -maxdepth 10 -path '*/nvidia/*' -name "$1" -print -quit 2>/dev/null
}

# loadable prints the newest library that the dynamic loader finds by itself.
loadable() {
	local dir dirs file name
	IFS=: read -ra dirs <<<"${LD_LIBRARY_PATH:-}"
	{
		for dir in "${dirs[@]}"; do
			for file in "$dir"/$1; do [ ! -e "$file" ] || basename "$file"; done
		done
		PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | while read -r name _; do
			# shellcheck disable=SC2053 # a pattern
			[[ $name != $1 ]] || echo "$name"
		done
	} | sort -V | tail -1
}

# find_library prints the path of a library. An active Python environment was chosen by a user, the
# system's library by an administrator, and the libraries of other Pythons are the last resort.
find_library() {
	local python found=
	for python in "${VIRTUAL_ENV:-}" "${CONDA_PREFIX:-}"; do
		if [ -z "$found" ] && [ -d "$python" ]; then found=$(wheel "$1" "$python/lib" || true); fi
	done
	[ -n "$found" ] || found=$(loadable "$1")
	[ -n "$found" ] || found=$(python3 -c 'import nvidia; print("\n".join(nvidia.__path__))' 2>/dev/null | while read -r dir; do wheel "$1" "$dir/.."; done | head -1 || true)
	[ -n "$found" ] || found=$(wheel "$1" /usr/lib /usr/local/lib /opt "${HOME:-/root}/.local/lib" || true)
	echo "$found"
}

# find_libraries exports the paths of the libraries that it finds.
find_libraries() {
	local nccl blas
	nccl=${FSDP_NCCL_LIBRARY:-$(find_library libnccl.so.2)}
	[ -z "$nccl" ] || export FSDP_NCCL_LIBRARY=$nccl
	blas=${FSDP_CUBLASLT_LIBRARY:-$(find_library 'libcublasLt.so.1[123]')}
	[ -z "$blas" ] || export FSDP_CUBLASLT_LIBRARY=$blas
}

# machine prints the GPUs and the software. Its status is 3 if there is no GPU.
machine() {
	uname -srm
	nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.max.sm,clocks.mem --format=csv 2>&1 || true
	"${GPUCHECK_PYTHON:-python3}" -c 'import torch
print("PyTorch", torch.__version__, "cuDNN", torch.backends.cudnn.version(), "NCCL", torch.cuda.nccl.version())' 2>&1 | tail -1 || true
	"$GPUCHECK_BIN" -test.run='^$'
}

# kernels runs the tests in the directory $1 that compare kernels with the host. They use a GPU if
# FSDP_CUDA_LIBRARY is set.
kernels() {
	local status=0
	kernel() {
		echo "$1"
		"$dir/$1.test" -test.count=1 -test.timeout=90s "${@:2}" || status=1
	}
	local dir=$1
	kernel device -test.run='^TestContract'
	kernel blaslt -test.run='^Test(Products|RunAllocatesNothing|PlanIsShared)$'
	kernel gpu -test.skip='^Test(ProductFailures|AddLinearCopiesNothing|EarlyLossHasThreeProducts|SumsWithoutAlgorithm|SlopesWithoutAlgorithm)$' # which need doubles, whose calls fail or are counted
	kernel ops -test.run='^TestGPU$'
	return $status
}

# say prints a line and logs it.
say() {
	echo "$@" | tee -a "$out/log"
}

# part NAME LIMIT COMMAND… runs a command for at most LIMIT seconds, and reports how it ended.
part() {
	local name=$1 limit=$2 begin=$SECONDS code=0 how
	shift 2
	[ "$wanted" = "  " ] || [ "$name" = machine ] || [[ $wanted == *" $name "* ]] || return 0
	[ "$limit" -le $((total - SECONDS)) ] || limit=$((total - SECONDS))
	if [ "$limit" -le 0 ]; then
		how="not started, as $total s are over"
	else
		say "== $name, at most $limit s"
		timeout -k 10 "$limit" "$@" 2>&1 | tee -a "$out/log" || code=${PIPESTATUS[0]}
		case $code in
		0) how=passed ;;
		3) how="found no GPU" ;;
		124 | 137) how="timed out" ;;
		*) how="failed with status $code" ;;
		esac
	fi
	[ "$how" = passed ] || status=1
	ended+=$(printf '%-12s %4d s  %s' "$name" $((SECONDS - begin)) "$how")$'\n'
	say "== $name: $how after $((SECONDS - begin)) s"
	{
		sed -n 's/^  | //p' "$out/log"
		echo
		echo -n "$ended"
	} >"$out/table"
	[ "$name $code" != "machine 3" ] || exit 3
}

# parts runs the parts with the programs in the directory $1.
parts() {
	local dir gpu like=h100 scale=${GPUCHECK_SCALE:-full} name
	dir=$(cd "$1" && pwd)
	mkdir -p "$2"
	out=$(cd "$2" && pwd)
	shift 2
	for name; do
		[[ " ${names[*]} " == *" $name "* ]] || { echo "run.sh: there is no part $name: want some of ${names[*]}" >&2; exit 1; }
	done
	wanted=" $* " total=${GPUCHECK_SECONDS:-570} status=0 ended=
	for name in gpucheck device.test blaslt.test gpu.test ops.test; do
		[ ! -e "$dir/$name.gz" ] || gzip -dkf "$dir/$name.gz"
		chmod +x "$dir/$name"
	done
	find_libraries
	export GPUCHECK_BIN=$dir/gpucheck FSDP_CUDA_LIBRARY=${FSDP_CUDA_LIBRARY:-libcuda.so.1}
	gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1 || true)
	case $gpu in
	*A100*) like=a100-80 ;;
	*H200*) like=h200 ;;
	*B200*) like=b200 ;;
	esac
	gpu=${gpu:-GPU}
	local check=("$GPUCHECK_BIN" -test.count=1 -test.timeout=0 -scale="$scale")
	[ "$scale" != tiny ] || { export RAPID_CHECKS=${RAPID_CHECKS:-2}; check+=(-largest=4); }

	part machine 60 bash "$self" machine
	part training 180 "${check[@]}" -test.run='^TestTraining$/^gofsdp'
	part rates 200 "${check[@]}" -test.run='^Test(Rates|PyTorch)$' -cluster="$out/${gpu//[^A-Za-z0-9]/-}.json" -like=$like
	part kernels 200 bash "$self" kernels "$dir"
	part pytorch 300 "${check[@]}" -test.run='^TestTraining$/^FSDP2'
	part parity 120 "${check[@]}" -test.run='^TestParity$'
	part collectives 120 "${check[@]}" -test.run='^Test(Step|Bandwidth)$'
	part curve 240 "${check[@]}" -test.run='^TestCurve$'
	part contract 600 env RAPID_CHECKS="${RAPID_CHECKS:-5}" "${check[@]}" -test.run='^TestContract$'

	echo
	sed '1,/^$/{/^rates /d;/^parity /d}' "$out/table" # those figures are many, and above
	exit $status
}

case ${1:-} in
build | machine | kernels | parts) "$@" ;;
*)
	if [ -z "${GPUCHECK_BIN:-}" ]; then
		tmp=$(mktemp -d)
		trap 'rm -rf "$tmp"' EXIT
		GPUCHECK_BIN=$tmp/gpucheck
		(cd "$(dirname "$self")" && CGO_ENABLED=1 "${GO:-go}" test -c -tags gpu -o "$GPUCHECK_BIN" .)
	fi
	find_libraries
	"$GPUCHECK_BIN" -test.count=1 -test.timeout=0 "$@" # every part of it has a limit of its own
	;;
esac
