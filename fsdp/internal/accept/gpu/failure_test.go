//go:build linux && cgo

package gpu_test

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"runtime/pprof"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/gpu"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/internal/gpudouble"
	"github.com/gofsdp/gofsdp/optim"
)

// A faulty is a double and what of it lives.
type faulty struct {
	*gpudouble.Control
	functions []string // that it exports, as the documentation calls them
	lives     []string
	code      int // that its functions fail with
}

// faultyDoubles returns the doubles, which are loaded.
func faultyDoubles(t *testing.T) []faulty {
	kit.UseGPU()() // loads them
	libs := gpudouble.Build(t)
	version := regexp.MustCompile(`_v\d+$`)
	open := func(path, prefix string, code int, lives ...string) faulty {
		f, err := elf.Open(path)
		require.NoError(t, err)
		defer f.Close()
		symbols, err := f.DynamicSymbols()
		require.NoError(t, err)
		d := faulty{Control: gpudouble.Open(t, path), lives: lives, code: code}
		for _, s := range symbols {
			if strings.HasPrefix(s.Name, prefix) && s.Section != elf.SHN_UNDEF {
				d.functions = append(d.functions, version.ReplaceAllString(s.Name, ""))
			}
		}
		slices.Sort(d.functions)
		d.functions = slices.Compact(d.functions)
		return d
	}
	return []faulty{
		open(libs.CUDA, "cu", 999, "memory", "host", "stream", "event", "module", "context"),
		open(libs.NCCL, "nccl", 1, "communicator"),
		open(libs.CUBLASLT, "cublasLt", 13, "cublasLt"),
	}
}

// trainAndSave is all that a rank does with its own device. It returns the error of the training, and that
// of closing everything afterwards.
func trainAndSave(ctx context.Context, g comm.Group, cfg fsdp.Config, dir string) (err, closing error) {
	dev, err := gpu.Open(g.Rank())
	if err != nil {
		return fmt.Errorf("rank %d: %w", g.Rank(), err), nil
	}
	defer func() { closing = errors.Join(closing, dev.Close()) }()
	cfg.Group, cfg.Device, cfg.WrapPolicy = g, dev, kit.Blocks
	m, err := fsdp.Wrap(kit.TinyGPT(1), cfg)
	if err != nil {
		return err, nil
	}
	defer func() { closing = m.Close() }()
	opt, err := optim.AdamW{WeightDecay: 0.1}.New(m.Params())
	for step := 0; step < 2 && err == nil; step++ {
		if _, err = m.Forward(ctx, kit.TinyBatch(step, g.Rank(), 2, kit.TinyContext)...); err == nil {
			err = m.Backward(ctx)
		}
		if err == nil {
			_, err = m.ClipGradNorm(ctx, 0.5)
		}
		if err == nil {
			err = opt.Step(1e-2)
		}
		if err == nil {
			m.ZeroGrad()
		}
	}
	if err == nil {
		_, err = m.Eval(ctx, kit.TinyBatch(2, g.Rank(), 2, kit.TinyContext)...)
	}
	if err == nil {
		err = m.Save(ctx, dir, opt, nil)
	}
	return err, nil
}

// faultyRun trains on two ranks, and returns the errors of trainAndSave of each. A rank that fails in its
// training leaves the group.
func faultyRun(t *testing.T, cfg fsdp.Config) (errs, closing [2]error) {
	t.Helper()
	dir, err := os.MkdirTemp(t.TempDir(), "")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = comm.Run(context.Background(), 2, func(ctx context.Context, g comm.Group) error {
			r := g.Rank()
			errs[r], closing[r] = trainAndSave(ctx, g, cfg, filepath.Join(dir, "saved"))
			return errs[r]
		})
	}()
	select {
	case <-done:
	case <-time.After(kit.Patience):
		_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
		require.Fail(t, "the ranks hang")
	}
	return errs, closing
}

