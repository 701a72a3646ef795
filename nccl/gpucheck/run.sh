#!/usr/bin/env bash
# Checks process groups over NCCL on the GPUs of this machine. See doc.go.
#
#   GPUCHECK_BIN        the test program, if it is not to be built here
#   FSDP_CUDA_LIBRARY   the CUDA driver, if it is not the system's libcuda.so.1
#   FSDP_NCCL_LIBRARY   NCCL, if it is to be another one than the script finds
#   RAPID_CHECKS        random cases of each property of the contract, 100 if not set
#
# Arguments go to the test program. Exit status: 0 all is well, 3 there is no GPU, other: a failure.
set -euo pipefail

bin=${GPUCHECK_BIN:-}
if [ -z "$bin" ]; then
	tmp=$(mktemp -d)
	trap 'rm -rf "$tmp"' EXIT
	bin=$tmp/gpucheck
	(cd "$(dirname "$0")" && CGO_ENABLED=1 "${GO:-go}" test -c -tags gpu -o "$bin" .)
fi

# wheel prints the NCCL that pip has installed somewhere below the given directories.
wheel() {
	find "$@" -maxdepth 8 -path '*/nvidia/nccl/lib/libnccl.so.2' -print -quit 2>/dev/null
}

# loadable tells whether the dynamic loader finds NCCL by itself.
loadable() {
	local dir dirs
	IFS=: read -ra dirs <<<"${LD_LIBRARY_PATH:-}"
	for dir in "${dirs[@]}"; do [ ! -e "$dir/libnccl.so.2" ] || return 0; done
	PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | grep 'libnccl\.so\.2 ' >/dev/null
}

# An active Python environment was chosen by somebody, the system's NCCL was chosen by its
# administrator, and what other Pythons carry is better than nothing.
nccl=${FSDP_NCCL_LIBRARY:-}
for python in "${VIRTUAL_ENV:-}" "${CONDA_PREFIX:-}"; do
	if [ -z "$nccl" ] && [ -d "$python" ]; then nccl=$(wheel "$python/lib" || true); fi
done
if [ -z "$nccl" ] && ! loadable; then
	nccl=$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0] + "/lib/libnccl.so.2")' 2>/dev/null ||
		wheel /usr/lib /usr/local/lib /opt "${HOME:-/root}/.local/lib" || true)
fi
if [ -n "$nccl" ]; then export FSDP_NCCL_LIBRARY=$nccl; fi

"$bin" -test.count=1 -test.timeout=0 "$@" # every part of it has a limit of its own
