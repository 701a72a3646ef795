package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/checkpoint/crashfs"
	"github.com/gofsdp/gofsdp/internal/safetensors"
	"github.com/gofsdp/gofsdp/internal/text"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fsdpckpt runs a command line and returns the exit status and what it printed.
func fsdpckpt(ctx context.Context, fsys checkpoint.FS, args ...string) (status int, out, err string) {
	var o, e bytes.Buffer
	status = run(ctx, args, system{fs: fsys, out: &o, err: &e, zone: time.UTC})
	return status, o.String(), e.String()
}

// succeed runs a command line that must succeed and returns what it printed.
func succeed(t require.TestingT, fsys checkpoint.FS, args ...string) string {
	status, out, err := fsdpckpt(context.Background(), fsys, args...)
	require.Zero(t, status, "%v: %s", args, err)
	require.Empty(t, err)
	return out
}

// floats returns the bytes of n elements of a type, which are a function of the seed.
func floats(dtype safetensors.DType, n int, seed uint64) []byte {
	rng := rand.New(rand.NewPCG(seed, 0))
	wide := make([]byte, 0, 8*n)
	for range n {
		wide = binary.LittleEndian.AppendUint64(wide, math.Float64bits(rng.NormFloat64()))
	}
	data := make([]byte, n*dtype.Size())
	if err := safetensors.Convert(data, dtype, wide, safetensors.F64); err != nil {
		panic(err)
	}
	return data
}

// save writes a checkpoint whose pieces are parts[rank], and returns its path.
func save(t require.TestingT, fsys checkpoint.FS, dir string, step int, meta string, parts [][]checkpoint.Part) string {
	store, err := checkpoint.Open(fsys, dir)
	require.NoError(t, err)
	require.NoError(t, store.Lock(context.Background()))
	draft, err := store.Begin(step)
	require.NoError(t, err)
	shards := make([]*checkpoint.Shard, len(parts))
	for r, list := range parts {
		name := checkpoint.FileName("rank", r, len(parts))
		shards[r], err = checkpoint.WriteShard(context.Background(), fsys, draft.Dir(), name, list, nil)
		require.NoError(t, err)
	}
	m := &checkpoint.Manifest{Step: step, World: len(parts)}
	require.NoError(t, json.Unmarshal([]byte(meta), &m.Meta))
	m.Files, m.Tensors, err = checkpoint.Merge(shards)
	require.NoError(t, err)
	path, err := store.Commit(draft, m)
	require.NoError(t, err)
	require.NoError(t, store.Close())
	return path
}

// scatter cuts whole tensors evenly over ranks. A tensor with an owner goes to that rank.
func scatter(whole []checkpoint.Part, ranks int) [][]checkpoint.Part {
	parts := make([][]checkpoint.Part, ranks)
	for _, p := range whole {
		size := p.DType.Size()
		n := len(p.Data) / size
		if p.Owner != checkpoint.Shared {
			parts[p.Owner] = append(parts[p.Owner], p)
			continue
		}
		for r := range ranks {
			from, to := n*r/ranks, n*(r+1)/ranks
			q := p
			q.Offset, q.Data = from, p.Data[from*size:to*size]
			parts[r] = append(parts[r], q)
		}
	}
	return parts
}

func part(param, entry string, owner int, dtype safetensors.DType, steps int, seed uint64, shape ...int) checkpoint.Part {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return checkpoint.Part{
		Key: checkpoint.Key{Param: param, Entry: entry, Owner: owner}, DType: dtype, Shape: shape, Steps: steps, Data: floats(dtype, n, seed),
	}
}

// smallMeta is as fsdp.Save writes it.
const smallMeta = `{"seed":5,"forwards":40,"optimizer_steps":20,"optimizer_groups":[{"kind":"AdamW","lr":0.001,"lr_scale":1,"weight_decay":0.1,` +
	`"betas":[0.9,0.95],"eps":1e-8,"params":["w","up@0","up@2"]}],"extra":{"data":{"epoch":1,"next":640},` +
	`"history":[3.3012,3.1127,2.9855,2.8713,2.7702,2.6911,2.6105,2.5498,2.4883]},"rank_extra":[{"position":0},{"position":9},{}],` +
	`"buffers":["norm.mean"],"config":["Config.Seed 5"]}`

