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

// someSizes is for groups that differ from others of the contract in something that is the same for
// every number of ranks.
var someSizes = commtest.Contract{Sizes: []int{1, 2, 3, 5, 8}}

func TestSerialContract(t *testing.T) {
	someSizes.Test(t, func(_ testing.TB, n int) []comm.Group { return comm.SerialGroups(n) })
}
