//go:build !linux && !purego

package gemm

import "errors"

// tilesAllowed returns why the tiles of AMX are not used.
func tilesAllowed() error { return errors.New("gemm: the tiles of AMX are used on Linux only") }
