#!/usr/bin/env bash
# Trains a GPT under Slurm, by examples/cluster/slurm.sbatch, on two hosts that are network namespaces of this machine:
# ends it in all ways that Slurm has, starts it again, and compares its weights with those of a run that nobody disturbed. It
# needs root, go and
#
#	apt-get install slurmctld slurmd slurm-client munge iproute2
#
# All that it starts and writes is gone when it ends, whatever the end.
set -euo pipefail
repo=$(cd "$(dirname "$0")/../../.." && pwd)
PATH=$PATH:/usr/sbin:/sbin

missing=
for command in slurmctld slurmd sbatch munged ip "${GO:-go}"; do command -v $command >/dev/null || missing+=" $command"; done
[ -z "$missing" ] || { echo "missing:$missing (Debian: apt-get install slurmctld slurmd slurm-client munge iproute2)" >&2; exit 1; }
[ "$(id -u)" = 0 ] || { echo "needs root, for network namespaces" >&2; exit 1; }

tmp=$(mktemp -d)
spaces=gofsdp-$$-
cleanup() {
	local status=$? space pids
	trap - EXIT
	[ $status = 0 ] || tail -n 20 "$tmp"/*.log "$tmp"/work/*.log >&2 || true
	for space in "$spaces"{node0,node1,switch}; do
		while pids=$(ip netns pids $space 2>/dev/null) && [ -n "$pids" ]; do # the daemons, and what they have started
			kill -9 $pids 2>/dev/null || true
			sleep 0.1
		done
		ip netns del $space 2>/dev/null || true
	done
	rm -rf "$tmp"
	exit $status
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# on runs a command on a host: with its network, its name, and the names of all hosts.
on() { # host, command
	ip netns exec "$spaces$1" unshare --uts sh -c \
		'hostname "$1"; mount --bind "$2" /etc/hosts; shift 2; exec "$@"' sh "$1" "$tmp/hosts" "${@:2}"
}

network() {
	local host
	ip netns add ${spaces}switch
	ip -n ${spaces}switch link add bridge type bridge
	ip -n ${spaces}switch link set bridge up
	echo "127.0.0.1 localhost" >"$tmp/hosts"
	for host in 0 1; do
		echo "10.77.1.$((host + 1)) node$host" >>"$tmp/hosts"
		ip netns add ${spaces}node$host
		ip -n ${spaces}node$host link add eth0 type veth peer name port$host netns ${spaces}switch
		ip -n ${spaces}node$host link set lo up
		ip -n ${spaces}node$host link set eth0 up
		ip -n ${spaces}node$host address add 10.77.1.$((host + 1))/24 dev eth0
		ip -n ${spaces}switch link set port$host master bridge up
	done
}

# A requeued job begins when the credential of its last start has expired.
slurm() {
	head -c 1024 /dev/urandom >"$tmp/munge.key"
	chmod 600 "$tmp/munge.key"
	chmod 755 "$tmp" # munged wants its socket within reach of everybody
	on node0 munged --key-file="$tmp/munge.key" --socket="$tmp/munge.socket" --pid-file="$tmp/munged.pid" \
		--seed-file="$tmp/munge.seed" --log-file="$tmp/munged.log"
	cat >"$tmp/slurm.conf" <<-END
		ClusterName=gofsdp
		SlurmctldHost=node0
		SlurmUser=root
		AuthInfo=socket=$tmp/munge.socket,cred_expire=5
		StateSaveLocation=$tmp/state
		SlurmdSpoolDir=$tmp/spool-%n
		SlurmctldPidFile=$tmp/slurmctld.pid
		SlurmdPidFile=$tmp/slurmd-%n.pid
		SlurmctldLogFile=$tmp/slurmctld.log
		SlurmdLogFile=$tmp/slurmd-%n.log
		SlurmdParameters=config_overrides
		ProctrackType=proctrack/linuxproc
		TaskPlugin=task/none
		SelectType=select/cons_tres
		SelectTypeParameters=CR_Core
		SchedulerType=sched/builtin
		SchedulerParameters=sched_interval=1
		NodeName=node[0-1] CPUs=2
		PartitionName=all Nodes=ALL Default=YES
	END
	echo "CgroupPlugin=cgroup/v1" >"$tmp/cgroup.conf" # none is used, and what a host has is not looked for
	export SLURM_CONF=$tmp/slurm.conf
	mkdir "$tmp/state" "$tmp/spool-node0" "$tmp/spool-node1" "$tmp/work"
	on node0 slurmctld -D >"$tmp/slurmctld.out.log" 2>&1 &
	on node0 slurmd -D >"$tmp/slurmd0.out.log" 2>&1 &
	on node1 slurmd -D >"$tmp/slurmd1.out.log" 2>&1 &
	await 60 "both nodes are idle" nodes_idle
}

nodes_idle() { [ "$(on node0 sinfo -h -t idle -o %D 2>/dev/null)" = 2 ]; }

# await repeats a test until it holds.
await() { # seconds, what for, command
	local end=$((SECONDS + $1))
	until "${@:3}"; do
		[ $SECONDS -lt $end ] || { echo "not after $1 s: $2" >&2; exit 1; }
		sleep 0.2
	done
}

state() { on node0 squeue -h -t all -j "$1" -o %T; }
is() { [ "$(state "$1")" = "$2" ]; }

# say prints a command, and runs it on the first host.
say() {
	echo "\$ $*" >&2
	on node0 "$@"
}

# submit starts a training of 400 steps that writes its weights to a file.
submit() { # name
	say sbatch --parsable --ntasks-per-node=2 --job-name="$1" slurm.sbatch -data text -size tiny -steps 400 \
		-sample-bytes 0 -export "$1.safetensors"
}

# trains tells whether a job makes steps after so many times that it went on.
trains() { # log, times
	[ -e "$1" ] && awk -v times="$2" '/^resumed/ { n++ } /^step .* loss/ && n == times { yes = 1 } END { exit !yes }' "$1"
}

main() {
	network
	slurm
	(cd "$repo" && CGO_ENABLED=0 "${GO:-go}" build -o "$tmp/work/gpt" ./examples/gpt)
	cp -r "$repo/fsdp" "$tmp/work/text"
	cp "$repo/examples/cluster/slurm.sbatch" "$tmp/work"
	cd "$tmp/work"
	say sinfo

	local calm job log
	calm=$(submit calm)
	await 120 "job $calm is done" is "$calm" COMPLETED

	job=$(submit disturbed)
	log=disturbed-$job.log
	await 60 "it trains" trains "$log" 0
	say scancel "$job"
	await 60 "it is cancelled" is "$job" CANCELLED
	say scontrol requeue "$job"
	await 60 "it goes on" trains "$log" 1
	say scontrol requeue "$job" # as preemption does
	await 60 "it goes on again" trains "$log" 2
	say scancel --signal=TERM "$job" # to the ranks alone, as when the time is nearly up: the script requeues
	await 60 "it goes on once more" trains "$log" 3
	await 120 "it is done" is "$job" COMPLETED
	grep -E '^interrupted|^step.* saved|^resumed|validation loss:' "$log" >&2
	cmp calm.safetensors disturbed.safetensors
	echo "its weights equal the weights of the run without a break"
}

main
