//go:build unix

package comm

import (
	"os"
	"syscall"
)

// notices are the signals that Slurm sends to a job whose time is nearly up.
var notices = []os.Signal{syscall.SIGUSR1, syscall.SIGUSR2}
