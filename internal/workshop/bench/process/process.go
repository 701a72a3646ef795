// Package process talks to programs that measure when they are told to: a line in, a line out.
package process

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// Process is a program that answers. One goroutine at a time may use it.
type Process struct {
	command *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Scanner
}

// Start starts a command, which prints its complaints here.
func Start(command *exec.Cmd) (*Process, error) {
	p := &Process{command: command}
	command.Stderr = os.Stderr
	var err error
	if p.in, err = command.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewScanner(out)
	return p, command.Start()
}

// Ask sends a line and returns the answer.
func (p *Process) Ask(line string) (string, error) {
	if _, err := fmt.Fprintln(p.in, line); err != nil {
		return "", err
	}
	if !p.out.Scan() {
		return "", fmt.Errorf("%s: the process has ended: %w", line, errors.Join(p.out.Err(), io.ErrUnexpectedEOF))
	}
	return p.out.Text(), nil
}

// Stop ends the process, which has nothing to lose, and waits.
func (p *Process) Stop() {
	p.in.Close()
	p.command.Wait()
}
