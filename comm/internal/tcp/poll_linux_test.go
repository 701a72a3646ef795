package tcp

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestDeliveredAfterReset fills a connection to a process that never reads, and resets it, as the
// kernel of a process that was killed does. Close must not wait for the data.
func TestDeliveredAfterReset(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	conn, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	peer, err := l.Accept()
	require.NoError(t, err)
	require.NoError(t, l.Close())
	data := make([]byte, 1<<20)
	require.True(t, control(conn, func(fd int) {
		for {
			if _, err := unix.Write(fd, data); err != nil {
				break
			}
		}
		require.False(t, delivered(fd))
	}))
	require.NoError(t, peer.(*net.TCPConn).SetLinger(0))
	require.NoError(t, peer.Close())
	_, err = conn.Read(data)
	require.ErrorIs(t, err, unix.ECONNRESET)
	require.True(t, control(conn, func(fd int) { require.True(t, delivered(fd)) }))
	require.NoError(t, conn.Close())
}
