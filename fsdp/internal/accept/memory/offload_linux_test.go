package memory_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"runtime/debug"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/internal/mapped"
	"github.com/gofsdp/gofsdp/optim"
	"github.com/gofsdp/gofsdp/optim/vec"
)

// The tests of this file run jobs in processes of their own, whose memory or files are limited by
// the kernel.

const jobVariable, jobDirVariable, jobLimitVariable = "FSDP_TEST_JOB", "FSDP_TEST_DIR", "FSDP_TEST_LIMIT"

var offloadJobs = map[string]func(dir string) error{
	"state":       func(dir string) error { return trainLarge(largeState, dir) },
	"activations": func(dir string) error { return trainLarge(largeActivations, dir) },
	"full disk":   trainOnFullDisk,
}

// TestOffloadJob does nothing but in the processes that the other tests start.
func TestOffloadJob(t *testing.T) {
	kit.Needs(t, kit.Processor)
	job, ok := offloadJobs[os.Getenv(jobVariable)]
	if !ok {
		return
	}
	debug.SetGCPercent(20) // what counts is what is live, not what is left over
	if os.Getenv(jobLimitVariable) != "" {
		limit := uint64(privateBytes(t) + allowance)
		require.NoError(t, unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: limit, Max: limit}))
	}
	require.NoError(t, job(os.Getenv(jobDirVariable)))
}

// startJob runs a job, with the allowance or without limit, and returns what it printed in lines
// that begin with "job: ".
func startJob(t *testing.T, job, dir string, limited bool) (printed, output string, err error) {
	ctx, cancel := context.WithTimeout(t.Context(), kit.Patience)
	defer cancel()
	child := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestOffloadJob$")
	child.Env = append(os.Environ(), "GOMAXPROCS=2", jobVariable+"="+job, jobDirVariable+"="+dir)
	if limited {
		child.Env = append(child.Env, jobLimitVariable+"=yes")
	}
	out, err := child.CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if text, ok := strings.CutPrefix(line, "job: "); ok {
			printed += text
		}
	}
	return printed, string(out), err
}

// privateBytes returns what counts against RLIMIT_DATA.
func privateBytes(t require.TestingT) (n int) {
	text, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	_, line, _ := strings.Cut(string(text), "VmData:")
	_, err = fmt.Sscan(line, &n)
	require.NoError(t, err)
	return n << 10
}

const allowance = 64 << 20 // bytes of private memory that a limited job may add to what its process began with

// largeRun is a training on two ranks of a process that needs several times the allowance for its
// state, or for what its calls keep.
type largeRun struct {
	model      *nn.GPT
	rows, cols int
	lr         float64
	keep       bool
	least      int // bytes that lie in files, if any do, at the most
}

var (
	largeState       = largeRun{&nn.GPT{Vocab: 16, Context: 8, Layers: 14, Dim: 256, Heads: 4}, 1, 8, 1e-4, false, 160 << 20}
	largeActivations = largeRun{&nn.GPT{Vocab: 16, Context: 64, Layers: 12, Dim: 64, Heads: 4}, 26, 64, 1e-3, true, 160 << 20}
)

const (
	largeRanks = 2
	largeSteps = 4
)

