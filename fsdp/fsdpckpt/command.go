package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/internal/checkpoint"
)

// system is the environment of fsdpckpt, in addition to its arguments.
type system struct {
	fs       checkpoint.FS
	out, err io.Writer
	zone     *time.Location // of the times that are printed
}

// Exit statuses.
const (
	exitError = 1
	exitUsage = 2
)

// A command is one of fsdpckpt's commands.
type command struct {
	name, args, short string
	long              string // for -h
	n                 int    // number of args, without flags
	// flags defines the flags and returns the action that runs the command after parsing.
	flags func(f *flag.FlagSet) action
}

// action runs a command.
type action func(ctx context.Context, sys system, args []string) error

// commands are in the order in which a user meets them.
var commands = []*command{&listCommand, &inspectCommand, &verifyCommand, &mergeCommand}

// A usageError is an invalid command line.
type usageError struct{ error }

// run is fsdpckpt. It returns the exit status.
func run(ctx context.Context, args []string, sys system) int {
	if len(args) == 0 {
		overview(sys.err)
		return exitUsage
	}
	for _, c := range commands {
		if c.name == args[0] {
			return c.run(ctx, args[1:], sys)
		}
	}
	switch args[0] {
	case "-h", "-help", "--help", "help":
		overview(sys.out)
		return 0
	}
	fmt.Fprintf(sys.err, "fsdpckpt: unknown command %q\n", args[0])
	overview(sys.err)
	return exitUsage
}

// overview prints the list of commands.
func overview(w io.Writer) {
	fmt.Fprint(w, "Fsdpckpt inspects checkpoints, verifies them and merges them into one file,\nwithout their model.\n\n")
	for _, c := range commands {
		fmt.Fprintf(w, "  %-37s %s\n", "fsdpckpt "+c.name+" "+c.args, c.short)
	}
	fmt.Fprint(w, "\nPATH is a checkpoint, or the directory of a job: then its last complete one.\n"+
		"Exit status: 0, or 1 after a failure or damage, 2 for a wrong command line.\n"+
		"fsdpckpt COMMAND -h prints the flags of a command.\n")
}

// run runs c and returns the exit status.
func (c *command) run(ctx context.Context, args []string, sys system) int {
	f := flag.NewFlagSet(c.name, flag.ContinueOnError)
	f.SetOutput(io.Discard) // errors are printed below
	act := c.flags(f)
	args, err := parse(f, args)
	if err == nil && len(args) != c.n {
		err = usageError{fmt.Errorf("got %s, want %s", plural(len(args), "argument"), c.args)}
	}
	if err == nil {
		err = act(ctx, sys, args)
	}
	var usage usageError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, flag.ErrHelp):
		c.help(f, sys.out)
		return 0
	case errors.As(err, &usage):
		fmt.Fprintf(sys.err, "fsdpckpt %s: %v\n%s\n", c.name, err, c.usage(f))
		return exitUsage
	default:
		fmt.Fprintf(sys.err, "fsdpckpt %s: %v\n", c.name, err)
		return exitError
	}
}

// parse is f.Parse for flags that may also be between and after the arguments. It returns the
// arguments.
func parse(f *flag.FlagSet, args []string) (rest []string, err error) {
	for {
		switch err := f.Parse(args); {
		case errors.Is(err, flag.ErrHelp):
			return nil, err
		case err != nil:
			return nil, usageError{err}
		case f.NArg() == 0:
			return rest, nil
		}
		rest, args = append(rest, f.Arg(0)), f.Args()[1:]
	}
}

// usage returns the command line of c. Flags that it needs are among c.args.
func (c *command) usage(f *flag.FlagSet) string {
	line := "usage: fsdpckpt " + c.name + " " + c.args
	optional := false
	f.VisitAll(func(g *flag.Flag) { optional = optional || !strings.Contains(line, " -"+g.Name) })
	if optional {
		line += " [flags]"
	}
	return line
}

// help prints the help text of c.
func (c *command) help(f *flag.FlagSet, w io.Writer) {
	fmt.Fprintf(w, "%s\n\n%s\n", c.usage(f), strings.TrimSpace(c.long))
	first := true
	f.VisitAll(func(*flag.Flag) {
		if first {
			fmt.Fprintln(w)
		}
		first = false
	})
	f.SetOutput(w)
	f.PrintDefaults()
}

// open opens the checkpoint at PATH, and prints the damaged ones that it passes over.
func open(ctx context.Context, sys system, path string) (r *checkpoint.Reader, dir string, err error) {
	found, err := checkpoint.Find(ctx, sys.fs, filepath.Clean(path))
	if err != nil {
		return nil, "", err
	}
	for _, e := range found.Passed {
		fmt.Fprintf(sys.err, "fsdpckpt: %s is newer, but damaged: %s\n", e.Path, reason(e))
	}
	r, err = checkpoint.OpenReader(ctx, sys.fs, found.Path)
	return r, found.Path, err
}

// noCheckpoint returns an error if dir is a checkpoint, where nothing else must be written.
func noCheckpoint(fsys checkpoint.FS, dir string) error {
	f, err := fsys.Open(filepath.Join(dir, checkpoint.ManifestName))
	if err != nil { // using dir will show its state
		return nil
	}
	return errors.Join(fmt.Errorf("%s is a checkpoint: write the output elsewhere", dir), f.Close())
}
