#!/bin/bash
# Trains ./gpt under torchrun, with 4 ranks on each host. SIGTERM to torchrun makes them save, and the same command goes on
# from there.
#
#	go build -o gpt ./examples/gpt
#	./torchrun.sh -data text -steps 100000                       # this host alone
#
# Several hosts see this directory, run the same command each, and share a key:
#
#	(umask 077; head -c 32 /dev/urandom | base64 >key)
#	HOSTS=2 HOST0=host0 FSDP_SECRET_FILE=key FSDP_LISTEN=eth0 ./torchrun.sh -data text -steps 100000
#
set -euo pipefail
if [ "${HOSTS:-1}" = 1 ]; then
	where=--standalone
else
	where="--nnodes=$HOSTS --rdzv-backend=c10d --rdzv-endpoint=$HOST0:29400 --rdzv-id=gpt"
fi
exec torchrun $where --nproc-per-node=4 --max-restarts=3 --no-python ./gpt -save ckpt -resume "$@"
