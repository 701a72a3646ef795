package checkpoint_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/checkpoint/crashfs"
	"github.com/gofsdp/gofsdp/internal/safetensors"
)

const (
	dir   = "jobs/ckpt" // neither of which exists at first
	world = 2
	size  = 40 // elements of the tensor
)

var weight = checkpoint.Key{Param: "w", Owner: checkpoint.Shared}

// values returns the tensor as it is after a step, as bytes.
func values(step int) []byte {
	var b []byte
	for i := range size {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(100*step+i)))
	}
	return b
}

// write writes the files of all ranks for a step, and returns the manifest.
func write(fsys checkpoint.FS, in string, step int) (*checkpoint.Manifest, error) {
	shards := make([]*checkpoint.Shard, world)
	for r := range shards {
		from, to := r*size/world, (r+1)*size/world
		part := checkpoint.Part{Key: weight, DType: safetensors.F32, Shape: []int{size}, Offset: from, Data: values(step)[4*from : 4*to]}
		var err error
		if shards[r], err = checkpoint.WriteShard(ctx, fsys, in, checkpoint.FileName("rank", r, world), []checkpoint.Part{part}, nil); err != nil {
			return nil, err
		}
	}
	files, tensors, err := checkpoint.Merge(shards)
	return &checkpoint.Manifest{Step: step, World: world, Files: files, Tensors: tensors}, err
}

// save does all of a save as a job does, from the lock on, and then keeps the last few. The path is
// not empty if Commit has returned without an error.
func save(fsys checkpoint.FS, dir string, step, keep int) (path string, err error) {
	s, err := checkpoint.Open(fsys, dir)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := s.Lock(ctx); err != nil {
		return "", err
	}
	d, err := s.Begin(step)
	if err != nil {
		return "", err
	}
	m, err := write(fsys, d.Dir(), step)
	if err == nil {
		path, err = s.Commit(d, m)
	}
	if err != nil {
		return "", errors.Join(err, s.Discard(d))
	}
	return path, s.Retain(keep, "", all)
}

func all(checkpoint.Entry) bool { return true }

// load returns the step of the latest checkpoint, every byte of which it has checked.
func load(fsys checkpoint.FS, dir string) (step int, err error) {
	path, err := checkpoint.Latest(ctx, fsys, dir)
	if err != nil {
		return 0, err
	}
	r, err := checkpoint.OpenReader(ctx, fsys, path)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if err := r.Verify(ctx, nil); err != nil {
		return 0, err
	}
	step = r.Manifest().Step
	got := make([]byte, 4*size)
	if err := r.Read(ctx, weight, 0, got, safetensors.F32); err != nil {
		return 0, err
	}
	if string(got) != string(values(step)) {
		return 0, fmt.Errorf("the values are not those of step %d", step)
	}
	return step, nil
}

