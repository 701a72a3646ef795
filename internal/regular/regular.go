// Package regular opens files whose names others can choose or predict, such as rank-0.log in a
// directory that several users may write to. A symbolic link of that name would make a program
// write to the target of the link.
//
//	f, err := regular.Open("logs/rank-0.log", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
//	// open logs/rank-0.log: it is a symbolic link: remove it, or name another directory
package regular

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Open is os.OpenFile for a path whose last element is not a symbolic link. It also returns an
// error if the file is replaced meanwhile.
func Open(path string, flag int, perm fs.FileMode) (*os.File, error) {
	before, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) && flag&os.O_CREATE != 0 {
		return os.OpenFile(path, flag|os.O_EXCL, perm)
	}
	if err != nil {
		return nil, err
	}
	if before.Mode().Type() == fs.ModeSymlink {
		return nil, &fs.PathError{Op: "open", Path: path, Err: errors.New("it is a symbolic link: remove it, or name another directory")}
	}
	f, err := os.OpenFile(path, flag&^(os.O_CREATE|os.O_TRUNC), perm)
	if err != nil {
		return nil, err
	}
	after, err := f.Stat()
	if err == nil && !os.SameFile(before, after) {
		err = &fs.PathError{Op: "open", Path: path, Err: errors.New("another file has taken its place")}
	}
	if err == nil && flag&os.O_TRUNC != 0 {
		err = f.Truncate(0)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Earlier creates a directory earlier-1, earlier-2, … in the directory of path. It chooses the
// first that has no file of the same name, and returns the path of that name there.
func Earlier(path string) (to string, err error) {
	for n := 1; ; n++ {
		to := filepath.Join(filepath.Dir(path), fmt.Sprintf("earlier-%d", n), filepath.Base(path))
		switch _, err := os.Lstat(to); {
		case errors.Is(err, fs.ErrNotExist):
			return to, os.MkdirAll(filepath.Dir(to), 0o777)
		case err != nil:
			return "", err
		}
	}
}

// PutAside moves a non-empty file to the path that Earlier returns. It returns that path and the
// size. It leaves anything else, such as a link, for Open to refuse, and returns "".
func PutAside(path string) (to string, bytes int64, err error) {
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return "", 0, nil
	}
	if to, err = Earlier(path); err != nil {
		return "", 0, err
	}
	return to, info.Size(), os.Rename(path, to)
}