// small is the state of a training on 3 ranks: a weight, a buffer, an expert of two groups, and the
// state of an optimizer.
func small() []checkpoint.Part {
	list := []checkpoint.Part{
		part("w", "", checkpoint.Shared, safetensors.F32, 0, 1, 4, 5),
		part("w", "exp_avg", checkpoint.Shared, safetensors.F32, 20, 2, 4, 5),
		part("w", "exp_avg_sq", checkpoint.Shared, safetensors.F32, 20, 3, 4, 5),
		part("empty", "", checkpoint.Shared, safetensors.F32, 0, 4, 0, 7),
	}
	for r := range 3 {
		list = append(list, part("norm.mean", "", r, safetensors.F32, 0, uint64(10+r), 3))
	}
	for _, r := range []int{0, 2} {
		list = append(list, part("up", "", r, safetensors.F32, 0, uint64(20+r), 6), part("up", "exp_avg", r, safetensors.F32, 7, uint64(30+r), 6))
	}
	return list
}

func TestList(t *testing.T) {
	dir := t.TempDir()
	var paths []string
	for i, ranks := range []int{3, 3, 4} {
		paths = append(paths, save(t, checkpoint.OS(), dir, 10*(i+1), smallMeta, scatter(small(), ranks)))
	}
	require.NoError(t, os.Truncate(filepath.Join(paths[1], "rank-00001-of-00003.safetensors"), 100))
	draft := filepath.Join(dir, "000004-step-40.tmp-0123abcd")
	require.NoError(t, os.Mkdir(draft, 0o755))
	for i, path := range append(paths, draft) {
		when := time.Date(2026, 1, 2, 3, 4, i, 0, time.UTC)
		require.NoError(t, os.Chtimes(path, when, when))
	}
	require.Equal(t, strings.Join([]string{
		"CHECKPOINT                   STEP  RANKS  FILES  SIZE     WHEN",
		"000001-step-10               10    3      3      1.6 KiB  2026-01-02 03:04:00",
		"000002-step-20               20    -      -      -        2026-01-02 03:04:01",
		"000003-step-30               30    4      4      1.8 KiB  2026-01-02 03:04:02",
		"000004-step-40.tmp-0123abcd  40    -      -      -        2026-01-02 03:04:03",
		"",
		"000002-step-20 is skipped:",
		"  rank-00001-of-00003.safetensors: damaged: the file has 100 bytes, want 416",
		"",
		"000004-step-40.tmp-0123abcd is skipped:",
		"  " + checkpoint.ErrUnfinished.Error(),
		"",
	}, "\n"), succeed(t, checkpoint.OS(), "list", dir))

	require.NoError(t, os.Remove(filepath.Join(paths[0], checkpoint.ManifestName)))
	require.Regexp(t, `\n000001-step-10 is skipped:\n  open manifest.json: .*\n`, succeed(t, checkpoint.OS(), "list", dir))

	status, _, msg := fsdpckpt(context.Background(), checkpoint.OS(), "list", t.TempDir())
	require.Equal(t, exitError, status)
	require.Contains(t, msg, "has no checkpoints")
}

