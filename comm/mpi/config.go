package mpi

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gofsdp/gofsdp/internal/launch"
)

// Config configures the groups of a job. The zero value is useful.
type Config struct {
	// Timeout is how long an operation may make no progress before it fails with
	// [comm.ErrTimeout]; 0 means FSDP_TIMEOUT, or else 10 minutes. No other
	// variable of package comm counts: MPI finds the ranks.
	Timeout time.Duration
}

// complete returns c with unset fields from the environment.
func (c Config) complete() (Config, error) {
	if c.Timeout < 0 {
		return c, fmt.Errorf("mpi: negative timeout %v", c.Timeout)
	}
	limit, err := launch.Timeout(os.Getenv)
	if err != nil {
		return c, fmt.Errorf("mpi: %w", err)
	}
	c.Timeout = cmp.Or(c.Timeout, limit, 10*time.Minute)
	return c, nil
}

// ErrUnavailable is wrapped by the error of [New] in a program that was built
// without MPI.
var ErrUnavailable = errors.New("mpi: built without MPI: build with cgo and -tags mpi (Open MPI) or -tags mpi,mpich (MPICH)")
