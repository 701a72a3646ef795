package arena

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// TestHugePages finds the flag of the advice at the memory of a block in the kernel's list of
// mappings.
func TestHugePages(t *testing.T) {
	if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage"); err != nil {
		require.ErrorIs(t, err, os.ErrNotExist) // a kernel without huge pages
		return
	}
	a := New(Sources{})
	b, err := a.Alloc(8*hugePage, Activation)
	require.NoError(t, err)
	require.True(t, strings.Contains(flagsAt(t, unsafe.Pointer(&b.Data[4*hugePage]))+" ", " hg "))
	a.Free(b)
}

// flagsAt returns the flags of the mapping at an address.
func flagsAt(t *testing.T, p unsafe.Pointer) string {
	list, err := os.ReadFile("/proc/self/smaps")
	require.NoError(t, err)
	inside := false
	for _, line := range strings.Split(string(list), "\n") {
		var lo, hi uintptr
		if n, _ := fmt.Sscanf(line, "%x-%x ", &lo, &hi); n == 2 {
			inside = lo <= uintptr(p) && uintptr(p) < hi
		}
		if flags, ok := strings.CutPrefix(line, "VmFlags:"); ok && inside {
			return flags
		}
	}
	require.Failf(t, "no mapping", "at %p", p)
	return ""
}
