package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGenerated: the committed files are what this program prints.
func TestGenerated(t *testing.T) {
	for name, want := range outputs() {
		got, err := os.ReadFile("../" + name)
		require.NoError(t, err)
		require.True(t, want == string(got), "%s is out of date: run go generate", name)
	}
}
