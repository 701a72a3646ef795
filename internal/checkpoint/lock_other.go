//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd || windows)

package checkpoint

import (
	"errors"
	"os"
)

// nonBlocking is for systems that have it.
const nonBlocking = 0

// tryLock fails: a lock that outlives its holder would be worse than none, and this system has no
// other lock.
func tryLock(*os.File) (held bool, err error) { return false, errors.ErrUnsupported }
