//go:build !linux

package main

import (
	"errors"
	"os/exec"
)

// awaitExit waits for the process.
func awaitExit(cmd *exec.Cmd) { cmd.Wait() }

// hasExited returns false: the process may have been waited for.
func hasExited(*exec.Cmd) bool { return false }

const canPin = false

func allowedCores() ([]int, error) { return nil, errors.ErrUnsupported }

func setCores([]int) error { return errors.ErrUnsupported }
