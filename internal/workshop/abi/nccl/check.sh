#!/bin/sh
# Compares what the package knows of NCCL's ABI with real releases: the declarations with
# nccl.h, by the C compiler, and the library through the package's own loader. It takes
# no GPU. Wheels of PyPI are fetched into a temporary directory and thrown away.
#
#   internal/workshop/abi/nccl/check.sh [version ...]   of nvidia-nccl-cu12, the newest if none is given
set -eu
cd "$(dirname "$0")/../../../.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# nccl.h includes headers of CUDA, of which it needs two names.
mkdir "$dir/cuda"
touch "$dir/cuda/cuda_fp16.h" "$dir/cuda/cuda_bf16.h" "$dir/cuda/cuda_fp8.h"
echo '#include <stddef.h>
typedef struct CUstream_st *cudaStream_t; typedef struct CUevent_st *cudaEvent_t;' >"$dir/cuda/cuda_runtime.h"

check() { # $1: what pip is to fetch
	rm -rf "$dir/wheel"
	python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$dir/wheel" "$1"
	python3 -m zipfile -e "$dir"/wheel/*.whl "$dir/wheel"
	nccl=$dir/wheel/nvidia/nccl
	echo "$(basename "$dir"/wheel/*.whl)"
	cc -std=c11 -Wall -Werror -D__CUDA_BF16_TYPES_EXIST__ -I "$dir/cuda" -I "$nccl/include" -o "$dir/check" internal/workshop/abi/nccl/check.c
	"$dir/check"
	echo "  nccl.h agrees with abi.h"
	FSDP_NCCL_LIBRARY=$nccl/lib/libnccl.so.2 go test -count=1 -tags ncclabi -run '^TestRealLibrary$' -v ./nccl >"$dir/out" 2>&1 ||
		{ cat "$dir/out"; exit 1; }
	sed -n 's/^ *real_test.go:[0-9]*: /  /p' "$dir/out"
}

[ $# -gt 0 ] || set -- ""
for version; do
	check "nvidia-nccl-cu12${version:+==$version}"
done
