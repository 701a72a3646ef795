//go:build unix

package main

import (
	"os"
	"syscall"
)

// suspend stops a process until resume.
func suspend(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }

// resume continues a process that was stopped.
func resume(p *os.Process) error { return p.Signal(syscall.SIGCONT) }

// dumpStacks ends a process with the stacks of its goroutines on standard error. One that has ended
// has none.
func dumpStacks(p *os.Process) {
	_ = p.Signal(syscall.SIGCONT)
	_ = p.Signal(syscall.SIGQUIT)
}
