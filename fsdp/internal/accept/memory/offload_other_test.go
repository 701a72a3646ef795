//go:build !linux && !darwin

package memory_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/internal/mapped"
)

// TestOffloadUnsupported: where files cannot be mapped, every rank is told.
func TestOffloadUnsupported(t *testing.T) {
	dir := t.TempDir()
	for _, err := range kit.ErrorsOf(t, 2, func(ctx context.Context, g comm.Group) error {
		_, err := fsdp.WrapContext(ctx, kit.TinyGPT(1), fsdp.Config{Group: g, Offload: fsdp.Offload{Dir: dir}})
		return err
	}) {
		require.ErrorIs(t, err, mapped.ErrUnsupported)
		require.ErrorContains(t, err, "Config.Offload.Dir: mapped: files in "+dir)
	}
}
