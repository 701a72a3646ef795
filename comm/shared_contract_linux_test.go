package comm_test

import (
	"testing"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/commtest"
)

func TestSharedContract(t *testing.T) { commtest.TestGroup(t, comm.SharedGroups) }

func TestAllocatedContract(t *testing.T) { someSizes.Test(t, comm.AllocatedGroups) }

func TestMixedContract(t *testing.T) { someSizes.Test(t, comm.MixedGroups) }
