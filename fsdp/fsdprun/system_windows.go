package main

import (
	"os"
	"syscall"
)

const (
	executableSuffix = ".exe"
	growSignal       = syscall.Signal(0) // there is none
	noticeSignal     = syscall.Signal(0)
)

func caught() []os.Signal { return []os.Signal{os.Interrupt, syscall.SIGTERM} }

func ignoreTerminalReads() {}

func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}

// signalGroup ends a process, whatever the signal: Windows has no gentler way that every process
// supports.
func signalGroup(p *os.Process, _ syscall.Signal) { p.Kill() }

func signalName(s syscall.Signal) string { return s.String() }
