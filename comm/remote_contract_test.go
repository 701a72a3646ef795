package comm_test

import (
	"testing"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/commtest"
)

func TestRemoteContract(t *testing.T) {
	t.Run("flat", func(t *testing.T) {
		commtest.TestGroup(t, func(t testing.TB, n int) []comm.Group { return comm.RemoteGroups(t, n, comm.Wiring{}) })
	})
	t.Run("two hosts, portable, crowded", func(t *testing.T) {
		commtest.TestGroup(t, func(t testing.TB, n int) []comm.Group {
			return comm.RemoteGroups(t, n, comm.Wiring{Portable: true, Crowded: true, Lanes: 2, Hosts: []int{n / 2, n - n/2}})
		})
	})
}
