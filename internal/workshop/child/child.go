// Package child starts the running program again, as a child process that gets orders and sends
// reports:
//
//	parent                                   child
//	  | -- orders, on its standard input -->   |
//	  | <-- reports, on its standard output -- |
//
// Both are lines of JSON. When its input ends, the parent has ended, and the child ends, too.
package child

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
)

// A Process is a child as its parent sees it.
type Process struct {
	OS     *os.Process
	Gone   chan struct{} // closed when the process has ended
	Err    error         // of its end, when Gone is closed
	Stderr Head

	cmd    *exec.Cmd
	orders io.WriteCloser
}

// Start starts a child, with more variables in its environment. hear gets its reports, one after
// the other. Then the process ends, and gone is called.
func Start[R any](hear func(R), gone func(), environ ...string) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &Process{Gone: make(chan struct{}), cmd: exec.Command(self)}
	p.cmd.Env = append(os.Environ(), environ...)
	p.cmd.Stderr = &p.Stderr
	if p.orders, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.OS = p.cmd.Process
	go func() {
		for d := json.NewDecoder(out); ; {
			var r R
			if d.Decode(&r) != nil {
				break
			}
			hear(r)
		}
		p.Err = p.cmd.Wait()
		close(p.Gone)
		gone()
	}()
	return p, nil
}

// Say sends an order. If it does not arrive, the child has ended, which is noticed.
func (p *Process) Say(order any) { _ = json.NewEncoder(p.orders).Encode(order) }

// Close ends the child's input.
func (p *Process) Close() error { return p.orders.Close() }

// Kill ends the process without a warning.
func (p *Process) Kill() {
	_ = p.OS.Kill() // it may have ended
	_ = p.orders.Close()
}

// Stacks ends a process that hangs, and returns the stacks of its goroutines.
func (p *Process) Stacks() string {
	if p.OS.Signal(syscall.SIGQUIT) != nil { // not on this system
		p.Kill()
	}
	<-p.Gone
	return p.Stderr.String()
}

// Head keeps the beginning of a child's standard error: a panic, or the stacks of a child that
// hangs.
type Head struct {
	mu   sync.Mutex
	text []byte
}

// Write implements io.Writer.
func (h *Head) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.text = append(h.text, b[:min(len(b), 256<<10-len(h.text))]...)
	return len(b), nil
}

// String returns the text.
func (h *Head) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return string(h.text)
}