// bases returns the names in a directory.
func bases(t require.TestingT, fsys checkpoint.FS, dir string) []string {
	entries, err := fsys.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func open(t require.TestingT, fsys checkpoint.FS) *checkpoint.Store {
	s, err := checkpoint.Open(fsys, dir)
	require.NoError(t, err)
	require.NoError(t, s.Lock(ctx))
	return s
}

func mustSave(t require.TestingT, fsys checkpoint.FS, step, keep int) string {
	path, err := save(fsys, dir, step, keep)
	require.NoError(t, err)
	return path
}

func requireLatest(t require.TestingT, fsys checkpoint.FS, step int) {
	got, err := load(fsys, dir)
	require.NoError(t, err)
	require.Equal(t, step, got)
}

// put makes a file, and the directories above it.
func put(t require.TestingT, fsys checkpoint.FS, path, text string) {
	for at := range path {
		if path[at] == '/' {
			if err := fsys.Mkdir(path[:at]); !errors.Is(err, fs.ErrExist) {
				require.NoError(t, err)
			}
		}
	}
	f, err := fsys.Create(path)
	require.NoError(t, err)
	_, err = f.Write([]byte(text))
	require.NoError(t, errors.Join(err, f.Close()))
}

func TestStore(t *testing.T) {
	for name, fsys := range map[string]checkpoint.FS{"OS": checkpoint.OS(), "crashfs": crashfs.New()} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "a", "b")
			if name == "crashfs" {
				dir = "a/b"
			}
			_, err := load(fsys, dir)
			require.ErrorIs(t, err, checkpoint.ErrNone)
			require.ErrorIs(t, err, fs.ErrNotExist)
			for step := 10; step <= 50; step += 10 {
				path, err := save(fsys, dir, step, 3)
				require.NoError(t, err)
				require.Equal(t, filepath.Join(dir, fmt.Sprintf("%06d-step-%d", step/10, step)), path)
				got, err := load(fsys, dir)
				require.NoError(t, err)
				require.Equal(t, step, got)
				got, err = load(fsys, path) // by its own path
				require.NoError(t, err)
				require.Equal(t, step, got)
			}
			require.Equal(t, []string{"000003-step-30", "000004-step-40", "000005-step-50", "lock"}, bases(t, fsys, dir))
			entries, err := checkpoint.List(ctx, fsys, dir)
			require.NoError(t, err)
			require.Equal(t, []checkpoint.Entry{
				{Path: filepath.Join(dir, "000003-step-30"), Sequence: 3, Step: 30},
				{Path: filepath.Join(dir, "000004-step-40"), Sequence: 4, Step: 40},
				{Path: filepath.Join(dir, "000005-step-50"), Sequence: 5, Step: 50},
			}, entries)
		})
	}
}

func TestDraft(t *testing.T) {
	f := crashfs.New()
	s := open(t, f)
	first, err := s.Begin(7)
	require.NoError(t, err)
	second, err := s.Begin(8) // leaves the first alone
	require.NoError(t, err)
	for _, d := range []*checkpoint.Draft{first, second} {
		require.Empty(t, bases(t, f, d.Dir()))
	}
	_, err = load(f, dir)
	require.ErrorIs(t, err, checkpoint.ErrNone)
	require.ErrorContains(t, err, filepath.Base(first.Dir())+": incomplete")

	m, err := write(f, first.Dir(), 7)
	require.NoError(t, err)
	_, err = s.Commit(second, m)
	require.ErrorContains(t, err, "its manifest says step 7")
	m.Step = 8
	_, err = s.Commit(second, m)
	require.ErrorIs(t, err, fs.ErrNotExist, "the files are not in its directory")
	require.ErrorContains(t, err, "rank-00000-of-00002.safetensors")
	m.Step = 7
	path, err := s.Commit(first, m)
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dir, "000001-step-7"), path)

	require.NoError(t, s.Discard(first), "it is committed")
	require.NoError(t, s.Discard(second))
	require.NoError(t, s.Discard(second))
	for _, d := range []*checkpoint.Draft{first, second} {
		_, err = s.Commit(d, m)
		require.ErrorContains(t, err, "it is not being written")
	}
	require.Equal(t, []string{"000001-step-7", "lock"}, bases(t, f, dir))
	requireLatest(t, f, 7)
}

func TestMisuse(t *testing.T) {
	f := crashfs.New()
	_, err := checkpoint.Open(f, "")
	require.Error(t, err)
	s, err := checkpoint.Open(f, dir)
	require.NoError(t, err)
	_, err = s.Begin(1)
	require.ErrorContains(t, err, "not locked")
	require.ErrorContains(t, s.Retain(1, "", all), "not locked")
	require.NoError(t, s.Lock(ctx))
	require.NoError(t, s.Lock(ctx), "it has it")
	_, err = s.Begin(-1)
	require.ErrorContains(t, err, "negative")
	require.Error(t, s.Retain(0, "", all))
	d, err := s.Begin(1)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	_, err = s.Commit(d, new(checkpoint.Manifest))
	require.Error(t, err)

	put(t, f, "file", "")
	_, err = checkpoint.Open(f, "file/ckpt")
	require.ErrorContains(t, err, "file")
	put(t, f, "whole/manifest.json", "")
	_, err = checkpoint.Open(f, "whole")
	require.ErrorContains(t, err, "whole is a checkpoint")
	require.Equal(t, []string{"manifest.json"}, bases(t, f, "whole"))
	put(t, f, fmt.Sprintf("%s/%06d-step-1", dir, math.MaxInt), "")
	require.NoError(t, s.Lock(ctx))
	_, err = s.Begin(1)
	require.ErrorContains(t, err, "a checkpoint has the greatest possible number")
}

