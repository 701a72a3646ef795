//go:build mpi && cgo && unix

package mpi

import (
	"context"
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
)

// TestBitsOfMPI checks that the canonical order is also that of MPI_Allreduce with
// 2 and 4 ranks, in a program that has nothing else to do with this package.
func TestBitsOfMPI(t *testing.T) {
	program := filepath.Join(t.TempDir(), "allreduce")
	out, err := exec.Command(compiler, "-Wall", "-Wextra", "-Werror", "-Wno-stringop-overflow", "-O1", "-o", program,
		filepath.Join("testdata", "allreduce.c")).CombinedOutput()
	require.NoError(t, err, string(out))
	for _, n := range []int{2, 4} {
		for _, count := range []int{1, 1000} {
			ctx, cancel := context.WithTimeout(t.Context(), hangs)
			args := append(append([]string(nil), launcherArgs...), "-n", strconv.Itoa(n), program, strconv.Itoa(count))
			out, err := exec.CommandContext(ctx, launcher, args...).Output()
			cancel()
			require.NoError(t, err)
			require.Equal(t, sumBits(t, n, count), strings.Fields(string(out)), "%d ranks, %d elements", n, count)
		}
	}
}

// sumBits is what testdata/allreduce.c prints, by a local group.
func sumBits(t *testing.T, n, count int) (bits []string) {
	works, sums := make([]comm.Work, n), make([][]float32, n)
	for rank, g := range comm.Local(n) {
		x, state := make([]float32, count), uint32(12345+rank)
		for i := range x {
			state = state*1664525 + 1013904223
			x[i] = math.Float32frombits(state&0x807fffff | (120+state>>23&15)<<23)
		}
		works[rank], sums[rank] = g.AllReduce(comm.Of(x), comm.Sum), x
		defer g.Close()
	}
	for _, w := range works {
		require.NoError(t, w.Wait(t.Context()))
	}
	for _, v := range sums[0] {
		bits = append(bits, fmt.Sprintf("%08x", math.Float32bits(v)))
	}
	return bits
}
