package mpi

import (
	"errors"
	"time"
)

// Config says how the groups of a job behave. The zero value is useful.
type Config struct {
	// Timeout is how long an operation may make no progress before it fails with
	// [comm.ErrTimeout]; 0 means 10 minutes.
	Timeout time.Duration
}

// ErrUnavailable is wrapped by the error of [New] in a program that was built
// without MPI.
var ErrUnavailable = errors.New("mpi: built without MPI: build with cgo and -tags mpi (Open MPI) or -tags mpi,mpich (MPICH)")