func TestInspect(t *testing.T) {
	fsys := crashfs.New()
	save(t, fsys, "ckpt", 10, smallMeta, scatter(small()[:1], 1))
	save(t, fsys, "ckpt", 20, smallMeta, scatter(small(), 3))
	summary := []string{
		filepath.Join("ckpt", "000002-step-20"),
		"",
		"step        20",
		"ranks       3",
		"seed        5",
		"passes      40",
		"parameters  4 tensors, 32 elements of F32, 128 B",
		"buffers     3 tensors, 9 elements of F32, 36 B, different on every rank",
		"optimizer   20 steps, 4 tensors, 52 elements of F32, 208 B",
		"settings    AdamW, learning rate 0.001, weight decay 0.1, LRScale 1, Beta1 0.9,",
		"    Beta2 0.95, Eps 1e-08: 3 parameters",
		"entries     exp_avg, exp_avg_sq",
		`extra       data {"epoch":1,"next":640}`,
		"extra       history [3.3012,3.1127,2.9855,2.8713,2.7702,2.69… (64 B)",
		"rank extra  position of 2 ranks",
		"",
		"FILE  NAME                             PIECES  SIZE",
		"0     rank-00000-of-00003.safetensors  6       580 B",
		"1     rank-00001-of-00003.safetensors  4       416 B",
		"2     rank-00002-of-00003.safetensors  6       592 B",
		"",
	}
	require.Equal(t, strings.Join(summary, "\n"), succeed(t, fsys, "inspect", "ckpt"))
	require.Equal(t, strings.Join(append(summary,
		"TENSOR        TYPE  SHAPE  SIZE  UPDATES  PIECES",
		"empty         F32   [0 7]  0 B   -        -",
		"norm.mean@0   F32   [3]    12 B  -        0[0:3]",
		"norm.mean@1   F32   [3]    12 B  -        1[0:3]",
		"norm.mean@2   F32   [3]    12 B  -        2[0:3]",
		"up@0          F32   [6]    24 B  -        0[0:6]",
		"up@2          F32   [6]    24 B  -        2[0:6]",
		"exp_avg:up@0  F32   [6]    24 B  7        0[0:6]",
		"exp_avg:up@2  F32   [6]    24 B  7        2[0:6]",
		"w             F32   [4 5]  80 B  -        0[0:6] 1[6:13] 2[13:20]",
		"exp_avg:w     F32   [4 5]  80 B  20       0[0:6] 1[6:13] 2[13:20]",
		"exp_avg_sq:w  F32   [4 5]  80 B  20       0[0:6] 1[6:13] 2[13:20]",
		"",
	), "\n"), succeed(t, fsys, "inspect", "ckpt", "-tensors"))
}

func TestInspectJSON(t *testing.T) {
	fsys := crashfs.New()
	path := save(t, fsys, "ckpt", 20, smallMeta, scatter(small(), 3))
	var c checkpointJSON
	text := succeed(t, fsys, "inspect", "-json", path)
	require.NotContains(t, text, `"tensors"`)
	require.NoError(t, json.Unmarshal([]byte(succeed(t, fsys, "inspect", "-json", "-tensors", path)), &c))
	require.Equal(t, path, c.Path)
	require.Equal(t, []int{20, 3, 3, 11}, []int{c.Step, c.Ranks, len(c.Files), len(c.Tensors)})
	require.JSONEq(t, `{"epoch":1,"next":640}`, string(c.Extra["data"]))
	require.EqualValues(t, 5, *c.Seed)
	require.Equal(t, []string{"w", "up@0", "up@2"}, c.OptimizerGroups[0].Params)
	owner := 1
	require.Equal(t, tensorJSON{
		Name: "norm.mean@1", Param: "norm.mean", Owner: &owner, Buffer: true, DType: "F32", Shape: []int{3}, Size: 12,
		Pieces: []pieceJSON{{File: "rank-00001-of-00003.safetensors", Len: 3}},
	}, c.Tensors[2])
	require.Equal(t, tensorJSON{
		Name: "exp_avg:w", Param: "w", Entry: "exp_avg", DType: "F32", Shape: []int{4, 5}, Size: 80, Updates: 20,
		Pieces: []pieceJSON{
			{File: "rank-00000-of-00003.safetensors", Len: 6}, {File: "rank-00001-of-00003.safetensors", Offset: 6, Len: 7},
			{File: "rank-00002-of-00003.safetensors", Offset: 13, Len: 7},
		},
	}, c.Tensors[9])
}

// flipped is a file system in which one byte of a file reads as another.
type flipped struct {
	checkpoint.FS
	path string
	at   int64
}

func (f flipped) Open(path string) (checkpoint.Handle, error) {
	h, err := f.FS.Open(path)
	if err != nil || path != f.path {
		return h, err
	}
	return flippedHandle{h, f.at}, nil
}

