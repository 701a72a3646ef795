//go:build linux && cgo

package nccl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gofsdp/gofsdp/internal/gpudouble"
)

// scriptName is the variable that names the script which a child process of a test
// runs instead of tests.
const scriptName = "FSDP_NCCL_TEST_SCRIPT"

// scripts are run in child processes. What they return is printed.
var scripts = map[string]func() error{}

func TestMain(m *testing.M) {
	name := os.Getenv(scriptName)
	if name == "" {
		goleak.VerifyTestMain(m)
		return
	}
	if err := scripts[name](); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// child is a process that runs a script under the doubles, or under what variables name.
func child(t testing.TB, name string, variables ...string) *exec.Cmd {
	t.Helper()
	libs := gpudouble.Build(t)
	self, err := os.Executable()
	require.NoError(t, err)
	c := exec.Command(self)
	c.Env = append(os.Environ(), scriptName+"="+name, EnvCUDA+"="+libs.CUDA, EnvLibrary+"="+libs.NCCL)
	c.Env = append(c.Env, variables...)
	return c
}

// runChild runs a script to its end, without an error.
func runChild(t testing.TB, name string, variables ...string) {
	t.Helper()
	out, err := child(t, name, variables...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// doubles loads the doubles and returns their side doors. The test fails if it leaves
// something behind in either.
func doubles(t testing.TB) (cuda, lib *gpudouble.Control) {
	t.Helper()
	libs := gpudouble.Build(t)
	require.NoError(t, LoadCUDA(libs.CUDA))
	require.NoError(t, Load(libs.NCCL))
	cuda, lib = gpudouble.Open(t, libs.CUDA), gpudouble.Open(t, libs.NCCL)
	cuda.Clean(t)
	lib.Clean(t, "communicator", "operator", "registrable memory", "registration")
	return cuda, lib
}

// A rank is what one goroutine of a test has. It is what package require reports to
// there; like everything that fails in such a goroutine it panics with an error, which
// world returns.
type rank struct {
	*Communicator
	dev    *Device
	stream *Stream
	ctx    context.Context
}

// Errorf implements require.TestingT.
func (r *rank) Errorf(format string, args ...any) { panic(fmt.Errorf(format, args...)) }

// FailNow implements require.TestingT. It comes after Errorf.
func (r *rank) FailNow() { panic(errors.New("failed")) }

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

// caught calls f and returns the error that it returned or panicked with.
func caught(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			e, ok := r.(error)
			if !ok {
				panic(r)
			}
			err = e
		}
	}()
	return f()
}

// each runs f for n ranks at once, and returns what they return.
func each(n int, f func(r int) error) []error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for r := range n {
		all.Go(func() { errs[r] = caught(func() error { return f(r) }) })
	}
	all.Wait()
	return errs
}

// open opens a device and a stream for a rank.
func (r *rank) open(ordinal int) {
	r.dev = must(OpenDevice(ordinal))
	r.stream = must(r.dev.NewStream())
}

func (r *rank) close() error {
	return errors.Join(r.stream.Sync(), r.stream.Close(), r.dev.Close())
}

// world runs f on n ranks of a new communicator, each on a device of its own, and closes
// everything. A rank that fails aborts the communicator. It returns what f returns.
func world(t testing.TB, n int, cfg Config, f func(r *rank) error) []error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	id, err := NewUniqueID()
	require.NoError(t, err)
	return each(n, func(i int) (err error) {
		r := &rank{ctx: ctx}
		r.open(i)
		defer func() { err = errors.Join(err, r.close()) }()
		r.Communicator = must(NewCommunicator(ctx, r.dev, n, id, i, cfg))
		if err := caught(func() error { return f(r) }); err != nil {
			return errors.Join(err, r.Abort())
		}
		return errors.Join(r.Finalize(ctx), r.Destroy())
	})
}

// inWorld is world with ranks that must not fail.
func inWorld(t testing.TB, n int, cfg Config, f func(r *rank) error) {
	t.Helper()
	for i, err := range world(t, n, cfg, f) {
		require.NoError(t, err, "rank %d", i)
	}
}

// alloc returns device memory for the time of the test.
func (r *rank) alloc(n int, use func(addr uintptr)) {
	m := must(r.dev.Alloc(n))
	defer func() { check(m.Free()) }()
	use(m.Addr())
}

// put copies bytes to device memory.
func (r *rank) put(to uintptr, b []byte) {
	h := must(r.dev.AllocHost(len(b)))
	copy(h.Bytes(), b)
	check(r.stream.CopyToDevice(to, h, 0, len(b)))
	check(r.stream.Sync())
	check(h.Free())
}

// get returns bytes of device memory, after what the stream was given.
func (r *rank) get(from uintptr, n int) []byte {
	h := must(r.dev.AllocHost(n))
	check(r.stream.CopyToHost(h, 0, from, n))
	check(r.stream.Sync())
	b := append([]byte{}, h.Bytes()...)
	check(h.Free())
	return b
}

// drain empties the reports of a double that a test provokes, and requires one about
// each of some words.
func drain(t testing.TB, c *gpudouble.Control, words ...string) {
	t.Helper()
	text := strings.Join(c.Reports(), "\n")
	for _, w := range words {
		require.Contains(t, text, w)
	}
}
