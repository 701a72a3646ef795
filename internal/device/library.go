package device

import (
	"fmt"
	"os"
	"sync"
)

// Library is a shared library that a process loads on first use, and never unloads: a driver keeps
// its own threads.
type Library struct {
	What     string   // "the CUDA driver"
	Names    []string // file names to try, the best one first
	Variable string   // environment variable with the path of the library
	Hint     string   // what to install or set
	// Open loads the library at a path. It returns why the library cannot be loaded, or an error
	// that ends the search.
	Open func(path string) (why string, err error)

	mu       sync.Mutex
	path     string // empty: not loaded yet
	attached bool
}

// Load loads the library from path. If path is empty, it uses the path in the variable, or else the
// first name that the system finds. After that, no other path can be loaded. After an error the
// call may be repeated.
func (l *Library) Load(path string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.load(path)
}

// Loaded reports whether the library is loaded.
func (l *Library) Loaded() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.path != ""
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

// Attach loads the library if necessary, and passes the address of cuCtxSetCurrent to set, once.
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