type flippedHandle struct {
	checkpoint.Handle
	at int64
}

func (h flippedHandle) ReadAt(p []byte, off int64) (int, error) {
	n, err := h.Handle.ReadAt(p, off)
	if i := h.at - off; i >= 0 && i < int64(n) {
		p[i] ^= 0x10
	}
	return n, err
}

// TestVerifyFindsEveryByte changes every byte of a checkpoint in turn.
func TestVerifyFindsEveryByte(t *testing.T) {
	fsys := crashfs.New()
	path := save(t, fsys, "ckpt", 20, smallMeta, scatter(small(), 3))
	files, err := fsys.ReadDir(path)
	require.NoError(t, err)
	require.Len(t, files, 4)
	for _, file := range files {
		name := filepath.Join(path, file.Name())
		for at := range contents(t, fsys, name) {
			status, out, msg := fsdpckpt(context.Background(), flipped{fsys, name, int64(at)}, "verify", path)
			require.Equal(t, exitError, status, "byte %d of %s", at, name)
			require.Contains(t, out+msg, strings.TrimSuffix(file.Name(), ".json"))
		}
	}
}

func TestVerify(t *testing.T) {
	dir := t.TempDir()
	path := save(t, checkpoint.OS(), dir, 20, smallMeta, scatter(small(), 3))
	require.Equal(t, path+" is whole: 1.6 KiB in 3 files\n", succeed(t, checkpoint.OS(), "verify", dir))

	// Two damages are two lines, each with the file, the tensor and the bytes.
	for _, rank := range []int{0, 2} {
		name := filepath.Join(path, fmt.Sprintf("rank-%05d-of-00003.safetensors", rank))
		data, err := os.ReadFile(name)
		require.NoError(t, err)
		data[len(data)-1]++
		require.NoError(t, os.WriteFile(name, data, 0o644))
	}
	status, out, msg := fsdpckpt(context.Background(), checkpoint.OS(), "verify", path)
	require.Equal(t, exitError, status)
	require.Regexp(t, regexp.MustCompile(`^rank-00000-of-00003.safetensors: \S+\[\d+:\d+\] in bytes \[\d+:580\]: damaged: .*\n`+
		`rank-00002-of-00003.safetensors: \S+\[\d+:\d+\] in bytes \[\d+:592\]: damaged: .*\n$`), out)
	require.Equal(t, "fsdpckpt verify: "+path+" is damaged\n", msg)
}

// drawParts draws whole tensors and how they are cut over ranks.
func drawParts(t *rapid.T) (whole []checkpoint.Part, ranks int) {
	ranks = rapid.IntRange(1, 5).Draw(t, "ranks")
	dtypes := []safetensors.DType{safetensors.F64, safetensors.F32, safetensors.F16, safetensors.BF16}
	for i := range rapid.IntRange(0, 5).Draw(t, "parameters") {
		shape := rapid.SliceOfN(rapid.IntRange(0, 7), 0, 3).Draw(t, "shape")
		if rapid.IntRange(0, 9).Draw(t, "large") == 9 {
			shape = []int{2, checkpoint.ChunkBytes/4 + 5}
		}
		dtype := rapid.SampledFrom(dtypes).Draw(t, "type")
		owner := max(checkpoint.Shared, rapid.IntRange(-ranks, ranks-1).Draw(t, "owner"))
		p := part(fmt.Sprintf("p%d", i), "", owner, dtype, 0, uint64(i), shape...)
		whole = append(whole, p)
		if rapid.Bool().Draw(t, "stepped") {
			whole = append(whole, part(p.Param, "exp_avg", owner, rapid.SampledFrom(dtypes).Draw(t, "type of the state"), 3, uint64(100+i), shape...))
		}
	}
	return whole, ranks
}

// contents returns the bytes of a file.
func contents(t require.TestingT, fsys checkpoint.FS, path string) []byte {
	f, err := fsys.Open(path)
	require.NoError(t, err)
	size, err := f.Size()
	require.NoError(t, err)
	all := make([]byte, size)
	_, err = f.ReadAt(all, 0)
	require.NoError(t, errors.Join(err, f.Close()))
	return all
}

