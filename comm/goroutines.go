package comm

import (
	"github.com/gofsdp/gofsdp/comm/internal/limit"
	"github.com/gofsdp/gofsdp/comm/internal/local"
)

// Local returns the handles of a new group of n ranks inside this process,
// element r for rank r, to be used by one goroutine each. The group is named
// "world". The garbage collector frees it; Close is not needed. Fewer than one
// rank give no handles. [Run] also starts the goroutines.
//
// Goroutine ranks keep to the same limit as processes: a collective that some rank
// does not issue for 10 minutes fails with [ErrTimeout]. Run takes the limit from
// FSDP_TIMEOUT.
func Local(n int) []Group { return local.New(n, limit.Default) }
