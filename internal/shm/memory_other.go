//go:build !linux

package shm

import "os"

func create(int) (*os.File, []byte, error) { return nil, nil, ErrUnsupported }

func open(*os.File) ([]byte, error) { return nil, ErrUnsupported }

func unmap([]byte) error { return ErrUnsupported }

func reserve(*os.File, []byte, int, int) error { return ErrUnsupported }

// Installed returns the bytes of memory that segments could have: none.
func Installed() int { return 0 }
