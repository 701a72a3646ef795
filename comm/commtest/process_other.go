//go:build !linux

package commtest

import "errors"

var errCannot = errors.New("commtest: not possible on this system")

func stopSelf() error { return errCannot }

func eachConnection(func(fd int) error) error { return errCannot }

func cut(int) error { return errCannot }

func garble(int) error { return errCannot }
