//go:build unix

package store

import (
	"errors"
	"syscall"
)

// busy reports whether err is the error of NFS for a file that was replaced. If the file is opened
// again, it is there.
func busy(err error) bool { return errors.Is(err, syscall.ESTALE) }
