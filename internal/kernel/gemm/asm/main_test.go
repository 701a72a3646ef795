package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCommittedAssemblyIsGenerated(t *testing.T) {
	for _, target := range targets {
		committed, err := os.ReadFile("../" + target.file())
		require.NoError(t, err)
		require.Equal(t, string(target.source()), string(committed), "run go generate in internal/kernel/gemm")
	}
}
