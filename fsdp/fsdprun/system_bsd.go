//go:build unix && !linux

package main

import "syscall"

// ownGroup makes a process the leader of a new group. Only Linux kills the process when fsdprun is
// killed.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