// dataOf returns the bytes of a file by name of tensor, as an independent reader of the format
// finds them, and the metadata.
func dataOf(t require.TestingT, fsys checkpoint.FS, path string) (data map[string][]byte, types map[string]string, metadata map[string]string) {
	all := contents(t, fsys, path)
	n := 8 + binary.LittleEndian.Uint64(all)
	var header map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(all[8:n], &header))
	data, types = make(map[string][]byte), make(map[string]string)
	for name, text := range header {
		if name == "__metadata__" {
			require.NoError(t, json.Unmarshal(text, &metadata))
			continue
		}
		var tensor struct {
			DType   string
			Shape   []int
			Offsets [2]uint64 `json:"data_offsets"`
		}
		require.NoError(t, json.Unmarshal(text, &tensor))
		data[name] = all[n+tensor.Offsets[0] : n+tensor.Offsets[1]]
		types[name] = fmt.Sprint(tensor.DType, tensor.Shape)
	}
	return data, types, metadata
}

func TestMergeAny(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		whole, ranks := drawParts(t)
		fsys := crashfs.New()
		save(t, fsys, "ckpt", 1, `{"optimizer_steps":4}`, scatter(whole, ranks))
		args := []string{"merge", "ckpt", "out.safetensors"}
		optimizer := rapid.Bool().Draw(t, "optimizer")
		if optimizer {
			args = append(args, "-optimizer")
		}
		as := rapid.SampledFrom([]safetensors.DType{"", safetensors.F64, safetensors.F32, safetensors.F16, safetensors.BF16}).Draw(t, "as")
		if as != "" {
			args = append(args, "-dtype", strings.ToLower(string(as)))
		}
		prefix := rapid.SampledFrom([]string{"", "model."}).Draw(t, "prefix")
		args = append(args, "-prefix", prefix)
		succeed(t, fsys, args...)

		data, types, metadata := dataOf(t, fsys, "out.safetensors")
		require.Equal(t, "pt", metadata["format"])
		require.Equal(t, optimizer, metadata["gofsdp.optimizer"] != "")
		n := 0
		for _, p := range whole {
			if p.Entry != "" && !optimizer {
				continue
			}
			n++
			want, dtype := p.Data, p.DType
			if as != "" && p.Entry == "" {
				dtype, want = as, make([]byte, len(p.Data)/p.DType.Size()*as.Size())
				require.NoError(t, safetensors.Convert(want, as, p.Data, p.DType))
			}
			k := p.Key
			k.Param = prefix + k.Param
			require.Equal(t, fmt.Sprint(dtype, p.Shape), types[k.Name()])
			require.True(t, bytes.Equal(want, data[k.Name()]), k.Name())
		}
		require.Len(t, data, n)
	})
}

func TestMerge(t *testing.T) {
	fsys := crashfs.New()
	path := save(t, fsys, "ckpt", 20, smallMeta, scatter(small(), 3))
	require.Equal(t, "out.safetensors: 9 tensors, 1.2 KiB, of "+path+"\n", succeed(t, fsys, "merge", "-optimizer", "-prefix", "m.", path, "out.safetensors"))
	data, _, metadata := dataOf(t, fsys, "out.safetensors")
	require.Equal(t, map[string]string{
		"format": "pt", "gofsdp.optimizer": `{"steps":20,"updates":{"m.up@0":7,"m.up@2":7,"m.w":20},"groups":[{"kind":"AdamW","lr":0.001,` +
			`"lr_scale":1,"weight_decay":0.1,"betas":[0.9,0.95],"eps":1e-8,"params":["m.w","m.up@0","m.up@2"]}]}`,
	}, metadata)
	require.Equal(t, floats(safetensors.F32, 3, 10), data["m.norm.mean"], "buffers are rank 0's")
	require.Contains(t, data, "exp_avg:m.up@2")
	require.Contains(t, data, "m.empty")

	// It takes the place of a file that was there. Without flags there is no state of the optimizer.
	succeed(t, fsys, "merge", "ckpt", "out.safetensors")
	data, _, metadata = dataOf(t, fsys, "out.safetensors")
	require.Len(t, data, 5)
	require.Equal(t, map[string]string{"format": "pt"}, metadata)
}

