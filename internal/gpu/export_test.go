package gpu

import "testing"

// NothingAgrees makes results of wgmma and mma.sync differ by more than rounding, until the end of
// the test.
func NothingAgrees(t *testing.T) {
	before := mostApart
	t.Cleanup(func() { mostApart = before })
	mostApart = -1
}
