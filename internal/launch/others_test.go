package launch

import (
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
	require.Equal(t, "this process is rank 1 of 2, says torchrun", others())
	Goroutines.Add(1)
	defer Goroutines.Add(-1)
	require.Equal(t, "this process is rank 1 of 2, says torchrun", others())
	Goroutines.Add(2)
	defer Goroutines.Add(-2)
	require.Equal(t, "comm.Run has 3 ranks in this process", others())
}
