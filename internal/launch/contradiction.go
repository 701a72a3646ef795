package launch

import (
	"fmt"
	"slices"
	"strings"
)

// A claim is the rank and the size in the variables of one launcher.
type claim struct {
	launcher   string
	rank, size int    // -1: not set
	set        string // "NAME=value NAME=value"
	unset      string // the variables to unset so that the launcher is ignored
}

// ContradictionError says that two launchers give this process different places, and that neither
// can have started the other.
type ContradictionError struct{ chosen, other claim }

func (e *ContradictionError) Error() string {
	a, b := e.chosen, e.other
	return fmt.Sprintf("%s (%s) and %s (%s) contradict each other, so one of them is left over: unset %s if %s started this process, or unset %s if %s did",
		a.set, a.launcher, b.set, b.launcher, a.unset, b.launcher, b.unset, a.launcher)
}

// Outer returns the launcher that was not used, how many processes it has started, and the
// variables to unset so that it is ignored.
func (e *ContradictionError) Outer() (launcher string, size int, unset string) {
	return e.other.launcher, e.other.size, e.other.unset
}

// claims returns the claim of every launcher, the innermost first: torchrun may run below mpirun, and
// mpirun below srun.
func (v *vars) claims() (list []claim, err error) {
	add := func(launcher, rank, size, unset string) {
		c := claim{launcher: launcher, rank: v.int(-1, rank), size: -1, unset: unset}
		if !strings.Contains(v.get(size), ":") { // PET_NNODES=1:3 is no number
			c.size = v.int(-1, size)
		}
		var set []string
		for _, name := range []string{rank, size} {
			if s := v.get(name); s != "" {
				set = append(set, name+"="+s)
			}
		}
		if c.set = strings.Join(set, " "); c.set != "" {
			list = append(list, c)
		}
	}
	step, _, err := slurmStep(v)
	if err != nil {
		return nil, err
	}
	add("torchrun", "RANK", "WORLD_SIZE", "RANK WORLD_SIZE")
	add("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE")
	if step == "" && v.get("OMPI_COMM_WORLD_RANK") == "" { // both have more information
		add("PMIx", "PMIX_RANK", "", "PMIX_RANK")
	}
	add("MPICH", "PMI_RANK", "PMI_SIZE", "PMI_RANK PMI_SIZE")
	add("Kubeflow", "PET_NODE_RANK", "PET_NNODES", "PET_NODE_RANK PET_NNODES")
	if step != "" {
		add("Slurm", "SLURM_PROCID", slurmSize(v), "SLURM_STEP_ID SLURM_STEPID")
	}
	add("Kubernetes", "JOB_COMPLETION_INDEX", "JOB_COMPLETIONS", "JOB_COMPLETION_INDEX JOB_COMPLETIONS")
	return list, v.err
}

// compare checks that no launcher contradicts the one that has set e in the variables pair.
// Launchers may differ if the outer one has a single task, in which the ranks were started, or if
// its tasks have started the ranks, such as tasks of srun that are torchrun or the daemons of
// mpirun. A job of one rank below several tasks would be as many copies of the job, and is an
// error.
func (v *vars) compare(e *Env, pair []string) error {
	list, err := (&vars{get: v.get}).claims()
	if err != nil {
		return err
	}
	var names []string
	for _, p := range pair {
		name, _, _ := strings.Cut(p, "=")
		names = append(names, name)
	}
	inner := claim{e.Source, e.Rank, e.Size, strings.Join(pair, " "), strings.Join(names, " ")}
	if i := slices.IndexFunc(list, func(c claim) bool { return c.launcher == e.Source }); i >= 0 && e.Source == "Slurm" {
		inner.unset = list[i].unset
	}
	for _, c := range list {
		same := (c.rank < 0 || c.rank == inner.rank) && (c.size < 0 || c.size == inner.size)
		outer := c.launcher != "torchrun" && c.rank >= 0
		switch {
		case same, outer && c.size == 1:
		case c.launcher == "Kubernetes" && c.size < 0 && e.Size == 1: // each pod is a separate task
		case outer && v.starts(inner.launcher) && (e.Size > 1 || e.Restart > 0): // a job that restarts may shrink
		default:
			return &ContradictionError{inner, c}
		}
		if outer && c.size > 1 {
			inner = c
		}
	}
	return nil
}

// starts reports whether the tasks of another launcher may have started the ranks of this one.
func (v *vars) starts(launcher string) bool {
	switch launcher {
	case "torchrun":
		return v.get("LOCAL_RANK") != "" // an agent has, and a script that starts several ranks
	case "Open MPI", "MPICH", "Slurm":
		return true
	}
	return false
}
