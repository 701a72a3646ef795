package nccl

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStrings(t *testing.T) {
	for want, got := range map[string]string{
		"2.30.7":                   VersionCode(23007).String(),
		"2.18.0":                   Floor.String(),
		"float16":                  Float16.String(),
		"float8e5m2":               Float8E5M2.String(),
		"DataType(12)":             DataType(12).String(),
		"DataType(-1)":             DataType(-1).String(),
		"ncclAllGather":            AllGather.String(),
		"ncclRecv":                 Recv.String(),
		"Kind(0)":                  Kind(0).String(),
		"Kind(8)":                  Kind(8).String(),
		"success":                  Success.String(),
		"nccl: timeout":            Timeout.Error(),
		"Result(9)":                Result(9).String(),
		"nccl: f: internal error":  (&Error{Call: "f", Result: InternalError}).Error(),
		"nccl: f: system error: x": (&Error{Call: "f", Result: SystemError, Detail: "x"}).Error(),
		`nccl: rank 1 of 2 of "w": f: invalid usage`: (&Error{Call: "f", Name: "w", Rank: 1, Size: 2, Result: InvalidUsage}).Error(),
		"ncclSend, operation 2 of a group of 2":      describe([]Op{{}, {Kind: Send}}, 1),
		"ncclGroupEnd of 2 operations":               describe([]Op{{}, {Kind: Send}}, -1),
	} {
		require.Equal(t, want, got)
	}
	require.ErrorIs(t, &Error{Result: RemoteError}, RemoteError)
	require.NotErrorIs(t, &Error{Result: RemoteError}, Success)
}

func TestSizes(t *testing.T) {
	sizes := []int{1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1, 0}
	for i, want := range sizes {
		require.Equal(t, want, DataType(i).Size())
	}
	require.Zero(t, DataType(-1).Size())
}
