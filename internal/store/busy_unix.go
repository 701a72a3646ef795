//go:build unix

package store

import (
	"errors"
	"syscall"
)

// busy tells whether err is NFS having lost sight of a file that was replaced. Opened again, it is
// there.
func busy(err error) bool { return errors.Is(err, syscall.ESTALE) }
