//go:build mpi && !mpich && cgo && unix

package mpi

const (
	maxRanks = 4
	compiler = "mpicc.openmpi"
	launcher = "mpirun.openmpi"
)

var launcherArgs = []string{"--oversubscribe", "--allow-run-as-root"}
