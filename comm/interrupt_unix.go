//go:build unix

package comm

import (
	"os"
	"syscall"
)

// notices are signals that tell a job of Slurm that its time is nearly up.
var notices = []os.Signal{syscall.SIGUSR1, syscall.SIGUSR2}
