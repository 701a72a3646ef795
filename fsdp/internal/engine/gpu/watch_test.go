package gpu

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestWaitingByCores checks that the host polls for longer than any step only where its rank has
// cores to spare.
func TestWaitingByCores(t *testing.T) {
	for cores, want := range map[int]time.Duration{0: 200 * time.Microsecond, 3: 200 * time.Microsecond, 4: 2 * time.Second, 16: 2 * time.Second} {
		d := &Device{o: Options{Cores: cores}}
		require.Equal(t, want, d.policy().Eager, "%d cores", cores)
	}
}
