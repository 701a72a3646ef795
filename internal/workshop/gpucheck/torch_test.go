//go:build gpu && linux && cgo

package gpucheck

import (
	"bufio"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// envPython names a python with PyTorch; python3 if it is not set.
const envPython = "GPUCHECK_PYTHON"

var (
	//go:embed fsdp2.py
	torchScript string
	//go:embed kernels.py
	kernelScript string
)

// A job is what PyTorch is to train.
type job struct {
	size
	Weights string // the file with the initial weights, or ""
	Compile bool
	CuDNN   bool // compute attention by cuDNN, not as PyTorch chooses
	Warmup  int
	Meet    string
}

// torch is a process that trains with PyTorch.
type torch struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	said *strings.Builder
}

// TestPyTorch measures kernels of PyTorch at the sizes of Rates: attention by FlashAttention and by
// cuDNN, and a linear layer whose product also computes GELU.
func TestPyTorch(t *testing.T) {
	python := findTorch(t)
	if python == "" {
		report("pytorch", "no PyTorch to compare with")
		return
	}
	z := scale().rates
	text, err := json.Marshal(map[string]any{
		"Patience": max(1, scale().patience.Milliseconds()), "Batch": z.Batch, "Context": z.Context, "Dim": z.Dim, "Attention": scale().attention,
	})
	require.NoError(t, err)
	c := exec.CommandContext(t.Context(), python, "-W", "ignore", "-c", kernelScript, string(text))
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var k struct {
			Name, Error       string
			Forward, Backward float64 // ms
			FLOPs             float64 // of forward
		}
		require.NoError(t, json.Unmarshal(lines.Bytes(), &k), lines.Text())
		if k.Forward == 0 {
			report("pytorch", "%s %s", k.Name, k.Error)
			continue
		}
		line := fmt.Sprintf("%-60s forward %9.4f ms %8.1f TFLOP/s", k.Name, k.Forward, k.FLOPs/k.Forward/1e9)
		if k.Backward > 0 {
			line += fmt.Sprintf(", backward %9.4f ms", k.Backward)
		}
		report("pytorch", "%s", line)
	}
	require.NoError(t, c.Wait())
}

// findTorch returns a python that has PyTorch, or "" if there is none.
func findTorch(t *testing.T) string {
	python := cmp.Or(os.Getenv(envPython), "python3")
	if err := exec.Command(python, "-c", "import torch").Run(); err != nil {
		require.Empty(t, os.Getenv(envPython), "%s has no PyTorch: %v", python, err)
		return ""
	}
	return python
}

// startTorch starts one, or returns nil if there is no PyTorch.
func startTorch(t *testing.T, j job) *torch {
	python := findTorch(t)
	if python == "" {
		return nil
	}
	dir := t.TempDir()
	j.Meet = filepath.Join(dir, "meet")
	script := filepath.Join(dir, "fsdp2.py")
	require.NoError(t, os.WriteFile(script, []byte(torchScript), 0o600))
	text, err := json.Marshal(j)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	p := &torch{t: t, cmd: exec.CommandContext(ctx, python, "-W", "ignore", script, string(text)), said: &strings.Builder{}}
	p.cmd.Stderr = p.said
	p.in, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	p.out = bufio.NewReader(out)
	require.NoError(t, p.cmd.Start())
	return p
}

// run runs some steps.
func (p *torch) run(steps int) (r reply) {
	_, err := fmt.Fprintln(p.in, steps)
	require.NoError(p.t, err)
	line, err := p.out.ReadString('\n')
	if err != nil {
		_ = p.cmd.Wait() // for all that it has said
		require.NoError(p.t, err, "PyTorch: %s", p.said)
	}
	require.NoError(p.t, json.Unmarshal([]byte(line), &r), line)
	return r
}

// end ends the process, unless run has seen its end.
func (p *torch) end() {
	if p.cmd.ProcessState != nil {
		return
	}
	require.NoError(p.t, p.in.Close())
	require.NoError(p.t, p.cmd.Wait(), "PyTorch: %s", p.said)
}
