package tcp_test

import (
	"testing"

	"github.com/gofsdp/gofsdp/comm/commtest"
	"github.com/gofsdp/gofsdp/comm/internal/tcp"
	"github.com/gofsdp/gofsdp/comm/transport"
)

func TestRemoteContract(t *testing.T) {
	t.Run("flat", func(t *testing.T) {
		flat := commtest.Contract{Sizes: []int{1, 2, 3, 4, 5, 8}} // more than 4 take the same algorithms
		flat.Test(t, func(t testing.TB, n int) []transport.Group { return tcp.RemoteGroups(t, n, tcp.Wiring{}) })
	})
	t.Run("two hosts, portable, crowded", func(t *testing.T) {
		hosts := commtest.Contract{Sizes: []int{2, 3, 5, 8}} // one rank each, 1 and 2, 2 and 3, 4 and 4
		hosts.Test(t, func(t testing.TB, n int) []transport.Group {
			return tcp.RemoteGroups(t, n, tcp.Wiring{Portable: true, Crowded: true, Lanes: 2, Hosts: []int{n / 2, n - n/2}})
		})
	})
}
