//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	executableSuffix = ""
	growSignal       = syscall.SIGUSR1
	noticeSignal     = syscall.SIGUSR2 // passed on
)

// caught returns the signals that fsdprun handles. A signal that was ignored from the start, as
// under nohup, stays ignored.
func caught() []os.Signal {
	list := []os.Signal{growSignal, noticeSignal}
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		if !signal.Ignored(s) {
			list = append(list, s)
		}
	}
	return list
}

// ignoreTerminalReads lets fsdprun run in the background of a shell, where reading the terminal
// would stop it.
func ignoreTerminalReads() { signal.Ignore(syscall.SIGTTIN) }

// signalGroup sends a signal to a process and to the processes that it started. The group exists at
// least until the process is waited for.
func signalGroup(p *os.Process, s syscall.Signal) { syscall.Kill(-p.Pid, s) }

func signalName(s syscall.Signal) string { return unix.SignalName(s) }
