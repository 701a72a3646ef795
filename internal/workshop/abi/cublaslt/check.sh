#!/bin/sh
# Compares what the package knows of cuBLASLt's ABI with a real release: the declarations with
# cublasLt.h, by the C compiler, and the library through the package's own loader. It takes no GPU.
#
#   internal/workshop/abi/cublaslt/check.sh [directory]
#
# directory has include and lib of an installed cuBLAS, such as nvidia/cu13 of a Python environment.
# Without one, wheels of PyPI (some 500 MB) are fetched into a temporary directory and thrown away.
set -eu
cd "$(dirname "$0")/../../../.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

cublas=${1:-}
if [ -z "$cublas" ]; then
	python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$dir" nvidia-cublas nvidia-cuda-runtime
	for wheel in "$dir"/*.whl; do
		python3 -m zipfile -e "$wheel" "$dir"
		echo "${wheel##*/}"
	done
	cublas=$(echo "$dir"/nvidia/cu*)
fi

# Headers of which cublasLt.h needs a few words.
mkdir "$dir/crt"
touch "$dir/crt/host_config.h" "$dir/cuda_fp16.h" "$dir/cuda_bf16.h"
echo '#include <stddef.h>
#define __device_builtin__
#define __host__
#define __device__
#define __inline__ inline
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__ __align__
#define CUDARTAPI
#define CUDART_CB' >"$dir/crt/host_defines.h"
cc -std=c11 -Wall -Werror -fsyntax-only -I "$dir" -I "$cublas/include" internal/workshop/abi/cublaslt/check.c
echo "  cublasLt.h agrees with abi.h"
for library in "$cublas"/lib/libcublasLt.so.*; do
	FSDP_CUBLASLT_LIBRARY=$library go test -count=1 -tags cublasltabi -run '^TestRealLibrary$' -v ./internal/blaslt >"$dir/out" 2>&1 ||
		{ cat "$dir/out"; exit 1; }
	sed -n 's/^ *real_test.go:[0-9]*: /  /p' "$dir/out"
done
