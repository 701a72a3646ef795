// The faults command breaks process groups in many ways and checks that every rank detects it, in
// time and with the right name.
//
//	go -C internal/workshop run ./faults                 the fault matrix: exit status 1 if a case fails
//	go -C internal/workshop run ./faults -case 1234      one case again, with all that its ranks say
//	go -C internal/workshop run ./faults -flip 1234      one payload flip again
//	go -C internal/workshop run ./faults -suspension 12  one suspension again
//	go -C internal/workshop run ./faults -soak 10m       random programs and faults, one job after the other
//	go -C internal/workshop run ./faults -round 77       one job of it again
//	go -C internal/workshop run ./faults -strangers      jobs that strangers try to join or to hold up
//
// # The matrix
//
// A case is a world of ranks that runs a short program of collectives in which one incident happens
// (see [commtest.Incident]):
//
//	incident    kill stop cut garble, abort close cancel delay drop invalid, seven sorts of mismatch
//	moment      before a call, issued, waiting with others missing, several in flight, after
//	collective  all-gather reduce-scatter all-reduce broadcast barrier split
//	group       the world, or one split from it that omits a rank
//	size        4 B, 64 KiB, 4 MiB
//	transport   local, shm, tcp, and auto with ranks that pretend to be on two hosts
//	world       2, 3, 4, 8 ranks
//
// Case number i of a seed is always the same. Its ranks are processes, except for the local
// transport, where they are goroutines of one process. A case passes if on every remaining rank
//
//   - the error comes in time: after the limit of no progress if the culprit is
//     silent, and at once otherwise,
//   - it is a RankError that names the culprit and wraps the right sentinel, or a
//     MismatchError that names it among the two,
//   - operations that completed have the right values,
//   - everything issued later fails with the same error,
//   - Report answers, Close returns within two seconds, and neither goroutines
//     nor files are left,
//
// and if everything that the incident should not affect still works: the other ranks of a delay,
// and the world around a group that failed alone.
//
// # Strangers
//
// After the matrix three jobs start while unrelated processes hold 500 silent connections, renew
// them, or, if root runs this, try from a process of another user to join and to connect to the
// ranks' sockets. All ranks must join within two seconds, the other user must be refused, and the
// ranks must log a warning.
//
// # The payload flips
//
// A process in the middle of the TCP connections of a group flips up to 32 bits of a payload:
//
//	path        both pumps of TCP, TLS, and auto on two pretended hosts
//	collective  all-gather reduce-scatter all-reduce broadcast gather, of five element types
//	group       one split from the world, detached or not, of 2 to 16 ranks
//	size        4 B to 600 KiB, and any byte of the payload
//
// The ranks are goroutines. A case passes if every rank gets an error that wraps ErrDamaged and
// names the sender, the receiver, the group and the collective, at once, and no operation completes
// with wrong values.
//
// # The suspensions
//
// All processes of a case with a delay are stopped for twice the limit of no progress, and
// continued. They must go on, and end with the right values.
//
// # The processes
//
//	parent                                worker: the same program, one rank of one case at a time
//	  | -- order: case, rank, directory -->  |
//	  |                                      | connects
//	  | <-- joined ------------------------- |
//	  | -- begin --------------------------> | when all have: runs the program
//	  | <-- struck: when ------------------- | the culprit, right before the incident
//	  | <-- told: first error, when -------- | every rank that can
//	  | -- finish -------------------------> | when all have
//	  |                                      | later calls, Report, Close, leaks
//	  | <-- finished ----------------------- |
//
// Messages are lines of JSON over pipes. Workers serve many cases; those damaged by an incident are
// replaced.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/gofsdp/gofsdp/comm"
)

func main() {
	if serves() {
		return
	}
	seed := flag.Uint64("seed", 0, "of all that is random; 0: a `seed` that is drawn and printed")
	cases := flag.Int("cases", 2400, "number of `cases` of the matrix")
	only := flag.Int("case", -1, "run this `case` only")
	pauses := flag.Int("suspensions", 24, "number of `suspensions` after the matrix")
	pause := flag.Int("suspension", -1, "run this `suspension` only")
	bursts := flag.Int("flips", 2000, "number of payload `flips` after the matrix")
	burst := flag.Int("flip", -1, "run this payload `flip` only")
	round := flag.Int("round", -1, "run this `round` of the soak only")
	alone := flag.Bool("strangers", false, "only the cases of strangers")
	parallel := flag.Int("parallel", 6, "`cases` at a time")
	soak := flag.Duration("soak", 0, "run random programs for this `time` instead of the matrix")
	transport := flag.String("transport", "", "only this `transport`")
	what := flag.String("what", "", "only this `incident`")
	flag.Parse()
	ctx, stop := comm.Interrupt(context.Background())
	defer stop()
	if *seed == 0 {
		*seed = rand.Uint64N(1e6) + 1
	}
	fmt.Printf("seed %d\n", *seed)

	run, err := newRunner(*parallel)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var failed int
	switch {
	case *soak > 0:
		s := &soaker{run: run, seed: *seed, out: os.Stdout, transport: *transport}
		failed = s.soak(ctx, *soak)
	case *round >= 0:
		failed = matrix(ctx, run, os.Stdout, []Case{roundOf(*seed, *round, *transport)}, true)
	case *burst >= 0:
		failed = flips(ctx, os.Stdout, *seed, *burst, *burst+1, true)
	case *pause >= 0:
		failed = matrix(ctx, run, os.Stdout, []Case{suspensionOf(*seed, *pause)}, true)
	case *only >= 0:
		failed = matrix(ctx, run, os.Stdout, []Case{caseOf(*seed, *only)}, true)
	case *alone:
		failed = strangers(ctx, os.Stdout)
	default:
		list := selection(*seed, *cases, *transport, *what)
		failed = matrix(ctx, run, os.Stdout, list, false)
		if len(list) == *cases {
			failed += matrix(ctx, run, os.Stdout, suspensions(*seed, *pauses), false)
			failed += strangers(ctx, os.Stdout)
			failed += flips(ctx, os.Stdout, *seed, 0, *bursts, false)
		}
	}
	failed += end(run)
	if failed > 0 {
		os.Exit(1)
	}
}

// serves reports whether this process was a worker or an unrelated process of another faults
// command.
func serves() bool {
	if os.Getenv(workerVariable) != "" {
		work(os.Stdin, os.Stdout)
		return true
	}
	addr := os.Getenv(strangerVariable)
	if addr != "" {
		attack(addr)
	}
	return addr != ""
}

// selection returns the cases, among the first n, that match the transport and the incident. ""
// matches any.
func selection(seed uint64, n int, transport, what string) (list []Case) {
	for i := range n {
		c := caseOf(seed, i)
		if cmp.Or(transport, c.Transport) == c.Transport && cmp.Or(what, string(c.Incident.What)) == string(c.Incident.What) {
			list = append(list, c)
		}
	}
	return list
}

// end ends the workers and returns the number of failures.
func end(run *runner) (failed int) {
	begin := time.Now()
	if err := run.close(); err != nil {
		fmt.Println(err)
		failed++
	}
	if d := time.Since(begin); d > 5*time.Second {
		fmt.Printf("idle workers took %v to end\n", d)
		failed++
	}
	return failed
}
