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

// Installed returns the bytes of memory that segments could have: none.
func Installed() int { return 0 }

// Spare returns the bytes of addresses that this process may still map: nobody counts.
func Spare() int { return math.MaxInt }
