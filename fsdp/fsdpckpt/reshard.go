package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"slices"

	"github.com/gofsdp/gofsdp/internal/checkpoint"
)

var reshardCommand = command{
	name: "reshard", args: "PATH OUTDIR -ranks N", n: 2, short: "the same, cut into other files",
	long: `
Writes a checkpoint again, cut evenly into N files, as a new one in the job
directory OUTDIR, which is made if need be. What is read is compared with its
checksums on the way. Memory is that of one chunk, whatever the size of the
model.

There is no need to do this to load a checkpoint with another number of ranks:
fsdp.Load cuts as it reads. It helps where the number or the size of files
matters, to copy them or to read them from many hosts at once. The contents stay
as they were: the new checkpoint loads wherever the old one does, with the same
result, and tells of the ranks that saved the old one. What these have of their
own stays theirs: buffers, experts, RankExtra.`,
	flags: func(f *flag.FlagSet) action {
		n := f.Int("ranks", 0, "cut for `N` ranks: into so many files (required)")
		return func(ctx context.Context, sys system, args []string) error {
			if *n < 1 || *n > maxFiles {
				return usageError{fmt.Errorf("-ranks %d: want a number from 1 to %d", *n, maxFiles)}
			}
			return reshard(ctx, sys, args[0], filepath.Clean(args[1]), *n)
		}
	},
}

// maxFiles is as many as their names have digits for.
const maxFiles = 99_999

func reshard(ctx context.Context, sys system, from, to string, n int) (err error) {
	if err := noCheckpoint(sys.fs, to); err != nil {
		return err
	}
	r, dir, err := open(ctx, sys, from)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	store, err := checkpoint.Open(sys.fs, to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if err := store.Lock(ctx); err != nil {
		return err
	}
	draft, err := store.Begin(r.Manifest().Step)
	if err != nil {
		return err
	}
	p := newProgress(sys.err, "resharding", dataBytes(r.Manifest()))
	m, err := rewrite(ctx, sys.fs, newCopier(r, p), draft.Dir(), n)
	p.end()
	var path string
	if err == nil {
		path, err = store.Commit(draft, m)
	}
	if err != nil {
		return errors.Join(err, store.Discard(draft))
	}
	fmt.Fprintf(sys.out, "%s: %s, %s, of %s\n", path, plural(len(m.Files), "file"), sizeText(fileBytes(m)), dir)
	return nil
}

// rewrite writes all that c reads from into n files in dir, fewer if there are fewer elements, and
// returns the manifest of the new checkpoint.
func rewrite(ctx context.Context, fsys checkpoint.FS, c *copier, dir string, n int) (*checkpoint.Manifest, error) {
	m := *c.reader.Manifest()
	var shards []*checkpoint.Shard
	for i, cuts := range divide(m.Tensors, n) {
		parts := make([]checkpoint.Part, len(cuts))
		for j, u := range cuts {
			parts[j] = u.part(c)
		}
		s, err := checkpoint.WriteShard(ctx, fsys, dir, checkpoint.FileName("shard", i, n), parts, nil)
		if err != nil {
			return nil, err
		}
		shards = append(shards, s)
	}
	var err error
	m.Files, m.Tensors, err = checkpoint.Merge(shards)
	return &m, err
}

// A cut is an interval of elements of a tensor.
type cut struct {
	tensor   *checkpoint.Tensor
	from, to int
}

// part returns what c copies of the tensor.
func (u cut) part(c *copier) checkpoint.Part {
	t := u.tensor
	return checkpoint.Part{
		Key: t.Key, DType: t.DType, Shape: t.Shape, Steps: t.Steps, Offset: u.from, Len: u.to - u.from,
		Write: func(ctx context.Context, w io.Writer) error { return c.copy(ctx, w, t, u.from, u.to, t.DType) },
	}
}

// divide puts tensors one behind the other, those of the largest elements first so that all of them
// are aligned in files, and cuts that into n ranges of as many bytes, give or take an element.
func divide(tensors []checkpoint.Tensor, n int) [][]cut {
	order := make([]*checkpoint.Tensor, len(tensors))
	var total int64
	for i := range tensors {
		order[i] = &tensors[i]
		total += tensorBytes(&tensors[i])
	}
	slices.SortStableFunc(order, func(t, u *checkpoint.Tensor) int { return u.DType.Size() - t.DType.Size() })
	end := func(i int) int64 { return total/int64(n)*int64(i+1) + total%int64(n)*int64(i+1)/int64(n) } // of range i
	ranges := make([][]cut, n)
	var begin int64 // of the tensor
	i := 0
	for _, t := range order {
		if t.Len() == 0 { // a file has no such thing, but the manifest does
			ranges[i] = append(ranges[i], cut{tensor: t})
		}
		size := int64(t.DType.Size())
		for from := 0; from < t.Len(); {
			// An element belongs to the range in which it begins.
			to := min(t.Len(), int(max(0, end(i)-begin+size-1)/size))
			if to > from {
				ranges[i] = append(ranges[i], cut{t, from, to})
				from = to
			}
			if from < t.Len() {
				i++
			}
		}
		begin += tensorBytes(t)
	}
	return ranges
}
