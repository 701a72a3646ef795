package device

import (
	"fmt"
	"os"
	"sync"
)

// Library is one that a process loads when it first needs it, and never closes again: a driver keeps
// threads of its own.
type Library struct {
	What     string   // "the CUDA driver"
	Names    []string // that the system may know it by, the best one first
	Variable string   // of the environment, which may name its file instead
	Hint     string   // what to install or set
	// Open loads the library at a path. It says why it cannot, or returns an error that ends the search.
	Open func(path string) (why string, err error)

	mu       sync.Mutex
	path     string // empty: not loaded yet
	attached bool
}

// Load loads the library from path. An empty path means what the variable says, or else the first of the
// names that the system has. A library of another path cannot be loaded later. After an error it may be
// tried again.
func (l *Library) Load(path string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.load(path)
}

// load is Load with the lock held.
func (l *Library) load(path string) error {
	if !builtIn {
		return &LoadError{What: l.What, Hint: "this program was built without cgo, or not for Linux"}
	}
	if l.path != "" {
		if path != "" && path != l.path {
			return fmt.Errorf("cannot load %s from %s: it is loaded from %s already", l.What, path, l.path)
		}
		return nil
	}
	if path == "" {
		path = os.Getenv(l.Variable)
	}
	paths := l.Names
	if path != "" {
		paths = []string{path}
	}
	missing := &LoadError{What: l.What, Hint: l.Hint}
	for _, path := range paths {
		why, err := l.Open(path)
		if err != nil {
			return err
		}
		if why == "" {
			l.path = path
			return nil
		}
		missing.Tried = append(missing.Tried, path+": "+why)
	}
	return missing
}

// Attach loads the library, if need be, and gives set the address of cuCtxSetCurrent, once.
func (l *Library) Attach(set func(setCurrent uintptr)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.load(""); err != nil || l.attached {
		return err
	}
	f := Symbol("cuCtxSetCurrent")
	if f == 0 {
		return fmt.Errorf("%s: cuCtxSetCurrent of the CUDA driver is %w", l.What, ErrUnavailable)
	}
	set(f)
	l.attached = true
	return nil
}
