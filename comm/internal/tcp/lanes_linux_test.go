package tcp_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gofsdp/gofsdp/comm/internal/grouptest"
	"github.com/gofsdp/gofsdp/comm/internal/limit"
	"github.com/gofsdp/gofsdp/comm/internal/local"
	"github.com/gofsdp/gofsdp/comm/internal/tcp"
	"github.com/gofsdp/gofsdp/comm/transport"
)

// TestLanesOfSockets is [TestLanes] with the pump that most groups have, seen from the system.
func TestLanesOfSockets(t *testing.T) {
	ips := loopback(3)
	gs, errs := listening(t, t.Context(), strings.Join(ips, ","), strings.Join(ips[1:], ","))
	require.Equal(t, make([]error, 2), errs)
	grouptest.SameBits(t, gs, local.New(2, limit.Default), transport.KindAllReduce, transport.Float32, transport.Sum, 1<<18+3)
	ip := func(a unix.Sockaddr, err error) string {
		require.NoError(t, err)
		return netip.AddrFrom4(a.(*unix.SockaddrInet4).Addr).String()
	}
	for r, g := range gs {
		fds, over := tcp.LanesOf(t, g)
		var ways []string
		var bytes []uint64
		for k, fd := range fds {
			ways = append(ways, ip(unix.Getsockname(fd))+" "+ip(unix.Getpeername(fd)))
			require.Contains(t, over[k], ips[k]+":", "rank 1 has dialed")
			info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
			require.NoError(t, err)
			bytes = append(bytes, info.Bytes_received)
			require.False(t, tcp.Unanswered(fd))
		}
		want := []string{"127.0.0.1 127.0.0.2", "127.0.0.2 127.0.0.3", "127.0.0.3 127.0.0.2"}
		if r == 1 {
			want = []string{"127.0.0.2 127.0.0.1", "127.0.0.3 127.0.0.2", "127.0.0.2 127.0.0.3"}
		}
		require.Equal(t, want, ways)
		require.Greater(t, slices.Min(bytes), uint64(2*tcp.Chunk))
		require.Less(t, slices.Max(bytes)-slices.Min(bytes), uint64(tcp.Chunk+1<<10), fmt.Sprint(bytes))
		require.NoError(t, tcp.Silent(g))
	}
	grouptest.CloseRanks(t, gs)
}
