package comm_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/commtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLocalContract(t *testing.T) {
	commtest.TestGroup(t, func(_ testing.TB, n int) []comm.Group { return comm.Local(n) })
}
