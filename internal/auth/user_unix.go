//go:build unix

package auth

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// temporary is the same for all processes of a host, whatever their TMPDIR is.
func temporary() string { return "/tmp" }

// private refuses a directory that users other than self own or can enter, or a dir that is only a
// link to it: the maker of the link chose the directory.
func private(dir string, root *os.Root, self int) error {
	named, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	info, err := root.Stat(".")
	if err != nil {
		return err
	}
	if !os.SameFile(named, info) {
		return errors.New("it is a link to another directory")
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.New("this system does not report its owner")
	}
	if int(stat.Uid) != self {
		return fmt.Errorf("it belongs to user %d, this process to user %d", stat.Uid, self)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("other users can enter it (%v): run chmod 700 on it", info.Mode())
	}
	return nil
}
