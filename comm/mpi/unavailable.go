//go:build !mpi || !cgo || !unix

package mpi

import (
	"context"

	"github.com/gofsdp/gofsdp/comm"
)

// New initialises MPI and returns this process's handle of the group of all
// ranks, named "world". This program is built without MPI: the error is
// [ErrUnavailable].
func New(context.Context, Config) (comm.Group, error) { return nil, ErrUnavailable }
