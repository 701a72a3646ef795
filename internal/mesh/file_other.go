//go:build !linux

package mesh

import "net"

// listenUnix opens nothing: passing files needs Linux.
func listenUnix() (net.Listener, string, error) { return nil, "", nil }

func withFiles(conn *net.UnixConn) controlConn { return conn }

// checkUser returns nil: there is no check on this system.
func checkUser(net.Conn, int) error { return nil }
