// Package torch runs PyTorch for the benchmarks: in a virtual environment, with the best settings
// for a CPU. MKL uses its AVX-512 code on any processor, and malloc keeps freed memory.
package torch

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Torch is a python with PyTorch.
type Torch struct {
	python string
	env    []string
}

// mklShim makes MKL use its AVX-512 code on processors of other makers than Intel: a step of a GPT
// on one core of Zen 4 is 1.2× as fast.
const mklShim = "int mkl_serv_intel_cpu_true(void) { return 1; }\n"

// New prepares a Python with PyTorch, with files in dir, and prints its version to w.
func New(ctx context.Context, w io.Writer, python, dir string) (*Torch, error) {
	t := &Torch{python: python}
	t.env = append(os.Environ(), "GLOO_SOCKET_IFNAME=lo", "CUDA_VISIBLE_DEVICES=",
		// As with tcmalloc, freed memory is kept: every step needs it again.
		"GLIBC_TUNABLES=glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=8589934592")
	version, err := exec.CommandContext(ctx, python, "-W", "ignore", "-c", "import torch; print(torch.__version__)").Output()
	if err != nil {
		return nil, fmt.Errorf("%s has no PyTorch: %w", python, err)
	}
	shim, source := filepath.Join(dir, "mkl.so"), filepath.Join(dir, "mkl.c")
	if err := os.WriteFile(source, []byte(mklShim), 0o600); err != nil {
		return nil, err
	}
	how := "MKL taken for Intel's processor"
	if text, err := exec.CommandContext(ctx, "cc", "-shared", "-fPIC", "-o", shim, source).CombinedOutput(); err != nil {
		how = fmt.Sprintf("MKL as it is, slower on AMD's processors, as there is no C compiler: %v %s", err, text)
	} else {
		t.env = append(t.env, "LD_PRELOAD="+shim)
	}
	_, err = fmt.Fprintf(w, "PyTorch %s: memory kept by malloc, %s\n", strings.TrimSpace(string(version)), how)
	return t, err
}

// Command returns a command that runs a script on some threads. job is its argument.
func (t *Torch) Command(ctx context.Context, threads int, script, job string) *exec.Cmd {
	c := exec.CommandContext(ctx, t.python, "-W", "ignore", script, job)
	c.Env = append(t.env, fmt.Sprint("OMP_NUM_THREADS=", threads))
	return c
}
