package store

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/windows"
)

// busy reports whether err says that another process has the file open just now, or replaces it.
// Windows reports the latter as access denied.
func busy(err error) bool {
	return errors.Is(err, windows.ERROR_SHARING_VIOLATION) || errors.Is(err, windows.ERROR_LOCK_VIOLATION) || errors.Is(err, fs.ErrPermission)
}
