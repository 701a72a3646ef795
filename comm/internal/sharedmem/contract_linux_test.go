package sharedmem_test

import (
	"testing"

	"github.com/gofsdp/gofsdp/comm/commtest"
	"github.com/gofsdp/gofsdp/comm/internal/sharedmem"
)

// someSizes is enough here: ranks that share memory do the same whatever their number, except one.
var someSizes = commtest.Contract{Sizes: []int{1, 2, 3, 5, 8}}

func TestSharedContract(t *testing.T) { someSizes.Test(t, sharedmem.SharedGroups) }

func TestAllocatedContract(t *testing.T) { someSizes.Test(t, sharedmem.AllocatedGroups) }

func TestMixedContract(t *testing.T) { someSizes.Test(t, sharedmem.MixedGroups) }
