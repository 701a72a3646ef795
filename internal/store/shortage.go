package store

import (
	"errors"
	"fmt"
	"syscall"
	"time"
)

// shortageTime is how long calls must fail until waiting longer is useless.
const shortageTime = 2 * time.Second

// Shortage detects whether accepting or opening connections keeps failing, as in a process that may
// open no more files. The zero value has seen no failure.
type Shortage struct{ since time.Time }

// Note records the result of a call. It returns nil until calls have failed for 2 s without a
// success in between, and from then on the error, with advice.
func (s *Shortage) Note(err error) error {
	switch {
	case err == nil:
		s.since = time.Time{}
	case s.since.IsZero():
		s.since = time.Now()
	case time.Since(s.since) >= shortageTime:
		return Advise(err)
	}
	return nil
}

// NoteFiles is Note for calls that also fail for reasons on the other side: they count as a
// success.
func (s *Shortage) NoteFiles(err error) error {
	if !errors.Is(err, syscall.EMFILE) && !errors.Is(err, syscall.ENFILE) {
		err = nil
	}
	return s.Note(err)
}

// advised is an error that explains how to allow more files.
type advised struct{ error }

func (a advised) Unwrap() error { return a.error }

// Advise adds to an error about too many open files how to allow more.
func Advise(err error) error {
	var done advised
	switch {
	case errors.As(err, &done):
		return err
	case errors.Is(err, syscall.EMFILE):
		return advised{fmt.Errorf("%w: this process has reached its limit of open files: raise it with ulimit -n", err)}
	case errors.Is(err, syscall.ENFILE):
		return advised{fmt.Errorf("%w: this host has reached its limit of open files: raise fs.file-max with sysctl", err)}
	}
	return err
}
