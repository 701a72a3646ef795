// Fsdprun starts a program once per rank, on one host or several, and
// supervises the processes, as torchrun does for PyTorch.
//
//	fsdprun [flags] program [arguments]
//	fsdprun -n 4 ./examples/gpt -time 10m       # a package is built once, then started four times
//	fsdprun -n 4 -log-dir logs -show 0 ./train  # the terminal shows rank 0, the files everything
//	fsdprun -n 8 -restarts 3 ./train            # after a failure, from the last checkpoint
//
// The program is an executable file, in a directory or on PATH; or a main
// package as `go build` accepts it: a directory, an import path, .go files.
// Environment variables define its place in the job, and comm.FromEnv reads
// them.
//
// # Several hosts
//
// Each host runs its own fsdprun, all with the same flags except -node-rank.
// They meet at -rdzv, an address of host 0, and wait for each other for
// -join-timeout (5 minutes). Hosts must share a secret, in a file or in the
// variable FSDP_SECRET, so that other processes cannot join. With -tls their
// messages are encrypted, and so are the messages of their ranks.
//
//	(umask 077; head -c 32 /dev/urandom | base64 > key)      # once, then copied to both
//	fsdprun -n 4 -nnodes 2 -node-rank 0 -rdzv host0:29500 -secret-file key ./train
//	fsdprun -n 4 -nnodes 2 -node-rank 1 -rdzv host0:29500 -secret-file key ./train
//
// With three hosts or more, -rdzv may list addresses of hosts 0, 1, 2 and so on,
// at least three. Then the job outlives the loss of any host, host 0 included:
// see "Hosts that leave or join".
//
//	fsdprun -n 4 -nnodes 3 -node-rank 0 -rdzv a:29500,b:29500,c:29500 \
//	    -restarts 9 -min 8 -secret-file key ./train
//
// Ranks listen on the address through which their host reaches host 0, unless
// -listen names another. Slurm, mpirun and Kubernetes need no fsdprun: they
// start every rank, and the library reads their variables.
//
// Checkpoints must be in a directory that all hosts share, so that the hosts
// that continue find them.
//
// # Environment of a rank
//
//	RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE   its place; hosts are in the order of -node-rank,
//	                                              and the host that holds the meeting is the first
//	NODE_RANK GROUP_RANK GROUP_WORLD_SIZE         the place of its host among those that are there
//	MASTER_ADDR MASTER_PORT                       where rank 0 serves, on the host that holds the meeting
//	TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT name and number of the start, from 0
//	FSDP_SECRET                                   on one host a random key, if there is none
//	FSDP_TLS FSDP_TRUST_NETWORK                   1 with -tls, -trust-network
//	FSDP_TRANSPORT FSDP_LISTEN                    from the flags; see above
//	FSDP_TIMEOUT FSDP_JOIN_TIMEOUT                from the flags
//	FSDP_RENDEZVOUS FSDP_JOIN FSDP_REPLACE        with -replace: the directory where ranks meet;
//	                                              true in a process that replaces a rank
//	FSDP_MEMBERS                                  with -replace on several hosts: a directory of
//	                                              this host, by which that process finds the others
//	FSDP_WITNESS                                  from -witness
//	FSDP_JOINS                                    a file that tells fsdprun whether it has joined
//	FSDP_COLUMNS                                  width of a line on a terminal, without -log-dir
//	FSDP_TRACE                                    from -trace
//	FSDP_HASHES                                   from -hashes
//	FSDP_STRAGGLERS                               from -stragglers
//	GOMAXPROCS                                    cores of the host / its ranks, unless set
//
// Each rank leads its own process group. Standard input goes to rank 0. Input
// that a failed attempt has read is not read again by the next.
//
// # Output
//
// Lines of rank 3 begin with "[3] ". Lines of standard output go to standard
// output, and lines of standard error to standard error. Lines are never mixed.
// A progress line, which ends in a carriage return, is overwritten by the next
// on a terminal; elsewhere only its last state is printed. Package monitor
// shows such lines if FSDP_COLUMNS says that they are visible. Files in
// -log-dir contain the unchanged output of a rank.
//
// With -trace DIR each rank writes a trace of its passes there: see fsdp's
// TraceDir. At the end host 0 joins the files that it finds in DIR into
// job.pftrace, which https://ui.perfetto.dev opens. If hosts do not share DIR, or
// host 0 is gone, cat can join the files. With -hashes DIR each rank writes hashes of its
// computation there. The command fsdpdiff uses them to find where two runs
// begin to differ. If a log, a trace or hashes cannot be written, as on a full
// disk, the exit status is not 0, even if all ranks exit with 0.
//
// With -stragglers each rank measures its operations, at a cost of some
// microseconds a step, see Profile of package fsdp. When the ranks have ended,
// and were not killed within their first ten seconds, fsdprun reports which
// rank the others waited for, and whether a call, the processor, the network or
// something between the passes of that rank is slow. Programs need no change.
//
// # When something goes wrong
//
// When a rank fails, the others get SIGTERM, on all hosts, and SIGKILL after
// -grace. A summary names the rank that failed first and says how it failed. It
// has the last lines of this rank's standard error, and how the others ended. A
// rank that ended because of another one, as its standard error says, is not
// the first. The exit status is the status of the rank that failed first: its
// own, or 128 plus the number of the signal that killed it.
//
// If a rank ends with status 0 without having joined the others, and others
// wait for it, this rank has failed. If no rank has joined, as the program does
// not use comm, fsdprun warns.
//
// SIGINT (Ctrl-C), SIGTERM, SIGHUP and SIGQUIT are passed on once to every rank
// that has not been asked to end. A rank may then save for as long as -grace;
// comm.Interrupt notifies a program. A second signal kills, except SIGHUP: a
// terminal that closes sends several. If all ranks then exit with 0, so does
// fsdprun. SIGUSR2 is passed on and has no further effect here: with
// "#SBATCH --signal=USR2@60" ranks may save before Slurm's SIGTERM.
//
// Ranks do not outlive fsdprun. Processes that a rank has started are killed
// when the rank ends, unless they made their own process group. On Linux ranks
// end even if SIGKILL ends fsdprun itself; the processes that they have started
// then do not.
//
// # Restarts and the number of ranks
//
// With -restarts k, all ranks are started again after a failure, at most k
// times, with the next TORCHELASTIC_RESTART_COUNT, another port and another job
// name. The program itself resumes from its checkpoint. A restart comes 1 s
// after the failure, the next ones after 2 s, 4 s and so on up to a minute,
// until the ranks have run for a minute.
//
// A failure that would repeat is not followed by a restart. If the last lines
// of a rank's standard error contain "a restart does not help", the job ends. The
// error of fsdp's Load about a damaged checkpoint contains this text, so the
// job ends if the program prints it. With -older, Load takes an older
// checkpoint instead.
//
// With -replace k a rank that fails is started again alone, at most k times in a start. The others
// do not get SIGTERM. Their program calls comm.Reconnect after the error of the lost rank, and the
// new process, for which comm.FromEnv and comm.Run wait until then, takes the place of the lost
// one. It gets the state from the others, see fsdp's MemoryCheckpoint. On one host the ranks meet
// in a directory instead of at a port. When k ranks of a host have been replaced, or no rank of the
// group is left, the next failure ends the start as usual. But a process that fails before it has
// joined ends no other rank. On several hosts, give -replace to all.
//
// With -min and -max the number of ranks changes between starts. The rule:
//
//   - A rank is lost if a signal that fsdprun did not send killed it, as the
//     kernel does when memory runs out. In the next start its host has one rank
//     fewer, but at least one, and all hosts together have at least -min ranks.
//     A rank that exits with an error is not lost: the number stays.
//   - SIGUSR1 requests growth: the ranks get SIGTERM, and in the next start
//     this host has -max ranks. This is not a failure and uses up no restart.
//     With -replace the ranks go on if they have joined. fsdprun starts the
//     processes that this host lacks. They join when the program calls
//     comm.Reconnect, for which it asks comm.Joining after its steps. Their
//     numbers follow this host's last rank, and another host may have them, too.
//
// # Hosts that leave or join
//
// The same rules apply. Nothing is started with fewer than -min ranks. Without
// -min all hosts are needed.
//
//   - A host is gone when its fsdprun has ended, which is noticed at once, or
//     has sent nothing for 20 s. This is a failure: the ranks of the other
//     hosts get SIGTERM, and the next start uses the remaining hosts, if they
//     have -min ranks. Otherwise they wait for more hosts for -join-timeout.
//   - A host that joins or returns is included at once: the ranks get SIGTERM,
//     as when the job grows, so a program that then saves loses nothing, and
//     the next start has one more host. This is not a failure. The first start
//     waits for all hosts, but only for 30 s once there are -min ranks.
//   - SIGINT, SIGTERM and so on for the fsdprun of one host make this host
//     leave, like a machine that is taken away: its ranks get the signal, and
//     the others continue without it, as after a failure. For host 0, or
//     without -restarts, they end the job on all hosts.
//   - With one address in -rdzv, host 0 must be present, as the hosts meet
//     there: no other host continues without it. When it is gone, the others end
//     their ranks and try to reach it for -join-timeout. In this time its fsdprun
//     may be started again. After this time, and at once without -restarts, they
//     end with an error that names the address. A host that cannot reach host 0
//     does the same, so if the network of a job is cut in two, only one part
//     continues.
//
// With several addresses in -rdzv no host is special. The hosts that have the
// addresses are the candidates, and any of them can hold the meeting:
//
//   - Ranks are started on more than half of the candidates, or on half of them
//     with host 0, and on any of the other hosts. So two parts of a network that
//     is cut never both start ranks. Hosts without such a majority end their
//     ranks, wait for it for -join-timeout, and end with an error that names the
//     absent hosts.
//   - When the host that holds the meeting is gone, the others end their ranks,
//     and meet at another candidate. This is a failure, and uses up a restart. If
//     all others are there, the next start comes at once; otherwise after 30 s.
//   - A host that was lost returns when its fsdprun is started again, host 0 as
//     well. It asks the candidates one after the other for the meeting.
//   - SIGTERM for any fsdprun, of host 0 as well, makes this host leave. SIGINT
//     for host 0 ends the job on all hosts.
//   - All hosts need the same -rdzv. -min is needed, too: without it all hosts
//     are. With -replace there is one address.
//   - The program must not call comm.Reconnect: ranks that continue by themselves
//     may overlap with the next start until they are killed after -grace.
//
// The next start may begin while ranks of a host that is cut off still run. They
// are then ranks of a failed group, so they cannot complete a further step, nor
// a checkpoint that not all of them have written. Their fsdprun detects the cut
// within the same 20 s, and ends them.
// Rank 0 of a start also has the lock of the directory of its checkpoints until
// it ends, so a rank of the next start that saves too early gets an error.
//
// All fsdpruns of a job end with the same status, except on a host that leaves:
// it ends with the status of its ranks.
//
// With -replace these rules apply until all ranks have joined. Then no host is
// special:
//
//   - A host that is gone, host 0 included, ends no other host. The ranks of the
//     other hosts call comm.Reconnect, and continue if they have the majority.
//     They wait for processes in the places of the lost ones for FSDP_REPLACE (1
//     minute). Without host 0 each fsdprun watches its own ranks, and ends with
//     their status.
//   - SIGTERM to one fsdprun, host 0 included, is passed to its ranks, which close
//     their groups after a step, and is the planned end of this host's part.
//     SIGINT to host 0 ends the job on all hosts.
//   - A host that comes or returns starts its ranks at once. They get numbers after
//     all others, and join when these call comm.Reconnect, for which the program
//     asks comm.Joining after its steps. This needs host 0. Their fsdprun ends
//     with their status.
//   - After a host is gone there is no restart, as its ranks may still run.
//
// # A witness
//
// A process on another host votes if exactly half of the ranks are left, so that
// either of two hosts may be lost. It runs no ranks:
//
//	fsdprun -serve-witness host2:29600 -secret-file key      # with -tls, if the job has it
//
// It serves all jobs with this secret, until SIGINT or SIGTERM. The hosts of a job
// have -replace and -witness host2:29600. Half of the ranks continue then if the
// witness votes for them, and not without it, whether they have rank 0 or not.
// Ranks join only when they have found the witness. If it is lost later, the job
// goes on. A witness that has been started again votes from the next group on.
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
