//go:build !linux

package shm

import (
	"math"
	"os"
)

func create(int) (*os.File, []byte, error) { return nil, nil, ErrUnsupported }

func open(*os.File) ([]byte, error) { return nil, ErrUnsupported }

func unmap([]byte) error { return ErrUnsupported }

func reserve(*os.File, []byte, int, int) error { return ErrUnsupported }

// Installed returns the bytes of memory available to segments: none.
func Installed() int { return 0 }

// Spare returns the bytes of address space that this process may still map. It is unlimited, since
// segments do not exist here.
func Spare() int { return math.MaxInt }
