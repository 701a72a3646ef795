// Package revision builds programs of this repository at two commits, to compare their behavior:
//
//	work, err := revision.Working(ctx)
//	base, remove, err := work.Checkout(ctx, "v1.2.0")
//	defer remove()
//	err = work.Graft(base, "internal/workshop/probe", "NewName=OldName")
//	err = base.Build(ctx, "/tmp/base", "examples/gpt", "internal/workshop/probe") // makes /tmp/base/gpt and /tmp/base/probe
package revision

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// A Tree is a directory with the files of a commit or of a working tree.
type Tree struct {
	Dir  string
	Name string // the short hash, with "+" where the working tree differs
}

// Working returns the tree that the current directory is in.
func Working(ctx context.Context) (Tree, error) {
	dir, err := run(ctx, "", "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return Tree{}, err
	}
	name, err := run(ctx, dir, "git", "rev-parse", "--short", "HEAD")
	if err != nil {
		return Tree{}, err
	}
	if changed, err := run(ctx, dir, "git", "status", "--porcelain"); err != nil {
		return Tree{}, err
	} else if changed != "" {
		name += "+"
	}
	return Tree{Dir: dir, Name: name}, nil
}

// Checkout makes a temporary git worktree of t's repository at a commit. The caller calls remove
// when done.
func (t Tree) Checkout(ctx context.Context, commit string) (base Tree, remove func() error, err error) {
	name, err := run(ctx, t.Dir, "git", "rev-parse", "--short", "--verify", "--end-of-options", commit+"^{commit}")
	if err != nil {
		return Tree{}, nil, err
	}
	parent, err := os.MkdirTemp("", "revision")
	if err != nil {
		return Tree{}, nil, err
	}
	dir := filepath.Join(parent, "tree")
	remove = func() error {
		_, err := run(context.WithoutCancel(ctx), t.Dir, "git", "worktree", "remove", "--force", dir)
		return errors.Join(err, os.RemoveAll(parent))
	}
	if _, err := run(ctx, t.Dir, "git", "worktree", "add", "--detach", "--quiet", dir, name); err != nil {
		return Tree{}, nil, errors.Join(err, os.RemoveAll(parent))
	}
	return Tree{Dir: dir, Name: name}, remove, nil
}

// Build builds main packages of t, named by their directories, into the directory out. Each is
// built in its own directory: a package may belong to another module in one commit than in another.
func (t Tree) Build(ctx context.Context, out string, packages ...string) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	for _, dir := range packages {
		_, err := run(ctx, filepath.Join(t.Dir, dir), "go", "build", "-buildvcs=false", "-trimpath", "-o", out+string(filepath.Separator), ".")
		if err != nil {
			return err
		}
	}
	return nil
}

// Graft copies the Go files of t's directory dir to the same place in another tree, so that one
// source is compiled in both. renamed lists public names that have changed since, as
// "new=old,new=old".
func (t Tree) Graft(onto Tree, dir, renamed string) error {
	var olds []string
	var news []*regexp.Regexp
	for _, pair := range strings.FieldsFunc(renamed, func(r rune) bool { return r == ',' }) {
		now, then, ok := strings.Cut(pair, "=")
		if !ok {
			return fmt.Errorf("renamed %s: want new=old", pair)
		}
		news = append(news, regexp.MustCompile(`\b`+regexp.QuoteMeta(now)+`\b`))
		olds = append(olds, then)
	}
	files, err := filepath.Glob(filepath.Join(t.Dir, dir, "*.go"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("no Go files in %s: %w", filepath.Join(t.Dir, dir), errors.Join(err, os.ErrNotExist))
	}
	if err := os.MkdirAll(filepath.Join(onto.Dir, dir), 0o755); err != nil {
		return err
	}
	for _, name := range files {
		src, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		for i, now := range news {
			src = now.ReplaceAllLiteral(src, []byte(olds[i]))
		}
		if err := os.WriteFile(filepath.Join(onto.Dir, dir, filepath.Base(name)), src, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// run returns the output of a command in dir, without white space around it.
func run(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(string(out)), nil
}
