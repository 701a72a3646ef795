// Probe runs short measurements when it is told to. Bench against compiles it at two commits and
// tells both in turns, so it imports public packages only, and of them the names that change least.
//
//	> list
//	< train tiny	train small	train small tcp	…
//	> train tiny
//	< 0.0123
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/gofsdp/gofsdp/comm"
)

// ranks take part in everything, as goroutines.
const ranks = 2

// A measurement is made ready once; then a round returns the seconds that one operation took on the
// slowest rank.
type measurement struct {
	name string
	open func(ctx context.Context, dir string) (round func() (float64, error), err error)
}

// measurements returns all that there are.
func measurements() []measurement {
	return slices.Concat(steps(), collectives(), states())
}

func main() {
	dir, err := os.MkdirTemp("", "probe")
	if err == nil {
		err = errors.Join(serve(context.Background(), os.Stdin, os.Stdout, dir), os.RemoveAll(dir))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

// serve answers the lines of r on w. What measurements hold is freed when the process ends.
func serve(ctx context.Context, r io.Reader, w io.Writer, dir string) error {
	rounds := make(map[string]func() (float64, error))
	all := measurements()
	var names []string
	for _, m := range all {
		names = append(names, m.name)
	}
	for lines := bufio.NewScanner(r); lines.Scan(); {
		name := lines.Text()
		if name == "list" {
			fmt.Fprintln(w, strings.Join(names, "\t"))
			continue
		}
		i := slices.Index(names, name)
		if i < 0 {
			return fmt.Errorf("no measurement %q", name)
		}
		if rounds[name] == nil {
			round, err := all[i].open(ctx, dir)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			rounds[name] = round
		}
		seconds, err := rounds[name]()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		fmt.Fprintln(w, seconds)
	}
	return nil
}

// onAll runs f for every rank at once.
func onAll(f func(rank int) error) error {
	errs := make([]error, ranks)
	var wait sync.WaitGroup
	for r := range ranks {
		wait.Go(func() { errs[r] = f(r) })
	}
	wait.Wait()
	return errors.Join(errs...)
}

// connect returns the ranks of a group over a transport.
func connect(ctx context.Context, dir string, t comm.Transport) ([]comm.Group, error) {
	groups := make([]comm.Group, ranks)
	meet, err := os.MkdirTemp(dir, "meet")
	if err != nil {
		return nil, err
	}
	return groups, onAll(func(r int) (err error) {
		groups[r], err = comm.Connect(ctx, comm.Config{
			Rank: r, Size: ranks, Rendezvous: "file://" + meet, Job: "probe", Transport: t,
		})
		return err
	})
}
