//go:build mpi && cgo && unix

package mpi

import (
	"errors"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/stretchr/testify/require"
)

func TestMessage(t *testing.T) {
	for _, m := range []message{
		{what: call, group: 1, seq: 1 << 40, body: make([]byte, transport.SignatureSize+3)},
		{what: stop, group: 1<<64 - 1, body: []byte{}},
		{what: failed, group: 7, body: []byte("{}")},
		{what: left, group: 7, seq: 3, flags: abandoned, first: 1 << 20, body: []byte{}},
	} {
		got, err := parse(m.encode())
		require.NoError(t, err)
		require.Equal(t, m, got)
	}
	long := errors.New(strings.Repeat("\x00", 1<<20)) // every byte is escaped
	require.Less(t, bodyAt+len(transport.MarshalError("g", 1, long)), maxLetter)
}

func FuzzParse(f *testing.F) {
	for _, m := range []message{{what: call, body: make([]byte, maxBody)}, {what: stop}, {what: left, flags: abandoned, first: 3}, {what: failed, body: []byte("x")}} {
		f.Add(m.encode())
	}
	f.Add([]byte{})
	f.Add(make([]byte, bodyAt))
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := parse(b); err == nil {
			require.Equal(t, b, m.encode())
		}
	})
}