// TestManyFiles inspects a checkpoint of more files than a directory holds.
func TestManyFiles(t *testing.T) {
	fsys := crashfs.New()
	whole := []checkpoint.Part{{Key: checkpoint.Key{Param: "w", Owner: checkpoint.Shared}, DType: "F32", Shape: []int{1002}, Data: make([]byte, 4*1002)}}
	save(t, fsys, "ckpt", 20, smallMeta, scatter(whole, 1001))
	succeed(t, fsys, "verify", "ckpt")
	out := succeed(t, fsys, "inspect", "ckpt")
	require.Contains(t, out, "\n999   00000/rank-00999-of-01001.safetensors  1 ")
	require.Contains(t, out, "\n1000  00001/rank-01000-of-01001.safetensors  1 ")
}

// merging is a command that writes.
var merging = []string{"merge", "ckpt", "out.safetensors", "-optimizer", "-dtype", "bf16"}

// requireNothing requires that a failed merge left nothing behind and kept the file that was there.
func requireNothing(t *testing.T, fsys checkpoint.FS) {
	require.Equal(t, "old", string(contents(t, fsys, "out.safetensors")))
	top, err := fsys.ReadDir(".")
	require.NoError(t, err)
	for _, e := range top {
		require.Contains(t, []string{"ckpt", "out.safetensors"}, e.Name())
	}
}

// before is a file system, all of it on disk, before a merge.
func before(t *testing.T) *crashfs.FS {
	fsys := crashfs.New()
	save(t, fsys, "ckpt", 20, smallMeta, scatter(small(), 3))
	require.NoError(t, replace(fsys, "out.safetensors", func(w io.Writer) error {
		_, err := w.Write([]byte("old"))
		return err
	}))
	return fsys
}

// interrupted merges with a file system that calls at before its k-th operation. If at
// returns an error, that ends the context, otherwise the operation fails.
func interrupted(t *testing.T, k int, at func() error) (fsys *crashfs.FS, status int, out, msg string, reached bool) {
	ctx, cancel := context.WithCancelCause(context.Background())
	t.Cleanup(func() { cancel(nil) })
	fsys = before(t)
	n := 0
	fault := crashfs.Fault{Err: errors.New("disk full"), Only: func(crashfs.Op) bool {
		n++
		if n-1 != k {
			return false
		}
		reached = true
		if err := at(); err != nil {
			cancel(err)
			return false
		}
		return true
	}}
	fsys.Inject(fault)
	status, out, msg = fsdpckpt(ctx, fsys, merging...)
	fsys.Inject(crashfs.Fault{})
	return fsys, status, out, msg, reached
}

// TestFailure has every operation of the file system fail in turn.
func TestFailure(t *testing.T) {
	for k := 0; ; k++ {
		fsys, status, out, msg, reached := interrupted(t, k, func() error { return nil })
		if !reached {
			require.Greater(t, k, 30)
			require.Zero(t, status, msg)
			return
		}
		if status == 0 { // what failed was not needed, such as looking whether there is a checkpoint
			continue
		}
		require.Contains(t, msg, "disk full", "operation %d", k)
		if out == "" && !strings.Contains(msg, "power failure may") { // else it is done
			requireNothing(t, fsys)
		}
	}
}

// TestPowerFailure has the machine fail before every operation in turn, and after the last. There
// is what was there before, or all of the new; and the new, once the command has succeeded.
func TestPowerFailure(t *testing.T) {
	for k, status := 0, exitError; status != 0; k++ {
		fsys := before(t)
		fsys.Kill(k)
		status, _, _ = fsdpckpt(context.Background(), fsys, merging...)
		for seed := range uint64(6) {
			left := fsys.Crash(seed)
			done := len(contents(t, left, "out.safetensors")) > len("old")
			if done {
				data, _, _ := dataOf(t, left, "out.safetensors")
				require.Len(t, data, 9)
				require.Equal(t, floats(safetensors.F32, 20, 2), data["exp_avg:w"])
			} else {
				require.Equal(t, "old", string(contents(t, left, "out.safetensors")))
			}
			require.True(t, done || status != 0, "operation %d, seed %d", k, seed)
		}
	}
}