// TestLeftovers checks that Begin removes what dead saves have left, and that what it cannot remove
// is in nobody's way.
func TestLeftovers(t *testing.T) {
	f := crashfs.New()
	for _, base := range []string{"000004-step-1.tmp-0123abcd", "000007-step-9.tmp-0123abcd"} {
		put(t, f, dir+"/"+base+"/x", "")
	}
	errBroken := errors.New("broken")
	s := open(t, f)
	f.Inject(crashfs.Fault{Err: errBroken, Forever: true, Only: func(o crashfs.Op) bool { return filepath.Base(o.Path) == "x" }})
	d, err := s.Begin(10)
	require.NoError(t, err)
	require.Len(t, bases(t, f, dir), 4, "with the lock and the draft")
	require.NoError(t, s.Discard(d))

	f.Inject(crashfs.Fault{Err: errBroken, Forever: true, Only: func(o crashfs.Op) bool { return o.Name == "mkdir" || o.Name == "remove" }})
	_, err = s.Begin(10)
	require.ErrorIs(t, err, errBroken)
	require.ErrorContains(t, err, "mkdir jobs/ckpt/000008-step-10.tmp-")
	require.ErrorContains(t, err, "remove jobs/ckpt/000004-step-1.tmp-0123abcd/x")

	f.Inject(crashfs.Fault{})
	d, err = s.Begin(10)
	require.NoError(t, err)
	require.Equal(t, []string{filepath.Base(d.Dir()), "lock"}, bases(t, f, dir))
	require.Regexp(t, `000008-step-10\.tmp-[0-9a-f]{8}$`, d.Dir())
}

