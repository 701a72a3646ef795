//go:build unix

package auth

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
)

// temporary is the same for all processes of a host, whatever their TMPDIR says.
func temporary() string { return "/tmp" }

// private refuses a directory that others than user self own or can enter.
func private(info fs.FileInfo, self int) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.New("this system does not tell who owns it")
	}
	if int(stat.Uid) != self {
		return fmt.Errorf("it belongs to user %d, this process to user %d", stat.Uid, self)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("others can enter it (%v): chmod 700", info.Mode())
	}
	return nil
}
