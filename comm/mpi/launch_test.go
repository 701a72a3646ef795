//go:build mpi && cgo && unix

package mpi

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/commtest"
)

// roleEnv names the role of a process that a test has started under mpirun.
const roleEnv = "GOFSDP_MPI_TEST_ROLE"

// fifoEnv names a directory with one named pipe for each rank, see gate.
const fifoEnv = "GOFSDP_MPI_TEST_FIFOS"

// roles are the programs that tests start under mpirun. A role prints nothing if
// all is well.
var roles = map[string]func(*rank){
	"contract":  contract,
	"kit":       kit,
	"late":      late,
	"stalled":   stalled,
	"killed":    killed,
	"alone":     alone,
	"abandoned": abandons,
}

func TestMain(m *testing.M) {
	role := roles[os.Getenv(roleEnv)]
	if role == nil {
		goleak.VerifyTestMain(m)
		return
	}
	t := &rank{tests: m}
	runtime.GOMAXPROCS(max(1, runtime.NumCPU()/2))
	func() {
		defer func() {
			if v := recover(); v != nil && v != any(t) {
				panic(v)
			}
		}()
		role(t)
		if err := goleak.Find(); err != nil {
			t.Errorf("goroutines left: %v", err)
		}
	}()
	if t.failed {
		os.Exit(1)
	}
	t.through()
}

// rank is a require.TestingT for a process that is no test of its own.
type rank struct {
	comm.Group
	world  *group // its backend
	tests  *testing.M
	none   *int
	failed bool
}

// Errorf implements [require.TestingT].
func (t *rank) Errorf(format string, args ...any) {
	t.failed = true
	who := "a rank"
	if t.Group != nil {
		who = fmt.Sprintf("rank %d of %d", t.Rank(), t.Size())
	}
	fmt.Printf("FAILED: %s: %s\n", who, fmt.Sprintf(format, args...))
}

// through says that the role has been played to its end.
func (t *rank) through() { fmt.Printf("THROUGH: %d\n", t.Rank()) }

// FailNow implements [require.TestingT].
func (t *rank) FailNow() { panic(t) }

// Helper lets require find the line.
func (t *rank) Helper() {}

// join makes t a rank of the job.
func (t *rank) join(timeout time.Duration) {
	g, err := join(context.Background(), Config{Timeout: timeout})
	require.NoError(t, err)
	t.world, t.Group = g, g.serial
}

// hangs is when a job is taken to hang: of a machine that has much else to do, or stops it, it
// takes minutes.
const hangs = 20 * time.Minute

// mpirun runs this test program with n ranks in a role and returns what it
// printed, and how it ended.
func mpirun(t *testing.T, n int, role string) (string, error) {
	t.Helper()
	fifos := t.TempDir()
	for r := range n {
		require.NoError(t, syscall.Mkfifo(filepath.Join(fifos, strconv.Itoa(r)), 0o600))
	}
	self, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), hangs)
	defer cancel()
	cmd := exec.CommandContext(ctx, launcher, append(append(launcherArgs, "-n", strconv.Itoa(n)), self)...)
	cmd.Env = append(os.Environ(), roleEnv+"="+role, "RAPID_SEED=1", fifoEnv+"="+fifos)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Minute // of which a job takes nothing
	out, err := cmd.CombinedOutput()
	require.NoErrorf(t, ctx.Err(), "the job hangs:\n%s", out)
	return string(out), err
}

// gate lets one rank wait for another by no means of MPI's.
type gate struct{ rank int }

func (g gate) path() string { return filepath.Join(os.Getenv(fifoEnv), strconv.Itoa(g.rank)) }

// wait waits until another rank opens the gate of this one.
func (g gate) wait(t *rank) {
	_, err := os.ReadFile(g.path())
	require.NoError(t, err)
}

// open opens it.
func (g gate) open(t *rank) { require.NoError(t, os.WriteFile(g.path(), []byte("go"), 0)) }

func TestContract(t *testing.T) {
	if world != nil {
		commtest.TestRank(t, world)
		return
	}
	for _, role := range []string{"kit", "contract"} {
		for n := 1; n <= maxRanks; n++ {
			t.Run(fmt.Sprintf("%s/n=%d", role, n), func(t *testing.T) {
				out, err := mpirun(t, n, role)
				require.NoError(t, err, out)
				require.Equal(t, n, strings.Count(out, "THROUGH"), out)
			})
		}
	}
}

// world is set in a process that plays the kit.
var world comm.Group

// kit checks the contract of comm/commtest, in the test that started the job.
func kit(t *rank) {
	t.join(time.Minute)
	world = t.Group
	require.NoError(t, errors.Join(flag.Set("test.run", "^TestContract$"), flag.Set("test.v", "false")))
	require.Zero(t, t.tests.Run())
	require.NoError(t, t.Close())
}

// TestFailures checks what mpirun may have to end.
func TestFailures(t *testing.T) {
	for _, c := range []struct {
		role    string
		n       int
		through int // ranks that certainly return
	}{{"late", 3, 3}, {"abandoned", 2, 2}, {"stalled", 2, 1}, {"alone", 2, 1}, {"killed", 3, 0}} {
		t.Run(c.role, func(t *testing.T) {
			out, err := mpirun(t, c.n, c.role)
			if c.through == c.n {
				require.NoError(t, err, out)
			}
			if c.through == 0 {
				require.Error(t, err, out)
			}
			require.NotContains(t, out, "FAILED", out)
			require.NotContains(t, out, "panic", out)
			require.GreaterOrEqual(t, strings.Count(out, "THROUGH"), c.through, out)
		})
	}
}

func TestNewWorksOnce(t *testing.T) {
	_, err := New(t.Context(), Config{Timeout: -1})
	require.ErrorContains(t, err, "negative")
	begun.Store(true)
	defer begun.Store(false)
	_, err = New(t.Context(), Config{})
	require.ErrorContains(t, err, "once")
}
