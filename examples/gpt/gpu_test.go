//go:build linux && cgo

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/gpudouble"
)

// program runs the program as a process with more variables, and returns its output and its exit
// status.
func program(t *testing.T, variables, args []string) (string, int) {
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(append(os.Environ(), mainVariable+"=1"), variables...)
	out, _ := cmd.CombinedOutput() // the status has the error
	return string(out), cmd.ProcessState.ExitCode()
}

// TestGPU trains on doubles of the libraries of GPUs, on one rank and on two. The losses are close
// to the losses of processors.
func TestGPU(t *testing.T) {
	libs := gpudouble.Build(t)
	variables := []string{"FSDP_CUDA_LIBRARY=" + libs.CUDA, "FSDP_NCCL_LIBRARY=" + libs.NCCL, "FSDP_CUBLASLT_LIBRARY=" + libs.CUBLASLT, "FSDP_DOUBLE_DEVICES=2"}
	job := smallJob(t, "-steps", "4", "-sample-bytes", "8")
	want := validations(t, output(t, job))
	for _, ranks := range []string{"1", "2"} {
		out, status := program(t, variables, append(job, "-gpu", "-ranks", ranks))
		require.Zero(t, status, out)
		require.InDeltaSlice(t, want, validations(t, out), 1e-3, out)
		require.Contains(t, out, "\nsample at temperature 0.7\nfunc ")
	}
}

// TestNoGPU: the error names the libraries that were not found, and the status is 1.
func TestNoGPU(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "libcuda.so.1")
	out, status := program(t, []string{"FSDP_CUDA_LIBRARY=" + missing}, smallJob(t, "-gpu"))
	require.Equal(t, 1, status, out)
	require.Contains(t, out, "gpt: rank 0: -gpu: ")
	require.Contains(t, out, missing)
}
