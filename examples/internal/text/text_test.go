package text

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSplit(t *testing.T) {
	code, prose, err := split([]byte(`// Copyright 2009 The Go Authors. All rights reserved.
// Use of this source code is governed by a BSD-style
// license that can be found in the LICENSE file.

// Package p has an answer.
package p

//go:noinline

// F returns the answer.
func F() int {
	return 42 // of course
}
`))
	require.NoError(t, err)
	require.Equal(t, "Package p has an answer.\nF returns the answer.\n", string(prose))
	require.Equal(t, "package p\nfunc F() int {\n\treturn 42 \n}\n", string(code))
	_, _, err = split([]byte("no Go"))
	require.Error(t, err)
}

func TestLoad(t *testing.T) {
	code, prose, err := Load()
	require.NoError(t, err)
	for _, text := range []Text{code, prose} {
		require.Greater(t, len(text.Train), 1<<20)
		require.InEpsilon(t, 19, float64(len(text.Train))/float64(len(text.Held)), 0.01)
	}
	require.NotContains(t, string(code.Train[:10_000]), "// ")
}

func TestBatch(t *testing.T) {
	source := []byte("abcdefgh")
	batch := Batch(source, rand.New(rand.NewPCG(1, 2)), 3, 4)
	x, y := batch[0].Data().([]int), batch[1].Data().([]int)
	require.Equal(t, []int{3, 4}, []int(batch[0].Shape()))
	for i := range x {
		require.Equal(t, x[i]+1, y[i])
	}
	require.Equal(t, x, Batch(source, rand.New(rand.NewPCG(1, 2)), 3, 4)[0].Data())
}
