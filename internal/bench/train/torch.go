package train

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

//go:embed peers/gpt.py
var gptScript []byte

// torch is PyTorch in a virtual environment, at its best on a processor.
type torch struct {
	python  string
	compile bool   // torch.compile too
	script  string // the same model and steps
	env     []string
}

// mklShim has MKL take its way for AVX-512 on processors that are not Intel's: small on one core of
// Zen 4 is 1.2 times as fast.
const mklShim = "int mkl_serv_intel_cpu_true(void) { return 1; }\n"

// newTorch prepares a python with PyTorch and says what it is.
func newTorch(ctx context.Context, w io.Writer, python string, compile bool, dir string) (*torch, error) {
	t := &torch{python: python, compile: compile, script: filepath.Join(dir, "gpt.py")}
	if err := os.WriteFile(t.script, gptScript, 0o600); err != nil {
		return nil, err
	}
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
	_, err = fmt.Fprintf(w, "PyTorch %s: scaled_dot_product_attention, fused AdamW, memory kept by malloc, %s\n", strings.TrimSpace(string(version)), how)
	return t, err
}

// command returns what trains as job, a text, says.
func (t *torch) command(ctx context.Context, threads int, job string) *exec.Cmd {
	c := exec.CommandContext(ctx, t.python, "-W", "ignore", t.script, job)
	c.Env = append(t.env, fmt.Sprint("OMP_NUM_THREADS=", threads))
	return c
}
