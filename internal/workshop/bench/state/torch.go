package state

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

//go:embed peers/consolidate.py
var torchScript string

// torch is a PyTorch process for a rank, with the same amount of state. It consolidates the state
// when the ranks do. A nil torch is none.
type torch struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// startTorch starts the process of this rank, and waits until it has met the processes of the
// others.
func (r *stateRank) startTorch(ctx context.Context, parts []statePart) (*torch, error) {
	if r.Torch == "" {
		return nil, nil
	}
	job, err := json.Marshal(struct {
		Rank, Size int
		Meet       string
		Parts      []statePart
	}{r.Rank, r.Size, filepath.Join(r.Dir, "torch"), parts})
	if err != nil {
		return nil, err
	}
	t := &torch{cmd: exec.CommandContext(ctx, r.Torch, "-W", "ignore", "-c", torchScript)}
	t.cmd.Stderr = os.Stderr
	t.cmd.Env = append(os.Environ(), "GLOO_SOCKET_IFNAME=lo", "CUDA_VISIBLE_DEVICES=", "OMP_NUM_THREADS=1",
		// Freed memory is kept, as with Into: no run waits for new pages.
		"GLIBC_TUNABLES=glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=17179869184")
	if t.in, err = t.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := t.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := t.cmd.Start(); err != nil {
		return nil, err
	}
	t.out = bufio.NewReader(out)
	if err := t.ask(string(job)); err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

// ask makes the process run a command.
func (t *torch) ask(command string) error {
	if _, err := io.WriteString(t.in, command+"\n"); err != nil {
		return fmt.Errorf("PyTorch: %w", err)
	}
	answer, err := t.out.ReadString('\n')
	if err == nil && answer != "ok\n" {
		err = errors.New(strings.TrimSpace(answer))
	}
	if err != nil {
		return fmt.Errorf("PyTorch: %w", err)
	}
	return nil
}

// close ends the process.
func (t *torch) close() error {
	if t == nil {
		return nil
	}
	return errors.Join(t.in.Close(), t.cmd.Wait())
}

// trial is one way of PyTorch's.
func (t *torch) trial(row *stateRow, command string) *stateTrial {
	row.foreign = true
	return &stateTrial{
		rows: []*stateRow{row},
		run:  func(context.Context, func()) error { return t.ask(command) },
		finish: func(first bool) error {
			if first {
				return t.ask("check")
			}
			return t.ask("drop")
		},
	}
}
