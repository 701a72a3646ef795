//go:build !unix

package comm

import "os"

var notices []os.Signal // Slurm does not run here
