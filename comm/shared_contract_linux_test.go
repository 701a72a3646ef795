package comm_test

import (
	"testing"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/commtest"
)

// someSizes is for groups that differ from others of the contract in something that is the same for
// every number of ranks.
var someSizes = commtest.Contract{Sizes: []int{1, 2, 3, 5, 8}}

func TestSharedContract(t *testing.T) { commtest.TestGroup(t, comm.SharedGroups) }

func TestAllocatedContract(t *testing.T) { someSizes.Test(t, comm.AllocatedGroups) }

func TestMixedContract(t *testing.T) { someSizes.Test(t, comm.MixedGroups) }
