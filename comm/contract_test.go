package comm_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/commtest"
	"github.com/gofsdp/gofsdp/comm/internal/sharedmem"
)

func TestMain(m *testing.M) {
	// Enough for each test, and little for an emulator.
	sharedmem.MaxDomain = 1 << 30
	goleak.VerifyTestMain(m)
}

func TestLocalContract(t *testing.T) {
	commtest.TestGroup(t, func(_ testing.TB, n int) []comm.Group { return comm.Local(n) })
}
