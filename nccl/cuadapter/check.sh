#!/usr/bin/env bash
# Compiles, vets, links and tests the adapter on a machine without CUDA and without a GPU:
#
#   compiles  with NVIDIA's own cuda.h of CUDA 12 and of 13, from wheels of PyPI
#   links     with a stub of libcuda that has every function of that header
#   runs      with the doubles of libcuda, libnccl and libcublasLt that this repository's tests use
#
# Everything is made in a temporary directory. Nothing of NVIDIA's stays.
# Needed: go, a C compiler, python3 with pip, and a network or a wheel in $PIP_FIND_LINKS.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
double=$here/../../internal/gpudouble
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# The doubles. Their names are those of the real libraries, so that the loader takes them for those.
library() { # soname, sources
	cc -shared -fPIC -O1 -w -ffp-contract=off -fno-strict-aliasing -fvisibility=hidden -pthread -Wl,-Bsymbolic -Wl,-soname,"$1" -o "$tmp/run/$1" \
		"${@:2}" "$double/control.c" -ldl -lm -lrt
}
mkdir "$tmp/run"
library libcuda.so.1 "$double"/cuda/*.c "$double"/ptx/*.c
library libnccl.so.2 "$double"/nccl/*.c
library libcublasLt.so.13 "$double"/cublaslt/*.c

check() { # a package of the index, with its version
	local dir=$tmp/${1%%=*} include
	mkdir "$dir"
	python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$dir" "$1"
	python3 -m zipfile -e "$dir"/*.whl "$dir"
	include=$(dirname "$(find "$dir" -name cuda.h -print -quit)")

	# What a header declares after preprocessing is what a library has to define: the names carry
	# their versions then.
	echo '#include <cuda.h>' | cc -E -P -I"$here/compat" -I"$include" - | grep -oE '\<cu[A-Z][A-Za-z0-9_]*[ ]*\(' |
		tr -d ' (' | sort -u | sed 's/.*/int &(void) { return 34; } \/\/ CUDA_ERROR_STUB_LIBRARY/' >"$dir/stub.c"
	cc -shared -fPIC -w -Wl,-soname,libcuda.so.1 -o "$dir/libcuda.so" "$dir/stub.c"

	export CGO_CFLAGS="-I$here/compat -I$include -w" CGO_LDFLAGS="-L$dir"
	cd "$here"
	go vet .
	go test -c -o "$dir/test" .
	echo "${1/==/ }: compiles, links with $(wc -l <"$dir/stub.c") functions of libcuda"
	LD_LIBRARY_PATH=$tmp/run FSDP_DOUBLE_VERBOSE=1 "$dir/test" -test.count=1
}

check nvidia-cuda-runtime-cu12==12.9.79
check nvidia-cuda-runtime==13.0.96
