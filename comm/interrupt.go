package comm

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// Interrupt returns a context that ends when this process is asked to end: by Ctrl-C or SIGTERM, by
// SIGHUP when its terminal or ssh connection is gone, and by the notices that clusters send before
// they take a machine away. Kubernetes, spot machines and fsdprun send SIGTERM. Slurm may send
// SIGUSR1 or SIGUSR2 before (--signal=USR1@60), so these count if SLURM_JOB_ID is set; otherwise
// they belong to the program. The signals in others also count. The cause of the context names the
// signal.
//
//	interrupt, stop := comm.Interrupt(ctx)
//	defer stop()
//
// A rank ends alone only if the others call [Reconnect]. Otherwise fsdp's Sharded.Any shares the
// interruption of one rank with the others, so that all save after the same step. A second SIGINT
// or SIGTERM ends the process at once. Other signals never do: a terminal that closes sends several
// SIGHUPs, and a notice comes before SIGTERM. A SIGINT or SIGHUP that was ignored when the process
// started, as under nohup, stays ignored.
//
// After stop, signals have their usual effect.
func Interrupt(ctx context.Context, others ...os.Signal) (interrupt context.Context, stop context.CancelFunc) {
	final := []os.Signal{syscall.SIGTERM}
	if !signal.Ignored(os.Interrupt) {
		final = append(final, os.Interrupt)
	}
	if !signal.Ignored(syscall.SIGHUP) {
		others = append(others[:len(others):len(others)], syscall.SIGHUP)
	}
	if os.Getenv("SLURM_JOB_ID") != "" {
		others = append(others, notices...)
	}
	asked, noticed := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(asked, final...)
	if len(others) > 0 { // else Notify would take all signals
		signal.Notify(noticed, others...)
	}
	interrupt, cancel := context.WithCancelCause(ctx)
	stopped := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		for {
			select {
			case s := <-asked:
				signal.Stop(asked) // a second one ends the process
				cancel(fmt.Errorf("%v signal received", s))
			case s := <-noticed:
				cancel(fmt.Errorf("%v signal received", s))
			case <-stopped:
				return
			}
		}
	})
	return interrupt, sync.OnceFunc(func() {
		signal.Stop(asked)
		signal.Stop(noticed)
		close(stopped)
		watch.Wait()
		cancel(nil)
	})
}
