package comm

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/comm/internal/grouptest"
	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestLanesOfSockets is [TestLanes] with the pump that most groups have, seen from the system.
func TestLanesOfSockets(t *testing.T) {
	ips := loopback(3)
	gs, errs := listening(t, t.Context(), strings.Join(ips, ","), strings.Join(ips[1:], ","))
	require.Equal(t, make([]error, 2), errs)
	sameBits(t, gs, Local(2), transport.KindAllReduce, Float32, Sum, 1<<18+3)
	ip := func(a unix.Sockaddr, err error) string {
		require.NoError(t, err)
		return netip.AddrFrom4(a.(*unix.SockaddrInet4).Addr).String()
	}
	for r, g := range gs {
		lines := remoteOf(g).pump.(*poller).lines
		require.Len(t, lines, 1)
		var ways []string
		var bytes []uint64
		for k, fd := range lines[0].fds {
			ways = append(ways, ip(unix.Getsockname(fd))+" "+ip(unix.Getpeername(fd)))
			require.Contains(t, lines[0].over[k], ips[k]+":", "rank 1 has dialed")
			info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
			require.NoError(t, err)
			bytes = append(bytes, info.Bytes_received)
			require.False(t, unanswered(fd))
		}
		want := []string{"127.0.0.1 127.0.0.2", "127.0.0.2 127.0.0.3", "127.0.0.3 127.0.0.2"}
		if r == 1 {
			want = []string{"127.0.0.2 127.0.0.1", "127.0.0.3 127.0.0.2", "127.0.0.2 127.0.0.3"}
		}
		require.Equal(t, want, ways)
		require.Greater(t, slices.Min(bytes), uint64(2*chunk))
		require.Less(t, slices.Max(bytes)-slices.Min(bytes), uint64(chunk+1<<10), fmt.Sprint(bytes))
		require.NoError(t, remoteOf(g).pump.silent())
	}
	grouptest.CloseRanks(t, gs)
}
