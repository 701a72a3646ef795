//go:build mpi && mpich && cgo && unix

package mpi

const (
	maxRanks = 3 // it spins while it makes a communicator, whatever else waits for the processor
	compiler = "mpicc.mpich"
	launcher = "mpirun.mpich"
)

var launcherArgs []string
