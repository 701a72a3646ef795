package tcp_test

import (
	"testing"

	"github.com/gofsdp/gofsdp/comm/commtest"
	"github.com/gofsdp/gofsdp/comm/internal/tcp"
	"github.com/gofsdp/gofsdp/comm/transport"
)

func TestRemoteContract(t *testing.T) {
	t.Run("flat", func(t *testing.T) {
		commtest.TestGroup(t, func(t testing.TB, n int) []transport.Group { return tcp.RemoteGroups(t, n, tcp.Wiring{}) })
	})
	t.Run("two hosts, portable, crowded", func(t *testing.T) {
		commtest.TestGroup(t, func(t testing.TB, n int) []transport.Group {
			return tcp.RemoteGroups(t, n, tcp.Wiring{Portable: true, Crowded: true, Lanes: 2, Hosts: []int{n / 2, n - n/2}})
		})
	})
}
