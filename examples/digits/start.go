package main

import (
	"os"
	"path/filepath"

	"github.com/gofsdp/gofsdp/fsdp/monitor"
)

// file returns the path of a file of the data, from the root of the repository or from this directory.
func file(name string) string {
	path := filepath.Join("testdata", name)
	if _, err := os.Stat(path); err != nil {
		path = filepath.Join("examples", "digits", path)
	}
	return path
}

// tellOver says so if a checkpoint is of a run that is over, whose curve is shown again.
func tellOver(mon *monitor.Monitor, done, steps int) {
	if done == steps {
		mon.Printf("digits.ckpt is of a run that is over: nothing is trained. Without it another run begins.\n")
	}
}
