#!/bin/sh
# Compiles the kernels' PTX with NVIDIA's assembler for three generations of GPUs, as the driver
# would, and prints a table: of each kernel the registers, the bytes of shared memory that its text
# declares (flash* and hopper* get theirs at the launch) and the bytes that spill to memory, if any.
# It takes no GPU, and fails if a text is refused, or if the assembler serialises wgmma. Texts
# named hopper*.ptx are for sm_90a, which the table calls sm_90.
#
#   internal/gpu/kernels/ptxas.sh [ptxas]
#
# The assembler is part of the CUDA toolkit and of Triton's wheel. Without one, a wheel of PyPI (some
# 40 MB) is fetched into a temporary directory and thrown away.
set -eu
cd "$(dirname "$0")"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

ptxas=${1:-}
if [ -z "$ptxas" ]; then
	python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$dir" nvidia-cuda-nvcc-cu12
	python3 -m zipfile -e "$dir"/*.whl "$dir"
	ptxas=$dir/nvidia/cuda_nvcc/bin/ptxas
	chmod +x "$ptxas"
fi
architectures="sm_80 sm_90 sm_100"
for text in *.ptx; do
	for arch in $architectures; do
		target=$arch
		case $text in hopper*) [ $arch = sm_90 ] || continue; target=sm_90a ;; esac
		if ! "$ptxas" -v -arch=$target -o /dev/null "$text" >"$dir/log" 2>&1 || grep -q 'wgmma.* serialized' "$dir/log"; then
			echo "$text is refused for $target, or slow there:"
			cat "$dir/log"
			exit 1
		fi >&2
		sed "s/^/$arch /" "$dir/log"
	done
done >"$dir/all"
awk -v list="$architectures" '
	/Compiling entry function/ { name = $8; gsub("\047", "", name); if (!(name in seen)) { seen[name] = 1; order[++n] = name } }
	/Function properties for/ { of = $NF } # of functions that kernels call, too
	/bytes spill stores/ && of == name { for (i = 1; i < NF; i++) if ($(i + 2) == "spill" && $(i + 3) ~ /^stores/) spilled[name, $1] = $i }
	/Used [0-9]+ registers/ {
		for (i = 1; i < NF; i++) {
			if ($i == "Used") used[name, $1] = $(i + 1)
			if ($(i + 1) == "bytes" && $(i + 2) ~ /^smem/) shared[name, $1] = $i
		}
	}
	END {
		count = split(list, archs, " ")
		printf "%-40s", "registers, shared (and bytes spilled)"
		for (a = 1; a <= count; a++) printf " %16s", archs[a]
		print ""
		for (k = 1; k <= n; k++) {
			printf "%-40s", order[k]
			for (a = 1; a <= count; a++) {
				s = spilled[order[k], archs[a]]
				m = shared[order[k], archs[a]]
				printf " %16s", used[order[k], archs[a]] (m > 0 ? ", " m : "") (s > 0 ? " (" s ")" : "")
			}
			print ""
		}
	}' "$dir/all"
