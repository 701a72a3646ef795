//go:build !unix

package auth

import "os"

// temporary is the directory for temporary files of this user, which Windows keeps others out of.
func temporary() string { return os.TempDir() }

// private has nothing to add to that.
func private(string, *os.Root, int) error { return nil }