// Functions of which a call that fails has consequences of its own.
var (
	// Only the doubles call these, as what a real library does inside of itself.
	doublesOwn = []string{"cuCtxGetCurrent", "cuCtxGetDevice", "cuLaunchHostFunc", "cuStreamGetCtx"}
	// How often these are called depends on time: a late call may not happen at all.
	// There are as many events as collectives were ever in flight at once.
	polled = []string{"cuCtxSetCurrent", "cuEventCreate", "cuEventDestroy", "cuEventQuery", "cuStreamQuery", "ncclCommGetAsyncError"}
	// What a call of these does not free stays, and with it what holds it: the handle of cuBLASLt, and
	// the device's context.
	frees = map[string]string{
		"cuDevicePrimaryCtxRelease": "context", "cuEventDestroy": "event", "cuMemFree": "memory", "cuMemFreeHost": "host",
		"cuModuleUnload": "module", "cuStreamDestroy": "stream", "ncclCommDestroy": "communicator", "cublasLtDestroy": "cublasLt",
		"cublasLtMatmulDescDestroy": "cublasLt", "cublasLtMatmulPreferenceDestroy": "cublasLt", "cublasLtMatrixLayoutDestroy": "cublasLt",
	}
)

// A fault is one call that fails in a training.
type fault struct {
	double   faulty
	function string
	nth      int
	code     int
}

// inject trains with a fault, and requires that every rank is told of it and nothing is left.
func (f fault) inject(t *testing.T, doubles []faulty, cfg fsdp.Config) {
	live := make(map[string]int)
	count := func(sign int) {
		for _, d := range doubles {
			for _, what := range d.lives {
				live[what] += sign * d.Live(what)
			}
		}
	}
	goroutines := goleak.IgnoreCurrent()
	count(-1)
	before := f.double.Calls(f.function)
	f.double.Fail(f.function, f.nth, f.code)
	errs, closing := faultyRun(t, cfg)
	reached := f.double.Calls(f.function)-before >= f.nth
	f.double.Fail(f.function, 0, 0)
	count(1)

	all := errors.Join(append(errs[:], closing[:]...)...)
	if reached {
		require.ErrorContains(t, all, f.function)
	} else {
		require.Contains(t, polled, f.function)
		require.NoError(t, all)
	}
	if err := errors.Join(errs[:]...); err != nil {
		for r, err := range errs {
			require.ErrorContains(t, err, f.function, "rank %d", r)
			require.NotErrorIs(t, err, comm.ErrTimeout)
		}
	}
	for _, err := range append(errs[:], closing[:]...) {
		if err != nil {
			require.Regexp(t, `rank \d|device \d`, err.Error())
		}
	}
	if what := frees[f.function]; what != "" {
		live[what]--
		require.LessOrEqual(t, live["context"], 1)
		live["context"] = 0 // which a case before may have left already
		if strings.HasPrefix(f.function, "cublasLt") && f.function != "cublasLtDestroy" {
			live["cublasLt"]-- // the handle
		}
	}
	for what, n := range live {
		require.Zero(t, n, "%s left behind", what)
	}
	require.NoError(t, goleak.Find(goroutines))
	for _, d := range doubles {
		require.Empty(t, d.Reports())
	}
}

// TestGPUFaults lets each function of the driver, of NCCL and of cuBLASLt that a training calls fail once,
// in one of its calls, or, if FSDP_TEST_FAULTS is all, in the first, in the last and in one between, of
// float32 and of bfloat16.
func TestGPUFaults(t *testing.T) {
	doubles := faultyDoubles(t)
	draw := rand.New(rand.NewPCG(19, 19))
	for i, cfg := range []fsdp.Config{{}, {Precision: fsdp.BF16()}} {
		number := make(map[string]int)
		count := func(sign int) {
			for _, d := range doubles {
				for _, f := range d.functions {
					number[f] += sign * d.Calls(f)
				}
			}
		}
		count(-1)
		errs, closing := faultyRun(t, cfg)
		require.NoError(t, errors.Join(append(errs[:], closing[:]...)...))
		count(1)
		called := 0
		for _, d := range doubles {
			for _, f := range d.functions {
				n := number[f]
				if n == 0 || slices.Contains(doublesOwn, f) {
					continue
				}
				if slices.Contains(polled, f) {
					n = max(1, n/2)
				}
				code := d.code
				if strings.HasPrefix(f, "cuMemAlloc") {
					code = 2 // out of memory
				}
				called++
				for j, nth := range []int{1, 1 + draw.IntN(n), n} {
					first := slices.Contains(polled, f) && i+j == 0
					if os.Getenv("FSDP_TEST_FAULTS") == "all" || first || (called%2 == i && called/2%3 == j) {
						t.Run(fmt.Sprint(f, " ", nth, " of ", n), func(t *testing.T) { fault{d, f, nth, code}.inject(t, doubles, cfg) })
					}
				}
			}
		}
		require.Greater(t, called, 40)
	}
}