// TestForeign checks that what has no name of ours is never touched, and that the number of a file
// with one is not used again.
func TestForeign(t *testing.T) {
	f := crashfs.New()
	foreign := []string{
		"000001-step-2", // a file
		"000009-step-1.tmp-0123abcd",
		"best/manifest.json",
		"000002-step-3.tmp-old/x",
		"000002-step-3.tmp-0123abcde/x",
		"000002-step-3-copy/x",
		"0000002-step-3/x",
		"2-step-3/x",
		"000002-step-03/x",
		"000002-step--3/x",
		"99999999999999999999-step-1/x",
		"tmp/x",
	}
	for _, path := range foreign {
		put(t, f, dir+"/"+path, "mine")
	}
	put(t, f, dir+"/000004-step-1.tmp-0123abcd/x", "left by a save")
	entries, err := checkpoint.List(ctx, f, dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.ErrorIs(t, entries[0].Err, checkpoint.ErrUnfinished)
	for step := range 3 {
		mustSave(t, f, step, 1)
	}
	for _, path := range foreign {
		h, err := f.Open(dir + "/" + path)
		require.NoError(t, err)
		require.NoError(t, h.Close())
	}
	require.Contains(t, bases(t, f, dir), "000012-step-2")
	require.Len(t, bases(t, f, dir), len(foreign)+2)
}

func TestOrder(t *testing.T) {
	f := crashfs.New()
	put(t, f, dir+"/999998-step-1/x", "")
	for _, step := range []int{5, 3, 4} { // a training may have gone back
		mustSave(t, f, step, 9)
		requireLatest(t, f, step)
	}
	entries, err := checkpoint.List(ctx, f, dir)
	require.NoError(t, err)
	var steps []int
	for _, e := range entries {
		steps = append(steps, e.Step)
	}
	require.Equal(t, []int{1, 5, 3, 4}, steps)
	require.Equal(t, 1000001, entries[3].Sequence)
}

// TestTorn takes checkpoints apart.
func TestTorn(t *testing.T) {
	file := func(path string, n int) string { return fmt.Sprintf("%s/rank-%05d-of-00002.safetensors", path, n) }
	for name, c := range map[string]struct {
		tear func(t *testing.T, f *crashfs.FS, path string)
		says string
	}{
		"no file": {func(t *testing.T, f *crashfs.FS, path string) {
			require.NoError(t, f.RemoveAll(file(path, 1)))
		}, "rank-00001"},
		"short file": {func(t *testing.T, f *crashfs.FS, path string) {
			require.NoError(t, f.RemoveAll(file(path, 0)))
			put(t, f, file(path, 0), "short")
		}, "rank-00000"},
		"no manifest": {func(t *testing.T, f *crashfs.FS, path string) {
			require.NoError(t, f.RemoveAll(path+"/manifest.json"))
		}, "manifest"},
		"damaged manifest": {func(t *testing.T, f *crashfs.FS, path string) {
			require.NoError(t, f.RemoveAll(path+"/manifest.json"))
			put(t, f, path+"/manifest.json", `{"format":1,"crc32c":"00000000","manifest":{}}`)
		}, "manifest"},
		"empty manifest": {func(t *testing.T, f *crashfs.FS, path string) {
			require.NoError(t, f.RemoveAll(path+"/manifest.json"))
			put(t, f, path+"/manifest.json", "")
		}, "manifest"},
		"empty directory": {func(t *testing.T, f *crashfs.FS, path string) {
			require.NoError(t, f.RemoveAll(path))
			require.NoError(t, f.Mkdir(path))
		}, "manifest"},
	} {
		t.Run(name, func(t *testing.T) {
			f := crashfs.New()
			var paths []string
			for step := 1; step <= 3; step++ {
				paths = append(paths, mustSave(t, f, step, 9))
			}
			c.tear(t, f, paths[2])
			requireLatest(t, f, 2)
			entries, err := checkpoint.List(ctx, f, dir)
			require.NoError(t, err)
			require.NoError(t, entries[1].Err)
			require.ErrorContains(t, entries[2].Err, c.says)
			_, err = checkpoint.Latest(ctx, f, paths[2])
			require.ErrorContains(t, err, paths[2])

			// It is neither counted nor removed.
			mustSave(t, f, 4, 2)
			require.Equal(t, []string{"000002-step-2", "000003-step-3", "000004-step-4", "lock"}, bases(t, f, dir))

			c.tear(t, f, paths[1])
			c.tear(t, f, dir+"/000004-step-4")
			_, err = load(f, dir)
			require.NotErrorIs(t, err, checkpoint.ErrNone, "a job would begin anew")
			for _, want := range []string{dir, "000002-step-2", "000003-step-3", "000004-step-4", c.says} {
				require.ErrorContains(t, err, want)
			}
		})
	}
}

// TestUnjudged checks that a training does not go on from an older checkpoint because the latest
// could not be looked at.
func TestUnjudged(t *testing.T) {
	f := crashfs.New()
	mustSave(t, f, 1, 9)
	path := mustSave(t, f, 2, 9)
	for _, op := range []string{"open", "read", "size"} {
		f.Inject(crashfs.Fault{Err: fs.ErrPermission, Only: func(o crashfs.Op) bool {
			return o == crashfs.Op{Name: op, Path: filepath.Join(path, "manifest.json")}
		}})
		_, err := checkpoint.Latest(ctx, f, dir)
		require.ErrorIs(t, err, fs.ErrPermission)
		require.NotErrorIs(t, err, checkpoint.ErrNone)
		require.ErrorContains(t, err, path)
	}
	for _, in := range []string{dir, dir + "/manifest.json"} {
		f.Inject(crashfs.Fault{Err: fs.ErrPermission, Only: func(o crashfs.Op) bool { return o.Path == filepath.Clean(in) || o.Path == in }})
		_, err := checkpoint.Latest(ctx, f, dir)
		require.ErrorIs(t, err, fs.ErrPermission)
	}
	require.NoError(t, f.RemoveAll(path+"/manifest.json"))
	put(t, f, path+"/manifest.json", `{"format":99,"crc32c":"00000000","manifest":{}}`)
	_, err := checkpoint.Latest(ctx, f, dir)
	require.ErrorIs(t, err, checkpoint.ErrFormat)
	require.ErrorContains(t, err, path)
	mustSave(t, f, 3, 1)
	require.Equal(t, []string{"000002-step-2", "000003-step-3", "lock"}, bases(t, f, dir), "it may be of a later version of us")
}

// busy is an FS in which a job goes on saving right after the directory has been read once.
type busy struct {
	*crashfs.FS
	meanwhile func()
}

func (b *busy) ReadDir(dir string) ([]fs.DirEntry, error) {
	entries, err := b.FS.ReadDir(dir)
	if b.meanwhile != nil {
		f := b.meanwhile
		b.meanwhile = nil
		f()
	}
	return entries, err
}

func TestLatestWhileAnotherSaves(t *testing.T) {
	f := crashfs.New()
	mustSave(t, f, 1, 1)
	requireLatest(t, &busy{f, func() { mustSave(t, f, 2, 1); mustSave(t, f, 3, 1) }}, 3)
	g := crashfs.New()
	requireLatest(t, &busy{g, func() { mustSave(t, g, 1, 1) }}, 1)
}

// TestJunk checks that a directory of junk is listed without a panic, is saved to nevertheless, and
// stays as it is.
func TestJunk(t *testing.T) {
	whole := crashfs.New()
	mustSave(t, whole, 1, 1)
	h, err := whole.Open(dir + "/000001-step-1/manifest.json")
	require.NoError(t, err)
	manifest := make([]byte, 4096)
	n, _ := h.ReadAt(manifest, 0)

	rapid.Check(t, func(t *rapid.T) {
		f := crashfs.New()
		put(t, f, dir+"/x", "")
		base := rapid.OneOf(
			rapid.StringMatching(`[0-9]{1,7}-step-[0-9]{1,3}(\.tmp-[0-9a-f]{7,9})?`),
			rapid.StringMatching(`[a-z0-9.~\\ -]{1,12}`),
			rapid.SampledFrom([]string{"lock", "manifest.json", "000001-step-1", "..."}),
		)
		content := rapid.OneOf(
			rapid.String(),
			rapid.Just(string(manifest[:n])),
			rapid.Map(rapid.IntRange(0, n), func(k int) string { return string(manifest[:k]) }),
			rapid.Just(`{"format":2}`),
		)
		made := map[string]bool{"x": true}
		for range rapid.IntRange(0, 8).Draw(t, "entries") {
			b := base.Draw(t, "base")
			if made[b] || filepath.Clean(b) != b || b == "." || b == ".." || b == "lock" {
				continue
			}
			made[b] = true
			path := dir + "/" + b
			switch rapid.IntRange(0, 2).Draw(t, "kind") {
			case 0:
				put(t, f, path, content.Draw(t, "content"))
			case 1:
				put(t, f, path+"/manifest.json", content.Draw(t, "content"))
			case 2:
				put(t, f, path+"/manifest.json/x", "")
			}
		}
		entries, err := checkpoint.List(ctx, f, dir)
		require.NoError(t, err)
		for _, e := range entries {
			require.Error(t, e.Err)
		}
		_, err = checkpoint.Latest(ctx, f, dir)
		require.Error(t, err)
		if h, err := f.Open(dir + "/manifest.json"); err == nil {
			require.NoError(t, h.Close())
			_, err = checkpoint.Open(f, dir)
			require.ErrorContains(t, err, "is a checkpoint")
			return
		}
		path := mustSave(t, f, 5, 1)
		require.Contains(t, bases(t, f, dir), filepath.Base(path))
		for b := range made {
			if len(entries) == 0 {
				require.Contains(t, bases(t, f, dir), b)
			}
		}
	})
}
