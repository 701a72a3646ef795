#!/usr/bin/env bash
# Checks training on the GPUs of this machine, and measures it. See doc.go.
#
#   GPUCHECK_BIN        the test program, if it is not to be built here
#   GPUCHECK_KERNELS    a directory with the test programs of the kernels, then: see the end
#   FSDP_CUDA_LIBRARY   the CUDA driver, if it is not the system's libcuda.so.1
#   FSDP_NCCL_LIBRARY, FSDP_CUBLASLT_LIBRARY   others than the script finds
#   GPUCHECK_PYTHON     a python with PyTorch to compare with, if it is not python3
#   RAPID_CHECKS        random cases of each property of the contract, 100 if not set
#
# Arguments go to the test program, and kernels are tested without any. Exit status: 0 all is well, 3 there is no GPU, other: a failure.
set -euo pipefail

bin=${GPUCHECK_BIN:-}
kernels=${GPUCHECK_KERNELS:-}
if [ -z "$bin" ]; then
	tmp=$(mktemp -d)
	trap 'rm -rf "$tmp"' EXIT
	bin=$tmp/gpucheck
	here=$(dirname "$0") # paths in arguments are of the directory that this is called in
	(cd "$here" && CGO_ENABLED=1 "${GO:-go}" test -c -tags gpu -o "$bin" .)
fi

# wheel prints a library that pip has installed somewhere below the given directories.
wheel() {
	find "${@:2}" -maxdepth 8 -path '*/nvidia/*' -name "$1" -print -quit 2>/dev/null
}

# loadable tells whether the dynamic loader finds a library by itself.
loadable() {
	local dir dirs
	IFS=: read -ra dirs <<<"${LD_LIBRARY_PATH:-}"
	for dir in "${dirs[@]}"; do ! compgen -G "$dir/$1" >/dev/null || return 0; done
	PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | while read -r name _; do
		# shellcheck disable=SC2053 # a pattern
		[[ $name != $1 ]] || echo "$name"
	done | grep . >/dev/null
}

# find_library prints where a library is, or nothing if the loader knows. An active Python environment
# was chosen by somebody, the system's library was chosen by its administrator, and what other Pythons
# carry is better than nothing.
find_library() {
	local python found=
	for python in "${VIRTUAL_ENV:-}" "${CONDA_PREFIX:-}"; do
		if [ -z "$found" ] && [ -d "$python" ]; then found=$(wheel "$1" "$python/lib" || true); fi
	done
	if [ -z "$found" ] && ! loadable "$1"; then
		found=$(python3 -c 'import nvidia; print("\n".join(nvidia.__path__))' 2>/dev/null | while read -r dir; do wheel "$1" "$dir/.."; done | head -1 || true)
		[ -n "$found" ] || found=$(wheel "$1" /usr/lib /usr/local/lib /opt "${HOME:-/root}/.local/lib" || true)
	fi
	echo "$found"
}
nccl=${FSDP_NCCL_LIBRARY:-$(find_library libnccl.so.2)}
if [ -n "$nccl" ]; then export FSDP_NCCL_LIBRARY=$nccl; fi
blas=${FSDP_CUBLASLT_LIBRARY:-$(find_library 'libcublasLt.so.1[123]')}
if [ -n "$blas" ]; then export FSDP_CUBLASLT_LIBRARY=$blas; fi

status=0
"$bin" -test.count=1 -test.timeout=0 "$@" || status=$? # every part of it has a limit of its own
[ "$status" != 3 ] || exit 3
if [ -z "$kernels" ] && [ -z "${GPUCHECK_BIN:-}" ] && [ $# = 0 ]; then
	kernels=$tmp
	for name in device blaslt gpu ops; do
		(cd "$here/../../internal/$name" && CGO_ENABLED=1 "${GO:-go}" test -c -o "$kernels/$name.test" .)
	done
fi
[ -n "$kernels" ] || exit "$status"

# kernel runs tests of a package that are about a GPU as well as about the doubles.
kernel() {
	FSDP_CUDA_LIBRARY=${FSDP_CUDA_LIBRARY:-libcuda.so.1} FSDP_CUBLASLT_LIBRARY=${FSDP_CUBLASLT_LIBRARY:-libcublasLt.so.13} \
		"$kernels/$1.test" -test.count=1 -test.timeout=10m "${@:2}" || status=$?
}
printf '\nKernels\n'
kernel device -test.run='^TestContract'
kernel blaslt -test.run='^Test(Products|RunAllocatesNothing|PlanIsShared)$'
kernel gpu -test.skip='^TestProductFailures$' # which lets calls fail
kernel ops -test.run='^TestGPU$'
exit "$status"