// trainLarge makes a few steps on the same batch, and prints the losses and a hash of what every
// rank owns in the end. Files are used if dir is not empty.
func trainLarge(r largeRun, dir string) error {
	var report [largeRanks]string
	var inFiles [largeRanks]int
	err := comm.Run(context.Background(), largeRanks, func(ctx context.Context, g comm.Group) error {
		cfg := fsdp.Config{Group: g, WrapPolicy: kit.Blocks, Offload: fsdp.Offload{Dir: dir}}
		if r.keep {
			cfg.Activations.Save = fsdp.WrapEach()
			if dir != "" {
				cfg.Activations.Offload = fsdp.WrapEach()
			}
		}
		m, err := fsdp.WrapContext(ctx, r.model, cfg)
		if err != nil {
			return err
		}
		opt, err := optim.AdamW{}.New(m.Params())
		if err != nil {
			return err
		}
		batch := []fsdp.Tensor{kit.Tokens(g.Rank(), r.model.Vocab, r.rows, r.cols), kit.Tokens(g.Rank()+2, r.model.Vocab, r.rows, r.cols)}
		plan, err := m.Plan(batch...)
		if err != nil {
			return err
		}
		inFiles[g.Rank()] = plan.MappedBytes
		var losses []float64
		for range largeSteps {
			loss, err := m.Forward(ctx, batch...)
			if err == nil {
				err = m.Backward(ctx)
			}
			if err = errors.Join(err, opt.Step(r.lr)); err != nil {
				return err
			}
			m.ZeroGrad()
			losses = append(losses, loss)
		}
		if first, last := losses[0], losses[largeSteps-1]; !(last < first) {
			return fmt.Errorf("the loss of rank %d went from %v to %v", g.Rank(), first, last)
		}
		h := fnv.New64a()
		for _, p := range m.Params() {
			for _, x := range p.Value.(optim.Host).F32 {
				b := math.Float32bits(x)
				_, _ = h.Write([]byte{byte(b), byte(b >> 8), byte(b >> 16), byte(b >> 24)})
			}
		}
		report[g.Rank()] = fmt.Sprintf("job: rank %d: losses %v, hash %x\n", g.Rank(), losses, h.Sum64())
		return m.Close()
	})
	if err != nil {
		return err
	}
	total := 0
	for _, n := range inFiles {
		total += n
	}
	if dir != "" && total < r.least {
		return fmt.Errorf("only %d bytes in files", total)
	}
	fmt.Print(strings.Join(report[:], ""))
	return nil
}

// trainOnFullDisk runs into a limit on the size of files, which the kernel reports where it reports
// a full disk, on one rank of two: in Wrap, in the middle of a pass, and when an optimizer is made.
// The other rank is told by the error of the collective.
func trainOnFullDisk(dir string) error {
	signal.Ignore(unix.SIGXFSZ)
	limit := func(bytes uint64) error {
		return unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: bytes, Max: math.MaxUint64})
	}
	full := func(when string, rank int, err error) error {
		var space *mapped.SpaceError
		switch {
		case err == nil || !strings.Contains(err.Error(), fmt.Sprintf("rank %d: ", rank)):
			return fmt.Errorf("%s: rank %d: %v", when, rank, err)
		case rank == 0 && (!errors.As(err, &space) || !strings.Contains(err.Error(), dir)):
			return fmt.Errorf("%s: rank 0 does not say what was full: %v", when, err)
		case !strings.Contains(err.Error(), "mapped: no place for "):
			return fmt.Errorf("%s: rank 1 is not told why: %v", when, err)
		}
		fmt.Printf("job: %s: rank %d: %v\n", when, rank, err)
		return nil
	}
	const small, ample = 16 << 10, 64 << 20
	model := &nn.GPT{Vocab: 16, Context: 32, Layers: 2, Dim: 128, Heads: 4}
	return comm.Run(context.Background(), 2, func(ctx context.Context, g comm.Group) error {
		cfg := fsdp.Config{Group: g, WrapPolicy: kit.Blocks}
		if g.Rank() == 0 {
			cfg.Offload.Dir, cfg.Activations.Offload = dir, kit.Blocks
		}
		at := func(bytes uint64) error { // for both, at a time when neither allocates
			return errors.Join(g.Barrier(ctx), limit(bytes), g.Barrier(ctx))
		}
		if err := at(small); err != nil {
			return err
		}
		_, err := fsdp.WrapContext(ctx, model, cfg)
		if err := errors.Join(full("Wrap", g.Rank(), err), at(ample)); err != nil {
			return err
		}
		m, err := fsdp.WrapContext(ctx, model, cfg)
		if err := errors.Join(err, at(small)); err != nil {
			return err
		}
		if _, err := (optim.AdamW{}).New(m.Params()); g.Rank() == 0 {
			if err := full("optimizer", 0, err); err != nil {
				return err
			}
		}
		_, err = m.Forward(ctx, kit.Tokens(1, 16, 8, 32), kit.Tokens(2, 16, 8, 32))
		if err == nil { // this rank had all it needed from the other
			err = m.Backward(ctx)
		}
		return errors.Join(full("pass", g.Rank(), err), m.Close(), limit(ample))
	})
}

