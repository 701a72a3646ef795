package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gofsdp/gofsdp/internal/perfetto"
	"github.com/gofsdp/gofsdp/internal/regular"
)

// jobTrace is the file in which the traces of ranks are joined.
const jobTrace = "job.pftrace"

// traces lists the files of ranks in -trace, by their names there.
func (c *config) traces() ([]string, error) {
	return fs.Glob(os.DirFS(c.traceDir), "rank-*.pftrace")
}

// prepareRecords makes the directories of traces and hashes. On host 0 the first must have no traces
// yet, so that all joined traces belong to this job.
func (c *config) prepareRecords() error {
	for _, d := range [...]struct{ flag, dir string }{{"-trace", c.traceDir}, {"-hashes", c.hashDir}} {
		if d.dir == "" {
			continue
		}
		if err := os.MkdirAll(d.dir, 0o777); err != nil {
			return fmt.Errorf("%s: %w: give a directory that can be written", d.flag, err)
		}
	}
	if c.traceDir == "" {
		return nil
	}
	if files, err := c.traces(); err != nil || len(files) > 0 && c.node == 0 {
		return errors.Join(err, fmt.Errorf("-trace %s already has traces of another job", c.traceDir))
	}
	return nil
}

// joinTraces joins the traces of the ranks, as far as host 0 sees them, and prints the path.
func (l *launcher) joinTraces() (err error) {
	if l.traceDir == "" || l.node > 0 {
		return nil
	}
	files, err := l.traces()
	if err != nil || len(files) == 0 {
		return errors.Join(err, fmt.Errorf("no rank has written a trace to %s", l.traceDir))
	}
	path := filepath.Join(l.traceDir, jobTrace)
	out, err := regular.Open(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	w := bufio.NewWriter(out)
	for _, name := range files {
		if err := addTrace(w, filepath.Join(l.traceDir, name)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	l.screen.say("the trace of %d files is %s; https://ui.perfetto.dev opens it", len(files), path)
	return w.Flush()
}

func addTrace(w *bufio.Writer, name string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	return perfetto.Join(w, file)
}
