//go:build !linux && !darwin

package mapped

import "os"

const supported = false

// errFull is the system's error for a full disk.
var errFull = ErrUnsupported

func freeBytes(string) int { return 0 }

func reserve(*os.File, int) error { return ErrUnsupported }

func mmap(*os.File, int) ([]byte, error) { return nil, ErrUnsupported }

func unmap([]byte) error { return ErrUnsupported }

func willNeed([]byte) error { return ErrUnsupported }