// TestInterrupt ends the context at every operation in turn, as Ctrl-C does.
func TestInterrupt(t *testing.T) {
	stop := errors.New("interrupt signal received")
	failed := 0
	for k := 0; ; k++ {
		fsys, status, out, msg, reached := interrupted(t, k, func() error { return stop })
		if !reached {
			require.Greater(t, failed, 10)
			break
		}
		if status == 0 { // so late that it was complete
			continue
		}
		failed++
		require.Equal(t, exitError, status)
		require.Empty(t, out)
		require.Regexp(t, stop.Error()+"|"+context.Canceled.Error(), msg, "operation %d", k)
		requireNothing(t, fsys)
	}
	fsys := crashfs.New()
	save(t, fsys, "ckpt", 20, smallMeta, scatter(small(), 3))
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(stop)
	for _, name := range []string{"verify", "list"} {
		status, out, msg := fsdpckpt(ctx, fsys, name, "ckpt")
		require.Equal(t, exitError, status)
		require.Empty(t, out)
		require.Regexp(t, "^fsdpckpt "+name+": .*interrupt signal received\n$", msg)
	}
}

// TestDamageIsNotCopied changes a byte of the data.
func TestDamageIsNotCopied(t *testing.T) {
	t.Chdir(t.TempDir())
	path := save(t, checkpoint.OS(), "ckpt", 20, smallMeta, scatter(small(), 3))
	file := filepath.Join(path, "rank-00001-of-00003.safetensors")
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	data[len(data)-13]++ // before the buffer
	require.NoError(t, os.WriteFile(file, data, 0o644))
	require.NoError(t, os.WriteFile("out.safetensors", []byte("old"), 0o644))
	status, _, msg := fsdpckpt(context.Background(), checkpoint.OS(), merging...)
	require.Equal(t, exitError, status)
	require.Regexp(t, `rank-00001-of-00003.safetensors: exp_avg_sq:w\[6:13\] in bytes \[376:404\]: damaged`, msg)
	requireNothing(t, checkpoint.OS())
}

// TestMemory rewrites far more data than the memory that it takes.
func TestMemory(t *testing.T) {
	t.Chdir(t.TempDir())
	const n = 6 << 20
	whole := checkpoint.Part{Key: checkpoint.Key{Param: "w", Owner: checkpoint.Shared}, DType: safetensors.F32, Shape: []int{n}, Data: make([]byte, 4*n)}
	save(t, checkpoint.OS(), "ckpt", 1, `{}`, scatter([]checkpoint.Part{whole}, 2))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	succeed(t, checkpoint.OS(), "merge", "ckpt", "out.safetensors", "-dtype", "f64")
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(4*n)) // the race detector empties pools at random
}

