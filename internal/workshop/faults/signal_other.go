//go:build !unix

package main

import (
	"errors"
	"os"
	"os/exec"
)

func suspend(*os.Process) error { return nil }

func resume(*os.Process) error { return nil }

func dumpStacks(p *os.Process) { _ = p.Kill() }

// asUser cannot.
func asUser(*exec.Cmd, uint32) error {
	return errors.New("this system cannot start a process of another user")
}
