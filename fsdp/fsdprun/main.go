// Fsdprun starts a program once per rank, on one host or several, and looks after the processes:
// what torchrun is to PyTorch.
//
//	fsdprun [flags] program [arguments]
//	fsdprun -n 4 ./examples/gpt -time 10m       # a package is built once, then started four times
//	fsdprun -n 4 -log-dir logs -show 0 ./train  # the terminal shows rank 0, the files everything
//	fsdprun -n 8 -restarts 3 ./train            # after a failure, from the last checkpoint
//
// The program is a file to execute, in a directory or on PATH; or a main package as `go build`
// knows it: a directory, an import path, .go files. It finds its place in the job in its
// environment, which comm.FromEnv understands.
//
// # Several hosts
//
// Each host runs its own fsdprun, all with the same flags but -node-rank. They meet at -rdzv, an
// address of host 0, and wait for each other for -join-timeout (5 minutes). Hosts must share a secret,
// so that strangers cannot join: a file, or the variable FSDP_SECRET. With -tls what they say to each
// other is encrypted, as is what their ranks do.
//
//	(umask 077; head -c 32 /dev/urandom | base64 > key)      # once, then copied to both
//	fsdprun -n 4 -nnodes 2 -node-rank 0 -rdzv host0:29500 -secret-file key ./train
//	fsdprun -n 4 -nnodes 2 -node-rank 1 -rdzv host0:29500 -secret-file key ./train
//
// Ranks listen on the address by which their host reaches host 0, unless -listen says otherwise. Under
// Slurm, mpirun or Kubernetes no fsdprun is needed: these start every rank, and the library reads
// their variables.
//
// Checkpoints must lie in a directory that all hosts share, to be found by whoever goes on.
//
// # What a rank is given
//
//	RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE   its place; ranks are in the order of -node-rank
//	NODE_RANK GROUP_RANK GROUP_WORLD_SIZE         the place of its host among those that are there
//	MASTER_ADDR MASTER_PORT                       where rank 0 serves: a free port of host 0
//	TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT name and number of the start, from 0
//	FSDP_SECRET                                   on one host a random key, if there is none
//	FSDP_TLS FSDP_TRUST_NETWORK                   1 with -tls, -trust-network
//	FSDP_TRANSPORT FSDP_LISTEN                    from the flags; see above
//	FSDP_TIMEOUT FSDP_JOIN_TIMEOUT                from the flags
//	FSDP_JOINS                                    files by which it tells fsdprun whether it has joined the others
//	FSDP_COLUMNS                                  width of a line, where output is a terminal and no -log-dir is given
//	FSDP_TRACE                                    from -trace
//	FSDP_HASHES                                   from -hashes
//	FSDP_STRAGGLERS                               from -stragglers
//	GOMAXPROCS                                    cores of the host / its ranks, unless set
//
// A rank is the leader of its own process group. Standard input goes to rank 0; what a failed
// attempt has read is not read again by the next.
//
// # Output
//
// Lines of rank 3 begin with "[3] ", those of standard output on standard output, those of standard
// error there. Lines are never mixed. A progress line, ended by a carriage return, is overwritten
// by the next on a terminal; elsewhere only its last state is printed. Package monitor shows such
// lines where FSDP_COLUMNS says that they are seen. Files in -log-dir hold what a rank wrote,
// unchanged.
//
// With -trace DIR each rank writes there what it does in its passes: see fsdp's Config.TraceDir. In
// the end host 0 joins what it finds in DIR to job.pftrace, which https://ui.perfetto.dev opens; of
// hosts that do not share DIR the files can be joined by cat. With -hashes DIR each rank writes there
// hashes of what it computes, by which the command fsdpdiff finds where two runs part.
//
// With -stragglers each rank counts what its operations take, at the price of some microseconds a step,
// see fsdp's Config.Profile. When the ranks have ended, and were not killed within their first ten
// seconds, fsdprun says which of them the others waited for, and whether a call, the processor, the
// network or something between the passes of that rank is slow. Programs need not know of it.
//
// # When something goes wrong
//
// When a rank fails, the others get SIGTERM, on all hosts, and SIGKILL after -grace. A summary says
// who failed first, how, the last lines of its standard error, and what became of the others. A rank
// that ended because of another one, as its standard error says, is not the first. The exit status is
// that of the rank which failed first: its own, or 128 plus the number of the signal that killed it.
//
// When a rank ends with status 0 and has not joined the others, and others wait for it, that is a
// failure of this rank. When no rank has joined, as the program does not use comm, fsdprun warns.
//
// SIGINT (Ctrl-C), SIGTERM, SIGHUP and SIGQUIT are passed on once to every rank that has not been asked
// to end. A rank may then save for as long as -grace; a program is notified by comm.Interrupt. A second
// signal kills, except SIGHUP: a terminal that closes sends several. If all ranks then exit with 0, so does fsdprun. SIGUSR2 is passed on and has no further
// effect here: with "#SBATCH --signal=USR2@60" ranks may save before Slurm's SIGTERM.
//
// Ranks do not outlive fsdprun: processes that a rank has started
// are killed when the rank ends, unless they made a process group of their own. On Linux ranks end
// even when fsdprun itself is killed by SIGKILL; what they have started does not, then.
//
// # Restarts and the number of ranks
//
// With -restarts k, a failure is followed by another start of all ranks, at most k times, with the
// next TORCHELASTIC_RESTART_COUNT, another port and another job name. The program resumes from its
// checkpoint by itself. A restart comes 1 s after the failure, the next ones after 2 s, 4 s and so
// on up to a minute, until the ranks have run for a minute.
//
// A failure that would come again is not followed by a start: when a rank's last words on standard
// error have "no restart mends this" in them, the job ends. So does the error of fsdp's Load about a
// damaged checkpoint, if the program prints it. With -older, Load takes an older checkpoint then.
//
// With -min and -max the number of ranks changes between starts. The rule:
//
//   - A rank is lost when a signal killed it that fsdprun did not send, as the kernel does when
//     memory runs out. In the next start its host has a rank less, but one at least, and there are at
//     least -min ranks on all hosts together. A rank that exits with an error is not lost: the number
//     stays.
//   - SIGUSR1 asks to grow: the ranks get SIGTERM, and in the next start this host has -max ranks.
//     This is no failure and uses up no restart.
//
// # When a host goes or comes
//
// These go by the same rules. -min is the number of ranks without which nothing is started; without
// it all hosts are needed.
//
//   - A host is gone when its fsdprun has ended, which is noticed at once, or has not been heard of
//     for 20 s. That is a failure: the ranks of the others get SIGTERM, and the next start has those
//     hosts that are there, if they have -min ranks. Else they are waited for, for -join-timeout.
//   - A host that comes, or comes back, is taken in at once: the ranks get SIGTERM, as when the job
//     grows, so that a program which saves then loses nothing, and the next start has one host more.
//     This is no failure. The first start waits for all hosts, but once there are -min ranks for 30 s
//     only.
//   - SIGINT, SIGTERM and so on for the fsdprun of one host make that host leave, as a machine does
//     that is taken away: its ranks get the signal, and the others go on without it, as after a
//     failure. For host 0, or without -restarts, they end the job on all hosts.
//   - Host 0 must be there, as the others meet there: nobody goes on without it. When it is gone, the
//     others end their ranks and look for it for -join-timeout, in which its fsdprun may be started
//     anew (that counts its restarts from 0). Then, and at once without -restarts, they end with an
//     error that names the address. A host that cannot reach host 0 does the same, so of a job whose
//     network is cut in two only one part goes on.
//
// All fsdpruns of a job end with the same status, but that of a host that leaves, which is the status
// of its ranks.
package main

import (
	"os"
	"os/signal"
	"time"
)

func main() {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, caught()...)
	ignoreTerminalReads()
	os.Exit(run(os.Args[1:], system{
		in: os.Stdin, out: os.Stdout, err: os.Stderr, signals: signals, environ: os.Environ(), after: time.After,
	}))
}
