package main

import (
	"context"
	"flag"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/internal/checkpoint"
)

var listCommand = command{
	name: "list", args: "DIR", n: 1, short: "every checkpoint of a job",
	long: `
Lists the checkpoints in a job's directory, in the order of saving: training
step, number of ranks, number of files, size and time. Checkpoints that Load
skips are listed with the reason. The data is not read, see fsdpckpt verify.`,
	flags: func(*flag.FlagSet) action { return list },
}

func list(ctx context.Context, sys system, args []string) error {
	dir := filepath.Clean(args[0])
	entries, err := checkpoint.List(ctx, sys.fs, dir)
	if err != nil {
		return err
	}
	if len(entries) == 0 {
		return fmt.Errorf("%s has no checkpoints", dir)
	}
	when, err := times(sys, dir)
	if err != nil {
		return err
	}
	var reasons []string
	rows := []string{"CHECKPOINT\tSTEP\tRANKS\tFILES\tSIZE\tWHEN"}
	for _, e := range entries {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		name := filepath.Base(e.Path)
		columns := "-\t-\t-"
		if e.Err == nil {
			columns, e.Err = summary(ctx, sys.fs, e.Path) // a job may have removed it meanwhile
		}
		rows = append(rows, fmt.Sprintf("%s\t%d\t%s\t%s", name, e.Step, columns, when[name]))
		if e.Err != nil {
			reasons = append(reasons, fmt.Sprintf("\n%s is skipped:\n  %s", name, reason(e)))
		}
	}
	return table(sys.out, append(rows, reasons...))
}

// summary returns the ranks, files and size of a checkpoint, as columns.
func summary(ctx context.Context, fsys checkpoint.FS, dir string) (string, error) {
	r, err := checkpoint.OpenReader(ctx, fsys, dir)
	if err != nil {
		return "-\t-\t-", err
	}
	m := r.Manifest()
	return fmt.Sprintf("%d\t%d\t%s", m.World, len(m.Files), sizeText(fileBytes(m))), r.Close()
}

// fileBytes returns the size of a checkpoint's files, without the manifest.
func fileBytes(m *checkpoint.Manifest) (n int64) {
	for _, f := range m.Files {
		n += f.Size
	}
	return n
}

// reason returns why e does not count, on one line, without the path, which precedes it.
func reason(e checkpoint.Entry) string {
	text := strings.ReplaceAll(e.Err.Error(), e.Path+string(filepath.Separator), "")
	return strings.ReplaceAll(strings.TrimPrefix(text, e.Path+": "), "\n", "; ")
}

// times returns the modification times of the entries of dir, by name.
func times(sys system, dir string) (map[string]string, error) {
	entries, err := sys.fs.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	when := make(map[string]string, len(entries))
	for _, e := range entries {
		when[e.Name()] = "-"
		if info, err := e.Info(); err == nil { // or it is gone
			when[e.Name()] = info.ModTime().In(sys.zone).Format(time.DateTime)
		}
	}
	return when, nil
}
