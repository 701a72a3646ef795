package mesh

import (
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// enlarge sets the buffers of a TCP socket before it is connected or listens, because TCP agrees on
// the scale of its window then. The kernel does not exceed its limit, and does not adapt a buffer
// that has been set: if the limit is lower, enlarge leaves the buffer to the kernel.
func enlarge(_, _ string, conn syscall.RawConn) error {
	return conn.Control(func(fd uintptr) {
		for _, b := range buffers() {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, b, bufferSize) // slower without
		}
	})
}

// buffers lists the socket options of the buffers that can be set to bufferSize.
var buffers = sync.OnceValue(func() (options []int) {
	for option, limit := range map[int]string{unix.SO_RCVBUF: "/proc/sys/net/core/rmem_max", unix.SO_SNDBUF: "/proc/sys/net/core/wmem_max"} {
		text, err := os.ReadFile(limit)
		if err != nil {
			continue
		}
		if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && n >= bufferSize {
			options = append(options, option)
		}
	}
	return options
})

// setUserTimeout makes a connection end when sent data has not been acknowledged for a while
// (tcp(7)).
func setUserTimeout(conn *net.TCPConn) {
	control(conn, func(fd int) {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(Unanswered.Milliseconds())) // kept alive without, too
	})
}

// setLossBased selects a congestion control that fills a path inside a host, which never drops;
// BBR, some hosts' default, paces unnecessarily.
func setLossBased(conn *net.TCPConn) {
	control(conn, func(fd int) {
		for _, name := range []string{"reno", "cubic"} {
			if unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name) == nil {
				return // without either it is only slower
			}
		}
	})
}

func control(conn *net.TCPConn, f func(fd int)) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return // closed: its user notices
	}
	_ = raw.Control(func(fd uintptr) { f(int(fd)) })
}
