package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// resolve turns the command line of a program into one that can be executed, and returns a path to
// delete afterwards, if any.
func resolve(ctx context.Context, args []string, environ []string) (command []string, temporary string, err error) {
	files := args[:goFiles(args)]
	info, err := os.Stat(args[0])
	switch {
	case len(files) > 0:
		if err != nil { // go would look for a module of that name
			return nil, "", fmt.Errorf("%w: give the path of the program, or its package, as in fsdprun ./examples/digits", err)
		}
		return build(ctx, ".", files, args[len(files):], environ)
	case err == nil && info.IsDir():
		return build(ctx, args[0], []string{"."}, args[1:], environ)
	case err == nil:
		path, err := filepath.Abs(args[0])
		if _, xerr := exec.LookPath(path); err == nil && xerr != nil {
			err = fmt.Errorf("%w: make the program executable (chmod +x), or give its package", xerr)
		}
		return append([]string{path}, args[1:]...), "", err
	}
	if path, err := exec.LookPath(args[0]); err == nil {
		return append([]string{path}, args[1:]...), "", nil
	}
	if isPath := strings.HasPrefix(args[0], ".") || filepath.IsAbs(args[0]); isPath || !strings.Contains(args[0], "/") {
		return nil, "", fmt.Errorf("%s: no such file, directory or command: build the program first, or give its package, such as ./examples/digits", args[0])
	}
	return build(ctx, ".", args[:1], args[1:], environ)
}

// goFiles counts the arguments that are Go files to build, as for go run.
func goFiles(args []string) int {
	if i := slices.IndexFunc(args, func(a string) bool { return !strings.HasSuffix(a, ".go") }); i >= 0 {
		return i
	}
	return len(args)
}

// build builds packages, relative to dir, into a new directory.
func build(ctx context.Context, dir string, packages, args, environ []string) (command []string, temporary string, err error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, "", err
	}
	into, err := os.MkdirTemp("", "fsdprun-")
	if err != nil {
		return nil, "", err
	}
	name := strings.TrimSuffix(filepath.Base(packages[0]), ".go")
	if name == "." {
		name = filepath.Base(abs)
	}
	binary := filepath.Join(into, name+executableSuffix)
	cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-o", binary, "--"}, packages...)...)
	cmd.Dir, cmd.Env = abs, environ
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("go build %s: %w\n%s", strings.Join(packages, " "), err, bytes.TrimSpace(out))
	} else if _, notFound := exec.LookPath(binary); notFound != nil { // an archive, or nothing
		err = fmt.Errorf("%s is not a main package", filepath.Join(dir, packages[0]))
	}
	if err != nil {
		os.RemoveAll(into)
		return nil, "", err
	}
	return append([]string{binary}, args...), into, nil
}
