package launch

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOthers(t *testing.T) {
	env := map[string]string{}
	others := func() string { return Others(func(name string) string { return env[name] }) }
	require.Empty(t, others())
	env["RANK"], env["WORLD_SIZE"] = "0", "1"
	require.Empty(t, others())
	env["OMPI_COMM_WORLD_RANK"], env["OMPI_COMM_WORLD_SIZE"] = "1", "2"
	require.Contains(t, others(), "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 (Open MPI) contradict each other")
	env["RANK"], env["WORLD_SIZE"] = "1", "2"
	require.Equal(t, "torchrun started this process as rank 1 of 2", others())
	Goroutines.Add(1)
	defer Goroutines.Add(-1)
	require.Equal(t, "torchrun started this process as rank 1 of 2", others())
	Goroutines.Add(2)
	defer Goroutines.Add(-2)
	require.Equal(t, "comm.Run runs 3 ranks in this process", others())
}

// TestWithoutSrun checks shells and scripts of Slurm, with and without a step that holds them.
func TestWithoutSrun(t *testing.T) {
	for env, want := range map[string]string{
		"": "",
		"SLURM_JOB_ID=7 SLURM_NTASKS=1 SLURM_PROCID=0":                          "",
		"SLURM_JOB_ID=7 SLURM_NTASKS=2 SLURM_PROCID=0 SLURM_STEP_ID=0":          "",
		"SLURM_JOB_ID=7 SLURM_NTASKS=2 SLURM_PROCID=0":                          "none of its 2 tasks",
		"SLURM_JOB_ID=7 SLURM_NTASKS=2 SLURM_PROCID=0 SLURM_STEP_ID=4294967290": "none of its 2 tasks",
		"SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=3":                                  "none of its 3 tasks",
		"SLURM_NTASKS=2":                                                        "",
	} {
		text := WithoutSrun(func(name string) string {
			for pair := range strings.FieldsSeq(env) {
				if key, value, _ := strings.Cut(pair, "="); key == name {
					return value
				}
			}
			return ""
		})
		require.Equal(t, want == "", text == "", env)
		require.Contains(t, text, want, env)
	}
}
