#!/bin/bash
# Trains ./gpt under Open MPI, on this host or on several that see this directory. It needs no MPI inside the program: mpirun
# only starts the ranks. SIGTERM to mpirun makes them save, and the same command goes on from there.
#
#	go build -o gpt ./examples/gpt
#	./mpi.sh hosts -data text -steps 100000      # hosts has a line "host0 slots=4" for each host
#
set -euo pipefail
hosts=$1
shift

# mpirun does not tell the ranks where rank 0 is, which is on the first host, or what they need to trust each other.
MASTER_ADDR=$(awk '!/^#/ && NF { print $1; exit }' "$hosts")
FSDP_SECRET=$(head -c 32 /dev/urandom | base64)
export MASTER_ADDR MASTER_PORT=29500 FSDP_SECRET FSDP_LISTEN=${FSDP_LISTEN:-eth0}

# A signal comes to the ranks GRACE seconds after it came to mpirun, and as much later SIGKILL. Its own choice is 1.
exec mpirun --hostfile "$hosts" --mca odls_base_sigkill_timeout "${GRACE:-15}" \
	-x MASTER_ADDR -x MASTER_PORT -x FSDP_SECRET -x FSDP_LISTEN ./gpt -plain -save ckpt -resume "$@"
