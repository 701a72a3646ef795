//go:build unix

package main

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

// suspend stops a process until resume.
func suspend(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }

// resume continues a process that was stopped.
func resume(p *os.Process) error { return p.Signal(syscall.SIGCONT) }

// asUser makes another user run cmd.
func asUser(cmd *exec.Cmd, uid uint32) error {
	if os.Geteuid() != 0 {
		return errors.New("only root can start a process of another user")
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid, Groups: []uint32{}}}
	return nil
}

// dumpStacks ends a process and makes it write the stacks of its goroutines to standard error. It
// does nothing if the process has ended.
func dumpStacks(p *os.Process) {
	_ = p.Signal(syscall.SIGCONT)
	_ = p.Signal(syscall.SIGQUIT)
}
