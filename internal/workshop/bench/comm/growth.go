package comm

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gofsdp/gofsdp/comm"
)

// Growth makes increasing numbers of ranks join over TCP, all in this process, and prints to w the
// cost of a rank. It counts after joining, after collectives that need few of the other ranks, and
// after a reduction, in which each of fewer than 64 ranks sends to every other one.
func Growth(ctx context.Context, w io.Writer, args []string) error {
	flags := flag.NewFlagSet("bench growth", flag.ContinueOnError)
	worlds := flags.String("worlds", "2,16,64,256", "comma-separated numbers of ranks")
	reduce := flags.Bool("reduce", false, "also count after a reduction")
	if err := flags.Parse(args); err != nil {
		return err
	}
	fmt.Fprintln(w, "ranks  after          join   open files a rank  goroutines a rank  memory a rank  barrier")
	for text := range strings.SplitSeq(*worlds, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return fmt.Errorf("-worlds: %q is no number of ranks", text)
		}
		if err := grow(ctx, w, n, *reduce); err != nil {
			return err
		}
	}
	return nil
}

// grow measures n ranks.
func grow(ctx context.Context, w io.Writer, n int, reduce bool) (err error) {
	before, start := count(), time.Now()
	groups, err := joinAll(ctx, n)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, each(groups, func(g comm.Group) error { return g.Close() }))
	}()
	took := time.Since(start)
	steps := []struct {
		name string
		do   func(comm.Group) error
	}{
		{"joining", func(comm.Group) error { return nil }},
		{"collectives", func(g comm.Group) error { return few(ctx, g) }},
		{"a reduction", func(g comm.Group) error {
			src := make([]float32, 256*n)
			return g.ReduceScatter(comm.Of(src[256*g.Rank():][:256]), comm.Of(src), comm.Sum).Wait(ctx)
		}},
	}
	if !reduce {
		steps = steps[:2]
	}
	for _, s := range steps {
		if err := each(groups, s.do); err != nil {
			return err
		}
		now := count()
		barrier, err := timeBarrier(ctx, groups)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%5d  %-11s %7.2f s  %17.1f  %17.1f  %10d kB  %7.2f ms\n", n, s.name, took.Seconds(),
			float64(now.files-before.files)/float64(n), float64(now.goroutines-before.goroutines)/float64(n),
			(now.bytes-before.bytes)/n>>10, barrier.Seconds()*1e3)
	}
	return nil
}

// few runs collectives for which a rank needs few others.
func few(ctx context.Context, g comm.Group) error {
	failed := []error{g.Barrier(ctx)}
	for _, share := range []int{4, 8 << 10} { // elements: one is sent by doubling, one around the ring
		full := make([]float32, share*g.Size())
		failed = append(failed, g.AllGather(comm.Of(full), comm.Of(make([]float32, share))).Wait(ctx), g.Broadcast(comm.Of(full), 0).Wait(ctx))
	}
	return errors.Join(failed...)
}

// joinAll returns the handles of n ranks. A connection keeps the kernel from giving the port on
// which they meet to another process meanwhile.
func joinAll(ctx context.Context, n int) ([]comm.Group, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address := l.Addr().String()
	there, err := net.Dial("tcp", address)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	defer there.Close() // nothing is sent on it
	here, err := l.Accept()
	if err = errors.Join(err, l.Close()); err != nil {
		return nil, err
	}
	defer here.Close()
	groups, errs := make([]comm.Group, n), make([]error, n)
	secret := []byte(rand.Text())
	var ranks sync.WaitGroup
	for r := range n {
		ranks.Go(func() {
			groups[r], errs[r] = comm.Connect(ctx, comm.Config{
				Rank: r, Size: n, Rendezvous: "tcp://" + address, Job: "growth", Secret: secret, Transport: comm.TCP,
				Logger: slog.New(slog.DiscardHandler),
			})
		})
	}
	ranks.Wait()
	return groups, errors.Join(errs...)
}

// each calls f as every rank at once.
func each(groups []comm.Group, f func(comm.Group) error) error {
	errs := make([]error, len(groups))
	var ranks sync.WaitGroup
	for r, g := range groups {
		ranks.Go(func() { errs[r] = f(g) })
	}
	ranks.Wait()
	return errors.Join(errs...)
}

// timeBarrier returns the time of a barrier, the best of several.
func timeBarrier(ctx context.Context, groups []comm.Group) (best time.Duration, err error) {
	best = time.Hour
	for range 5 {
		start := time.Now()
		err = errors.Join(err, each(groups, func(g comm.Group) error { return g.Barrier(ctx) }))
		best = min(best, time.Since(start))
	}
	return best, err
}

// counted is the resources of this process.
type counted struct{ files, goroutines, bytes int }

// count counts after a garbage collection. Memory is Go's, including stacks.
func count() counted {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	open, _ := os.ReadDir("/proc/self/fd") // none if there is no such directory
	return counted{len(open), runtime.NumGoroutine(), int(m.HeapAlloc + m.StackInuse)}
}
