package launch

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The variables of some launchers, as they set them for one process.
const (
	hand1   = "RANK=0 WORLD_SIZE=1 MASTER_ADDR=h "
	hand8   = "RANK=3 WORLD_SIZE=8 MASTER_ADDR=h "
	agent1  = "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 GROUP_RANK=0 GROUP_WORLD_SIZE=1 MASTER_ADDR=h "
	agent16 = "RANK=12 WORLD_SIZE=16 LOCAL_RANK=0 LOCAL_WORLD_SIZE=4 GROUP_RANK=3 GROUP_WORLD_SIZE=4 MASTER_ADDR=h "
	mpirun1 = "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1 PMIX_RANK=0 "
	mpirun8 = "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=3 OMPI_COMM_WORLD_LOCAL_SIZE=8 PMIX_RANK=3 "
	hydra1  = "PMI_RANK=0 PMI_SIZE=1 "
	hydra8  = "PMI_RANK=3 PMI_SIZE=8 "
	srun1   = "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=1 "
	srun4   = "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=4 SLURM_NTASKS=4 "
	srun8   = "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=3 SLURM_NTASKS=8 "
	sbatch8 = "SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_NTASKS=8 "
	pod8    = "JOB_COMPLETION_INDEX=3 JOB_COMPLETIONS=8 "
	pods    = "JOB_COMPLETION_INDEX=3 "
	kube8   = "PET_NNODES=8 PET_NODE_RANK=3 PET_NPROC_PER_NODE=1 MASTER_ADDR=h "
)

// TestContradictions combines launchers. The variables of one are left over.
func TestContradictions(t *testing.T) {
	for _, c := range []struct{ env, want string }{
		{hand1 + srun8, "launch: RANK=0 WORLD_SIZE=1 (torchrun) and SLURM_PROCID=3 SLURM_NTASKS=8 (Slurm) contradict each other, so one of them is left over: " +
			"unset RANK WORLD_SIZE if Slurm started this process, or unset SLURM_STEP_ID SLURM_STEPID if torchrun did"},
		{"WORLD_SIZE=1 " + srun8, "SLURM_PROCID=3 SLURM_NTASKS=8 (Slurm) and WORLD_SIZE=1 (torchrun) contradict"},
		{"RANK=0 " + srun8, "SLURM_PROCID=3 SLURM_NTASKS=8 (Slurm) and RANK=0 (torchrun) contradict"},
		{"RANK=gold " + srun8, `RANK="gold" is not a number`},
		{hand1 + srun4, "SLURM_STEP_NUM_TASKS=4"},
		{hand8 + srun4, "RANK=3 WORLD_SIZE=8 (torchrun) and SLURM_PROCID=1"},
		{"RANK=4 WORLD_SIZE=8 MASTER_ADDR=h " + srun8, "RANK=4 WORLD_SIZE=8"}, // another rank
		{agent1 + srun8, "RANK=0 WORLD_SIZE=1"},                               // a whole environment, or a launcher without its number of hosts
		{hand1 + mpirun8, "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=8 (Open MPI)"},
		{"RANK=3 WORLD_SIZE=16 MASTER_ADDR=h " + mpirun8, "unset OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE if torchrun did"},
		{agent1 + mpirun8, "OMPI_COMM_WORLD_SIZE=8"},
		{"WORLD_SIZE=1 " + mpirun8, "WORLD_SIZE=1"},
		{hand1 + hydra8, "PMI_RANK=3 PMI_SIZE=8 (MPICH)"},
		{mpirun1 + srun8, "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 (Open MPI) and SLURM_PROCID=3"},
		{hydra1 + srun8, "PMI_RANK=0 PMI_SIZE=1 (MPICH) and SLURM_PROCID=3"},
		{"RANK=0 WORLD_SIZE=2 MASTER_ADDR=h PMIX_RANK=1 ", "PMIX_RANK=1 (PMIx)"},
		{hand1 + pod8, "JOB_COMPLETION_INDEX=3 JOB_COMPLETIONS=8 (Kubernetes)"},
		{agent1 + pod8, "JOB_COMPLETIONS=8"},
		{"RANK=0 WORLD_SIZE=8 MASTER_ADDR=h " + pods, "JOB_COMPLETION_INDEX=3 (Kubernetes)"},
		{"WORLD_SIZE=4 " + pod8, "JOB_COMPLETION_INDEX=3 WORLD_SIZE=4 (Kubernetes) and JOB_COMPLETION_INDEX=3 JOB_COMPLETIONS=8 (Kubernetes)"},
		{kube8 + "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=4 ", "PET_NODE_RANK=3 PET_NNODES=8 (Kubeflow) and OMPI_COMM_WORLD_RANK=0"},
		{kube8 + "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 ", "PET_NODE_RANK=3 PET_NNODES=8 (Kubeflow)"},
		{srun8 + pod8 + "WORLD_SIZE=4 ", "WORLD_SIZE=4"},
		{hand8 + "JOB_COMPLETION_INDEX=3 JOB_COMPLETIONS=many ", `JOB_COMPLETIONS="many" is not a number`},
	} {
		_, ok, err := Parse(environment(c.env))
		require.ErrorContains(t, err, c.want, c.env)
		require.False(t, ok)
	}
}

