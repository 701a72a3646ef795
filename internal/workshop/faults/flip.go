package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/commtest"
	"github.com/gofsdp/gofsdp/internal/mesh"
)

// flip is a case in which bits of a payload flip on the wire. All of its ranks are goroutines of
// this process; the group is split from a world that serves many cases.
type flip struct {
	path  path
	ranks int
	color int // of the split
	trial commtest.Trial
	at    uint64 // byte of the payload, modulo its length
	mask  uint32 // the burst
	sums  comm.Checksums
}

// path is a path of payloads.
type path string

const (
	pathPoll   path = "tcp"      // the pump of Linux
	pathStream path = "portable" // the pump of other systems
	pathTLS    path = "tls"      // encrypted data flips
	pathHosts  path = "auto"     // two pretended hosts
)

var (
	paths      = []path{pathPoll, pathStream, pathTLS, pathHosts}
	flipWorlds = []int{2, 2, 2, 3, 3, 4, 6, 16} // from 16 ranks on, payloads travel around a ring
	flipSizes  = []int{4, 4, 100, 5000, 5000, 64 << 10, 64 << 10, 600 << 10}
	flipTypes  = []comm.DType{comm.Float32, comm.Float32, comm.BFloat16, comm.Float16, comm.Float64}
	flipKinds  = []string{commtest.AllGather, commtest.ReduceScatter, commtest.AllReduce, commtest.Broadcast, commtest.Gather}
)

// flipOf returns a case by its number.
func flipOf(seed uint64, number int) flip {
	rng := mathrand.New(mathrand.NewPCG(seed, uint64(number)))
	f := flip{path: paths[number%len(paths)], ranks: flipWorlds[rng.IntN(len(flipWorlds))], at: rng.Uint64(), sums: comm.ChecksumsOn}
	if f.path == pathHosts {
		f.ranks = 4 + 2*rng.IntN(2)
	}
	if rng.IntN(3) == 0 {
		f.color = comm.Detached
	}
	f.mask = 1 << rng.IntN(8)
	if rng.IntN(2) == 0 {
		f.mask = rng.Uint32() | 1
	}
	t := commtest.Trial{
		Kind: flipKinds[rng.IntN(len(flipKinds))], Type: flipTypes[rng.IntN(len(flipTypes))], Root: rng.IntN(f.ranks),
		InPlace: rng.IntN(2) == 0, Seed: rng.Uint64(),
	}
	t.Len = max(1, flipSizes[rng.IntN(len(flipSizes))]/t.Type.Size())
	if t.Kind != commtest.AllReduce && t.Kind != commtest.Broadcast {
		t.Len = max(1, t.Len/f.ranks)
	}
	f.trial = t
	return f
}

func (f flip) String() string {
	return fmt.Sprintf("%s, %d ranks, color %d, %v, bits %#x at byte %d", f.path, f.ranks, f.color, f.trial, f.mask, f.at)
}

// flipLimit is the time in which every rank must detect the damage after the call that received it.
const flipLimit = 5 * time.Second

// flipper runs flips.
type flipper struct {
	dir    string
	secret []byte
	worlds map[string][]comm.Group // that are not in use
	made   int
}

func newFlipper() (*flipper, error) {
	dir, err := os.MkdirTemp("", "gofsdp-flips-")
	return &flipper{dir: dir, secret: []byte(rand.Text()), worlds: map[string][]comm.Group{}}, err
}

func (p *flipper) close() error {
	var errs []error
	for _, world := range p.worlds {
		errs = append(errs, onRanks(world, func(_ int, g comm.Group) error { return g.Close() }))
	}
	return errors.Join(append(errs, os.RemoveAll(p.dir))...)
}

// onRanks calls do for all ranks at once.
func onRanks(world []comm.Group, do func(r int, g comm.Group) error) error {
	errs := make([]error, len(world))
	var ranks sync.WaitGroup
	for r, g := range world {
		ranks.Go(func() { errs[r] = do(r, g) })
	}
	ranks.Wait()
	return errors.Join(errs...)
}

// world returns the world of f, connected.
func (p *flipper) world(ctx context.Context, f flip) ([]comm.Group, error) {
	key := fmt.Sprint(f.path, f.ranks, f.sums)
	if world := p.worlds[key]; world != nil {
		return world, nil
	}
	p.made++
	world := make([]comm.Group, f.ranks)
	err := onRanks(world, func(r int, _ comm.Group) (err error) {
		cfg := comm.Config{
			Rank: r, Size: f.ranks, LocalRank: -1, Rendezvous: "file://" + p.dir, Job: fmt.Sprintf("flips/%d", p.made),
			Secret: p.secret, Transport: comm.TCP, Checksums: f.sums, TLS: f.path == pathTLS, Timeout: time.Minute,
		}
		if f.path == pathHosts {
			cfg.Transport, cfg.Host = comm.Auto, fmt.Sprintf("host-%d", 2*r/f.ranks)
		}
		world[r], err = comm.Connect(ctx, cfg)
		return err
	})
	if err == nil {
		p.worlds[key] = world
	}
	return world, err
}

