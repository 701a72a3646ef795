package sharedmem_test

import (
	"testing"

	"github.com/gofsdp/gofsdp/comm/commtest"
	"github.com/gofsdp/gofsdp/comm/internal/sharedmem"
)

// someSizes is for groups that differ from others of the contract in something that is the same for
// every number of ranks.
var someSizes = commtest.Contract{Sizes: []int{1, 2, 3, 5, 8}}

func TestSharedContract(t *testing.T) { commtest.TestGroup(t, sharedmem.SharedGroups) }

func TestAllocatedContract(t *testing.T) { someSizes.Test(t, sharedmem.AllocatedGroups) }

func TestMixedContract(t *testing.T) { someSizes.Test(t, sharedmem.MixedGroups) }
