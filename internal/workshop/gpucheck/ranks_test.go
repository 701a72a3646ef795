//go:build gpu && linux && cgo

package gpucheck

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/nccl"
)

// arrangement says on which GPU each rank is, and how NCCL is told to put up with it.
type arrangement struct {
	name      string
	gpus      []int                   // of each rank
	variables func(rank int) []string // NCCL's, of a rank
}

// multiRank is the version from which NCCL can be told that ranks share a GPU.
const multiRank nccl.VersionCode = 23000

// arrangements returns those that this machine can have.
func arrangements() []arrangement {
	list := []arrangement{
		{name: "one rank", gpus: []int{0}},
		{name: "two ranks on one GPU", gpus: []int{0, 0}, variables: func(rank int) []string {
			return []string{"NCCL_HOSTID=rank" + strconv.Itoa(rank), "NCCL_NET=Socket", "NCCL_SOCKET_IFNAME=lo",
				"NCCL_P2P_DISABLE=1", "NCCL_SHM_DISABLE=1", "NCCL_PROTO=Simple"}
		}},
	}
	if version >= multiRank {
		list = append(list, arrangement{name: "two ranks on one GPU by NCCL's leave", gpus: []int{0, 0}, variables: func(int) []string {
			return []string{"NCCL_MULTI_RANK_GPU_ENABLE=1", "NCCL_MAX_CTAS=4"}
		}})
	}
	if gpus > 1 {
		each := make([]int, gpus)
		for i := range each {
			each[i] = i
		}
		list = append(list, arrangement{name: fmt.Sprintf("a rank on each of %d GPUs", gpus), gpus: each})
	}
	return list
}

// envGPU names the variable that makes a process a rank, and says on which GPU.
const envGPU = "FSDP_GPUCHECK_GPU"

func isRank() bool { return os.Getenv(envGPU) != "" }

// patience is how long the ranks of an arrangement may take for one test, and grace how much
// longer than the first of them that fails.
const (
	patience = 20 * time.Minute
	grace    = time.Minute
)

// inEach runs the test t in processes that are the ranks of every arrangement.
func inEach(t *testing.T) {
	for _, a := range arrangements() {
		t.Run(a.name, func(t *testing.T) {
			test, _, _ := strings.Cut(t.Name(), "/")
			fmt.Printf("\n%s, %s\n", strings.TrimPrefix(test, "Test"), a.name)
			begin := time.Now()
			a.run(t, test)
			fmt.Printf("  done in %v\n", time.Since(begin).Round(100*time.Millisecond))
		})
	}
}

// run starts a process for each rank and waits for all of them.
func (a arrangement) run(t *testing.T, test string) {
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	meeting := t.TempDir()
	errs := make([]error, len(a.gpus))
	var ranks sync.WaitGroup
	for r := range a.gpus {
		ranks.Go(func() {
			if errs[r] = a.start(ctx, r, test, meeting); errs[r] != nil {
				time.AfterFunc(grace, stop)
			}
		})
	}
	ranks.Wait()
	require.NoError(t, errors.Join(errs...))
}

// secret is of the ranks that this process starts.
var secret = rand.Text()

// start runs the process of a rank to its end, and prints its output line by line.
func (a arrangement) start(ctx context.Context, rank int, test, meeting string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	c := exec.CommandContext(ctx, self, "-test.run=^"+test+"$", "-test.timeout="+patience.String(), fmt.Sprint("-largest=", *largest), "-scale="+*scaleName)
	c.Env = append(os.Environ(), "RAPID_SEED=1", "RAPID_NOFAILFILE=true", "RAPID_SHRINKTIME=0s",
		fmt.Sprint(envGPU, "=", a.gpus[rank]), fmt.Sprint("RANK=", rank), fmt.Sprint("WORLD_SIZE=", len(a.gpus)),
		fmt.Sprint("LOCAL_RANK=", rank), fmt.Sprint("LOCAL_WORLD_SIZE=", len(a.gpus)), "FSDP_RENDEZVOUS=file://"+meeting,
		"FSDP_SECRET="+secret)
	if a.variables != nil {
		c.Env = append(c.Env, a.variables(rank)...)
	}
	if testing.Verbose() {
		c.Args = append(c.Args, "-test.v")
	}
	out := new(lines)
	c.Stdout, c.Stderr = out, out
	err = c.Run()
	if err = errors.Join(err, out.flush()); err != nil {
		return fmt.Errorf("rank %d of %d on GPU %d, whose output is above: %w", rank, len(a.gpus), a.gpus[rank], err)
	}
	return nil
}

// lines writes whole lines to the output, so that those of two ranks do not mix, but for the PASS of
// a test program.
type lines struct{ rest []byte }

// Write implements io.Writer.
func (l *lines) Write(b []byte) (int, error) {
	l.rest = append(l.rest, b...)
	for {
		end := bytes.IndexByte(l.rest, '\n') + 1
		if end == 0 {
			return len(b), nil
		}
		if line := l.rest[:end]; string(line) != "PASS\n" {
			if _, err := os.Stdout.Write(line); err != nil {
				return 0, err
			}
		}
		l.rest = l.rest[end:]
	}
}

// flush writes a last line without an end.
func (l *lines) flush() error {
	_, err := os.Stdout.Write(l.rest)
	return err
}

// member is what a process that is a rank has.
type member struct {
	comm.Group // of the processes, on the host
	dev        *nccl.Device
}

// join makes this process the rank that its environment says.
func join(t *testing.T) member {
	ordinal, err := strconv.Atoi(os.Getenv(envGPU))
	require.NoError(t, err)
	g, err := comm.FromEnv(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, g.Close()) })
	d, err := nccl.OpenDevice(ordinal)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return member{g, d}
}
