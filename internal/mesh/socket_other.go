//go:build !linux

package mesh

import (
	"net"
	"syscall"
)

// enlarge leaves the buffers as they are.
func enlarge(_, _ string, _ syscall.RawConn) error { return nil }

func setUserTimeout(*net.TCPConn) {}

func setLossBased(*net.TCPConn) {}