// TestOffloadFullDisk: whenever the disk is full, every rank says so, the first one with the sizes
// and the directory.
func TestOffloadFullDisk(t *testing.T) {
	kit.Needs(t, kit.Processor)
	dir := t.TempDir()
	printed, output, err := startJob(t, "full disk", dir, false)
	require.NoError(t, err, output)
	require.Contains(t, printed, "Wrap: rank 0: fsdp: rank 0: group ")
	require.Contains(t, printed, "Wrap: rank 1: fsdp: rank 1: rank 0: group ")
	require.Contains(t, printed, "rank 0: state of group ")
	require.Contains(t, printed, "pass: rank 0: fsdp: rank 0: pass 1: forward ")
	requireEmpty(t, dir)
}

// inRAM returns how many of the whole pages that x spans are in RAM, and how many there are.
func inRAM(t require.TestingT, x []float32) (in, of int) {
	pages := pagesOf(x)
	seen := make([]byte, len(pages)/os.Getpagesize())
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&pages[0])), uintptr(len(pages)), uintptr(unsafe.Pointer(&seen[0])))
	require.Zero(t, errno)
	for _, s := range seen {
		in += int(s & 1)
	}
	return in, len(seen)
}

// pagesOf returns the whole pages that x spans.
func pagesOf(x []float32) []byte {
	b := unsafe.Slice((*byte)(unsafe.Pointer(&x[0])), 4*len(x))
	page := uintptr(os.Getpagesize())
	skip := min(len(b), int(-uintptr(unsafe.Pointer(&b[0]))&(page-1)))
	return b[skip : skip+(len(b)-skip)&^int(page-1)]
}

// TestOffloadReadsAhead drops all shards from RAM before a step, and sees that of a block come back
// while the one before it is gathered, and the gradients of a block while they are reduced, when
// nobody has touched them.
func TestOffloadReadsAhead(t *testing.T) {
	kit.Needs(t, kit.HostMemory)
	values, grads := map[string][]float32{}, map[string][]float32{}
	before := map[string]string{"blocks.1": "blocks.0", "blocks.2": "blocks.1"}
	var seen []string
	comes := func(what string, x []float32) {
		require.Eventually(t, func() bool { in, of := inRAM(t, x); return in > of/2 }, kit.Patience, time.Millisecond, what)
		seen = append(seen, what)
	}
	cfg := fsdp.Config{WrapPolicy: kit.Blocks, Prefetch: fsdp.NoPrefetch, Offload: fsdp.Offload{Dir: "/var/tmp"}} // where /tmp is RAM, this is not
	cfg.Observers = append(cfg.Observers, fsdp.TraceFunc(func(e fsdp.Event) {
		for next, here := range before {
			if e.Kind == "forward" && e.Call == here && len(seen) < len(before) {
				comes("value of "+next, values[next])
			}
		}
		if e.Kind == "reduce" && grads[e.Group] != nil {
			comes("gradient of "+e.Group, grads[e.Group])
		}
	}))
	m := kit.Wrap(t, &nn.GPT{Vocab: 16, Context: 8, Layers: 3, Dim: 128, Heads: 4}, cfg)
	defer func() { require.NoError(t, m.Close()) }()
	var all [][]float32
	for _, p := range m.Params() {
		if unit, ok := strings.CutSuffix(p.Name, ".fc.weight"); ok {
			values[unit], grads[unit] = p.Value.(optim.Host).F32, p.Grad.(vec.Addressable).Elements().F32
		}
		all = append(all, p.Value.(optim.Host).F32, p.Grad.(vec.Addressable).Elements().F32)
	}
	require.Len(t, grads, 3)
	require.Eventually(t, func() bool { // the kernel need not do it at once, nor with all pages
		for _, x := range all {
			if pages := pagesOf(x); len(pages) > 0 {
				require.NoError(t, errors.Join(unix.Msync(pages, unix.MS_SYNC), unix.Madvise(pages, unix.MADV_PAGEOUT)))
			}
		}
		for _, x := range values {
			if in, of := inRAM(t, x); in >= of/4 {
				return false
			}
		}
		return true
	}, kit.Patience, time.Millisecond)
	kit.ForwardBackward(t, t.Context(), m, []fsdp.Tensor{kit.Tokens(1, 16, 2, 8), kit.Tokens(2, 16, 2, 8)})
	require.Equal(t, []string{"value of blocks.1", "value of blocks.2", "gradient of blocks.2", "gradient of blocks.1", "gradient of blocks.0"}, seen)
}
