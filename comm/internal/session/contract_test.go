package session_test

import (
	"testing"

	"github.com/gofsdp/gofsdp/comm/commtest"
	"github.com/gofsdp/gofsdp/comm/internal/session"
	"github.com/gofsdp/gofsdp/comm/transport"
)

// TestSerialContract leaves out sizes that differ in nothing that a session does.
func TestSerialContract(t *testing.T) {
	commtest.Contract{Sizes: []int{1, 2, 3, 5, 8}}.Test(t, func(_ testing.TB, n int) []transport.Group { return session.SerialGroups(n) })
}