// TestLaunchersBelowOthers combines launchers that agree, or that have started each other.
func TestLaunchersBelowOthers(t *testing.T) {
	for _, c := range []struct {
		env        string
		rank, size int
	}{
		{"WORLD_SIZE=8 " + srun8, 3, 8},
		{hand8 + srun8, 3, 8},
		{hand8 + mpirun8 + srun4, 3, 8}, // mpirun decides, as its daemons are tasks of Slurm
		{hand8 + hydra8 + srun8, 3, 8},
		{hand8 + srun1, 3, 8}, // from a shell of srun
		{hand1 + srun1, 0, 1},
		{hand1 + sbatch8, 0, 1}, // the script of sbatch is no rank
		{hand1 + pods, 0, 1},    // independent tasks
		{hand8 + pod8, 3, 8},
		{hand8 + kube8 + "LOCAL_RANK=0 ", 3, 8},
		{agent16 + srun4, 12, 16},
		{agent16 + "PMI_RANK=1 PMI_SIZE=4 " + srun4, 12, 16},
		{agent16 + mpirun8 + srun4, 12, 16},
		{agent16 + srun8, 12, 16}, // of 8 hosts 4 are there
		{agent16 + "PMIX_RANK=0 ", 12, 16},
		{agent16 + pod8, 12, 16},
		{agent16 + pods, 12, 16},
		{agent16 + "PET_NNODES=1:4 PET_NODE_RANK=1 ", 12, 16},
		{agent1 + "TORCHELASTIC_RESTART_COUNT=1 " + pod8, 0, 1}, // one host is left
		{agent1 + srun1, 0, 1},
		{"RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 MASTER_ADDR=h " + srun4, 5, 8}, // a script that starts two ranks a task
		{mpirun8 + "MASTER_ADDR=h " + srun4, 3, 8},
		{hydra8 + "MASTER_ADDR=h " + srun4, 3, 8},
		{mpirun8 + "MASTER_ADDR=h " + srun1, 3, 8},
	} {
		e, ok, err := Parse(environment(c.env))
		require.NoError(t, err, c.env)
		require.True(t, ok)
		require.Equal(t, []int{c.rank, c.size}, []int{e.Rank, e.Size}, c.env)
	}
}

// TestNobodyTrainsAlone draws the variables of launchers, some left over: below one that has started
// several processes, none trains a model of its own.
func TestNobodyTrainsAlone(t *testing.T) {
	parts := []string{hand1, hand8, agent1, agent16, mpirun1, mpirun8, hydra1, hydra8, srun1, srun4, srun8, pod8, kube8, "WORLD_SIZE=1 ", "RANK=0 ", "LOCAL_RANK=0 "}
	rapid.Check(t, func(t *rapid.T) {
		env := strings.Join(rapid.SliceOfN(rapid.SampledFrom(parts), 1, 4).Draw(t, "launchers"), "")
		neverAlone(t, environment(env))
	})
}

// neverAlone checks that a process is not the only rank where the variables of one launcher, whole
// and of a job, say that there are several.
func neverAlone(t interface{ Fatalf(string, ...any) }, get func(string) string) {
	e, ok, err := Parse(get)
	if err != nil || !ok || e.Size > 1 || e.Restart > 0 {
		return
	}
	sizes := map[string]string{"RANK": "WORLD_SIZE", "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE", "PMI_RANK": "PMI_SIZE", "JOB_COMPLETION_INDEX": "JOB_COMPLETIONS"}
	if step := get("SLURM_STEP_ID"); step != "" && len(step) < 10 {
		sizes["SLURM_PROCID"] = slurmSize(&vars{get: get})
	}
	for rank, size := range maps.All(sizes) {
		var n int
		if _, err := fmt.Sscan(get(size), &n); err == nil && get(rank) != "" && n > 1 {
			t.Fatalf("%+v: alone, and %s=%d", e, size, n)
		}
	}
}