// run runs f and returns the failure, or "", and the errors of the ranks.
func (p *flipper) run(ctx context.Context, f flip) (wrong, told string) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	world, err := p.world(ctx, f)
	if err != nil {
		return err.Error(), ""
	}
	w := &wire{tls: f.path == pathTLS, stream: f.path == pathStream, at: f.at, mask: f.mask}
	group := make([]comm.Group, f.ranks)
	split := mesh.WithMiddle(ctx, w.middle)
	err = onRanks(world, func(r int, g comm.Group) (err error) {
		if group[r], err = g.Split(split, f.color, r); err != nil {
			return err
		}
		return group[r].Barrier(ctx)
	})
	if err != nil {
		return fmt.Sprintf("making the group: %v", errors.Join(err, w.failed)), ""
	}
	w.arm()
	began := time.Now()
	told = f.strike(ctx, group, w, &wrong)
	if took := time.Since(began); took > flipLimit+spare && wrong == "" {
		wrong = fmt.Sprintf("the last rank knew after %v, %v are allowed", took.Round(time.Millisecond), flipLimit+spare)
	}
	if err := onRanks(group, func(_ int, g comm.Group) error { return g.Close() }); err != nil && wrong == "" {
		wrong = fmt.Sprintf("close: %v", err)
	}
	w.running.Wait()
	return wrong, told
}

// strike makes all ranks call the collective, and checks how it ends.
func (f flip) strike(ctx context.Context, group []comm.Group, w *wire, wrong *string) (told string) {
	errs := make([]error, f.ranks)
	bad := onRanks(group, func(r int, g comm.Group) error {
		work, check := f.trial.Issue(g)
		if errs[r] = work.Wait(ctx); errs[r] == nil {
			if err := check(); err != nil {
				g.Abort(err)
				return fmt.Errorf("rank %d completed with wrong values: %w", r, err)
			}
		}
		for began := time.Now(); errs[r] == nil && time.Since(began) < flipLimit+spare; { // the others detect it before this rank
			errs[r] = g.AllReduce(comm.Of(make([]float32, 1)), comm.Sum).Wait(ctx)
		}
		return nil
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.failed != nil:
		*wrong = w.failed.Error()
	case bad != nil:
		*wrong = bad.Error()
	case !w.struck:
		*wrong = "nothing was damaged"
	}
	for r, err := range errs {
		if flaw := f.flaw(err, w); flaw != "" && *wrong == "" {
			*wrong = fmt.Sprintf("rank %d: %s (from rank %d to rank %d): %v", r, flaw, w.from, w.to, err)
		}
	}
	return fmt.Sprint(errs[0])
}

// flaw returns the fault in the error of a rank, or "".
func (f flip) flaw(err error, w *wire) string {
	var blame *comm.RankError
	if !errors.As(err, &blame) {
		return "no rank is blamed"
	}
	text := err.Error()
	for _, rank := range []int{w.from, w.to} {
		if !strings.Contains(text, fmt.Sprintf("rank %d ", rank)) && !strings.Contains(text, fmt.Sprintf("rank %d:", rank)) {
			return fmt.Sprintf("should name rank %d", rank)
		}
	}
	switch {
	case blame.Rank != w.from:
		return "should blame the sender"
	case !errors.Is(err, comm.ErrDamaged):
		return "should wrap ErrDamaged"
	case !strings.Contains(text, `in collective #`) || !strings.Contains(text, `of group "world/`):
		return "should name the group and the collective"
	}
	return ""
}

// flips runs cases of the given seed and returns how many failed.
func flips(ctx context.Context, out io.Writer, seed uint64, first, last int, verbose bool) (failed int) {
	p, err := newFlipper()
	if err != nil {
		fmt.Fprintln(out, err)
		return 1
	}
	failed = series(ctx, out, "flip", seed, first, last, verbose, func(i int) outcome {
		f := flipOf(seed, i)
		wrong, told := p.run(ctx, f)
		return outcome{string(f.path), f.String(), wrong, told}
	})
	if err := p.close(); err != nil {
		failed++
		fmt.Fprintln(out, err)
	}
	return failed
}
