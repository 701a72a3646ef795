//go:build linux && cgo && ncclabi

package nccl

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRealLibrary runs what a real libnccl can do without a GPU; abi/check.sh names one
// in EnvLibrary.
func TestRealLibrary(t *testing.T) {
	require.NoError(t, Load(""))
	v, err := Version()
	require.NoError(t, err)
	t.Logf("%s loads, version %v", soname, v)
	require.GreaterOrEqual(t, v, Floor)

	a, err := NewUniqueID()
	require.NoError(t, err)
	b, err := NewUniqueID()
	require.NoError(t, err)
	require.NotEqual(t, a, b)
	require.NotEqual(t, make([]byte, len(a)), bytes.Clone(a[:]))
	t.Logf("unique id %x...", a[:16])

	self, err := os.Executable()
	require.NoError(t, err)
	c := exec.Command(self)
	c.Env = append(os.Environ(), scriptName+"=no network", "NCCL_SOCKET_IFNAME=nosuchinterface")
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Logf("an error in NCCL's words: %s", out)
}

func init() { scripts["no network"] = noNetwork }

// noNetwork expects a failure with a text of NCCL's.
func noNetwork() error {
	_, err := NewUniqueID()
	var e *Error
	if !errors.As(err, &e) || e.Result == Success || e.Detail == "" {
		return fmt.Errorf("no network, and yet: %v", err)
	}
	fmt.Print(err)
	return nil
}