// TestUsage checks command lines, and what is refused before anything is done.
func TestUsage(t *testing.T) {
	fsys := crashfs.New()
	path := save(t, fsys, "ckpt", 20, smallMeta, scatter(small(), 3))
	floatless := part("count", "", checkpoint.Shared, "F32", 0, 1, 2)
	floatless.DType = "I32"
	save(t, fsys, "ints", 1, `{}`, [][]checkpoint.Part{{floatless}})
	save(t, fsys, "odd", 1, `{"extra":7}`, [][]checkpoint.Part{{floatless}})
	for _, c := range []struct {
		line   string
		status int
		want   string
	}{
		{"", exitUsage, "Fsdpckpt inspects checkpoints"},
		{"look ckpt", exitUsage, `unknown command "look"`},
		{"list", exitUsage, "got 0 arguments, want DIR\nusage: fsdpckpt list DIR\n"},
		{"list ckpt more", exitUsage, "got 2 arguments, want DIR"},
		{"merge ckpt", exitUsage, "got 1 argument, want PATH OUT.safetensors\nusage: fsdpckpt merge PATH OUT.safetensors [flags]\n"},
		{"merge ckpt out -dtype f8", exitUsage, "want bf16, f16, f32 or f64"},
		{"merge ckpt out -fast", exitUsage, "flag provided but not defined: -fast"},
		{"inspect nowhere", exitError, "no whole checkpoint in nowhere"},
		{"verify nowhere", exitError, "no whole checkpoint in nowhere"},
		{"list nowhere", exitError, "nowhere"},
		{"inspect odd", exitError, "the manifest's record of the training is invalid"},
		{"merge ints out -dtype f32", exitError, "count is I32, which -dtype cannot convert"},
		{"merge ints out -optimizer", exitError, "-optimizer: the checkpoint has no optimizer state"},
		{"merge ckpt " + path + "/out", exitError, "is a checkpoint: write the output elsewhere"},
		{"merge ckpt nowhere/out", exitError, "nowhere"},
		{"merge ckpt ckpt", exitError, "ckpt was not written: "},
	} {
		status, out, msg := fsdpckpt(context.Background(), fsys, strings.Fields(c.line)...)
		require.Equal(t, c.status, status, c.line)
		require.Contains(t, filepath.ToSlash(msg), filepath.ToSlash(c.want), c.line)
		require.Empty(t, out, c.line)
	}
	top, err := fsys.ReadDir(".")
	require.NoError(t, err)
	require.Len(t, top, 3, "nothing was written")
	succeed(t, fsys, "merge", "ints", "out")
}

// TestHelp requires that every command teaches itself.
func TestHelp(t *testing.T) {
	all := succeed(t, nil, "-h")
	for _, c := range commands {
		require.Contains(t, all, "fsdpckpt "+c.name+" "+c.args)
		help := succeed(t, nil, c.name, "-h")
		require.Contains(t, help, "usage: fsdpckpt "+c.name+" "+c.args)
		require.Empty(t, text.Wider(all+help, 80))
	}
}

// TestBuffers requires that only what ranks have of their own, and the model calls a buffer, is
// one.
func TestBuffers(t *testing.T) {
	a, err := readAbout(&checkpoint.Manifest{Meta: map[string]json.RawMessage{"buffers": json.RawMessage(`["a"]`)}})
	require.NoError(t, err)
	require.True(t, a.isBuffer(checkpoint.Key{Param: "a", Owner: 2}))
	require.False(t, a.isBuffer(checkpoint.Key{Param: "a", Owner: checkpoint.Shared}))
	require.False(t, a.isBuffer(checkpoint.Key{Param: "a", Entry: "exp_avg", Owner: 2}))
	require.False(t, a.isBuffer(checkpoint.Key{Param: "b", Owner: 2}))
}

func TestTexts(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 1<<20 - 1: "1.0 MiB", 1 << 20: "1.0 MiB",
		3<<30 + 1<<29: "3.5 GiB", 1 << 50: "1.0 PiB", math.MaxInt64: "8.0 EiB",
	} {
		require.Equal(t, want, sizeText(n))
	}
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 124439808: "124,439,808"} {
		require.Equal(t, want, countText(n))
	}
	require.Equal(t, "1 file", plural(1, "file"))
	require.Equal(t, "2,000 files", plural(2000, "file"))
}

// TestProgress requires a line for every per cent, and none where nobody looks.
func TestProgress(t *testing.T) {
	var b bytes.Buffer
	p := newProgress(&b, "reading", 1<<30)
	p.add(1)
	require.Empty(t, b.String(), "it is no terminal")
	p.w, p.done = &b, 0
	for range 1 << 10 {
		p.add(1 << 20)
	}
	p.end()
	require.Equal(t, 101, strings.Count(b.String(), "\r"))
	require.True(t, strings.HasPrefix(b.String(), "reading 0% of 1.0 GiB\x1b[K\r"))
	require.True(t, strings.HasSuffix(b.String(), "reading 100% of 1.0 GiB\x1b[K\r\x1b[K"))
}
