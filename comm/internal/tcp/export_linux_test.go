package tcp

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm/transport"
)

// Unanswered is for tests of package tcp_test.
var Unanswered = unanswered

// LanesOf returns the descriptors of the only connection of a rank, and what each goes over.
func LanesOf(t *testing.T, g transport.Group) (fds []int, over []string) {
	lines := remoteOf(g).pump.(*poller).lines
	require.Len(t, lines, 1)
	return lines[0].fds, lines[0].over
}

// Silent returns the error of a lane of a rank whose other end does not answer.
func Silent(g transport.Group) error { return remoteOf(g).pump.silent() }
