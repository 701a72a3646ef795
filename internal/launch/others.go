package launch

import (
	"errors"
	"fmt"
	"sync/atomic"
)

// Goroutines is the number of ranks that this process runs as goroutines of comm.Run.
var Goroutines atomic.Int64

// Others describes the ranks other than the caller's, or returns "" if none are known. It is for
// callers without a group: without one, each of several ranks would silently work for itself.
func Others(getenv func(string) string) string {
	if n := Goroutines.Load(); n > 1 {
		return fmt.Sprintf("comm.Run runs %d ranks in this process", n)
	}
	e, ok, err := Parse(getenv)
	if errors.As(err, new(*ContradictionError)) {
		return err.Error()
	}
	if err == nil && ok && e.Size > 1 {
		return fmt.Sprintf("%s started this process as rank %d of %d", e.Source, e.Rank, e.Size)
	}
	return ""
}

// WithoutSrun describes a process that runs in the script or the shell of a Slurm job of several
// tasks without being one of the tasks. It returns "" for every other process.
func WithoutSrun(getenv func(string) string) string {
	v := &vars{get: getenv}
	step, _, err := slurmStep(v)
	tasks := max(v.int(1, "SLURM_NTASKS", "SLURM_NPROCS"), v.int(1, "SLURM_JOB_NUM_NODES", "SLURM_NNODES"))
	if job := v.text("SLURM_JOB_ID", "SLURM_JOBID"); job != "" && step == "" && err == nil && v.err == nil && tasks > 1 {
		return fmt.Sprintf("this process is in the script or shell of Slurm job %s, and is none of its %d tasks, so it trains by itself: srun starts one rank for each task", job, tasks)
	}
	return ""
}
