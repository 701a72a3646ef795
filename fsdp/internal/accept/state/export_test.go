package state_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/optim"
)

// makeFile writes a file of float32 tensors, with its own idea of the format.
func makeFile(t require.TestingT, path string, tensors map[string]*kit.FileTensor, about map[string]string) {
	header := map[string]any{}
	if about != nil {
		header["__metadata__"] = about
	}
	var data []byte
	for name, x := range tensors {
		begin := int64(len(data))
		for _, v := range x.Data {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(v)))
		}
		header[name] = kit.FileTensor{DType: "F32", Shape: x.Shape, Offsets: [2]int64{begin, int64(len(data))}}
	}
	text, err := json.Marshal(header)
	require.NoError(t, err)
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	require.NoError(t, os.WriteFile(path, append(append(b, text...), data...), 0o666))
}

// TestExportTypes writes every type and reads it back: what fits is the same, and the rest is
// rounded.
func TestExportTypes(t *testing.T) {
	for _, as := range []fsdp.DType{fsdp.Float32, fsdp.Float64, fsdp.BFloat16, fsdp.Float16} {
		path := filepath.Join(t.TempDir(), "model.safetensors")
		kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
			m := kit.Wrap(t, kit.StateModel, fsdp.Config{Group: g, Seed: 3})
			before, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
			require.NoError(t, err)
			to := kit.ToGPT2()
			to.DType = new(as)
			require.NoError(t, m.Export(ctx, path, to))
			tensors, _ := kit.ParseFile(t, path)
			require.Equal(t, map[fsdp.DType]string{fsdp.Float32: "F32", fsdp.Float64: "F64", fsdp.BFloat16: "BF16", fsdp.Float16: "F16"}[as], tensors["h.a.weight"].DType)
			require.NoError(t, m.Import(ctx, path, kit.FromGPT2()))
			after, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
			require.NoError(t, err)
			for name, v := range before {
				for i, x := range kit.Elements(v) {
					switch as {
					case fsdp.BFloat16:
						low := []comm.BF16{0}
						comm.Narrow(low, []float32{float32(x)})
						x = float64(low[0].Float32())
					case fsdp.Float16:
						low := []comm.F16{0}
						comm.Narrow(low, []float32{float32(x)})
						x = float64(low[0].Float32())
					}
					require.Equal(t, x, kit.Elements(after[name])[i], "%s[%d] as %v", name, i, as)
				}
			}
		})
	}
}

// TestExportMixedTypes writes values in fewer bits than the optimizer's state: tensors begin at
// multiples of their elements' size.
func TestExportMixedTypes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.safetensors")
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, smallModel, fsdp.Config{Group: g, Precision: kit.Float64s})
		opt, err := optim.AdamW{}.New(m.Params())
		require.NoError(t, err)
		require.NoError(t, m.LoadOptimStateDict(ctx, 0, opt, fullAdam(), nil))
		require.NoError(t, m.Export(ctx, path, &fsdp.ExportOptions{DType: new(fsdp.BFloat16), Optimizer: opt}))
		tensors, _ := kit.ParseFile(t, path)
		require.Len(t, tensors, 9)
		for name, x := range tensors {
			size := map[bool]int64{true: 8, false: 2}[strings.Contains(name, ":")]
			require.Equal(t, map[int64]string{8: "F64", 2: "BF16"}[size], x.DType, name)
			require.Zero(t, x.Offsets[0]%size, name)
		}
		require.Equal(t, kit.AsFloat64(fullAdam().Params["a.b"].Entries["exp_avg"]), tensors["exp_avg:a.b"].Data)
	})
}

// TestTransposeLarge exports and imports, transposed and not, matrices of more rows, columns and
// bytes than are converted at once.
func TestTransposeLarge(t *testing.T) {
	for _, shape := range [][2]int{{1031, 523}, {3, 270001}, {270001, 3}, {5003, 211}} {
		path := filepath.Join(t.TempDir(), "model.safetensors")
		model := kit.Calls(kit.Call("a", kit.Having(kit.Initial(kit.Weight("w", shape[0], shape[1])))))
		kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
			m := kit.Wrap(t, model, fsdp.Config{Group: g, Seed: 3})
			want, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
			require.NoError(t, err)
			for _, as := range []fsdp.DType{fsdp.Float32, fsdp.Float64} {
				for _, turn := range []bool{true, false} {
					transpose := func(string) bool { return turn }
					require.NoError(t, m.Export(ctx, path, &fsdp.ExportOptions{Transpose: transpose, DType: new(as)}))
					if g.Rank() == 0 {
						tensors, _ := kit.ParseFile(t, path)
						data := kit.Elements(want["a.w"])
						if turn {
							data = kit.Turned(data, shape[0], shape[1])
						}
						require.Equal(t, data, tensors["a.w"].Data)
					}
					next := kit.Wrap(t, model, fsdp.Config{Group: g, Seed: 4})
					require.NoError(t, next.Import(ctx, path, &fsdp.ImportOptions{Transpose: transpose}))
					got, err := next.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
					require.NoError(t, err)
					require.Equal(t, kit.Elements(want["a.w"]), kit.Elements(got["a.w"]))
				}
			}
		})
	}
}

// TestExportReplaces checks that a file is replaced by a whole one, and by nothing else.
func TestExportReplaces(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "model.safetensors")
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.StateModel, fsdp.Config{Group: g})
		require.NoError(t, m.Export(ctx, path, nil))
		first, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, g.Barrier(ctx))
		for failAt := 1; ; failAt++ {
			fsys := &failingFS{FS: checkpoint.OS(), left: failAt}
			err := m.Export(kit.OnFS(ctx, fsys), path, &fsdp.ExportOptions{DType: new(fsdp.BFloat16)})
			done := err == nil
			if g.Rank() == 0 { // the other's file system is not used
				require.Equal(t, fsys.left > 0, done, "%v", err)
			}
			now, rerr := os.ReadFile(path)
			require.NoError(t, rerr)
			if err != nil && !strings.Contains(err.Error(), "SyncDir") {
				require.ErrorContains(t, err, kit.ErrDiskFull.Error())
				require.Equal(t, first, now)
			}
			left, gerr := filepath.Glob(filepath.Join(dir, "*"))
			require.NoError(t, gerr)
			require.Equal(t, []string{path}, left, "nothing is left behind")
			require.NoError(t, g.Barrier(ctx))
			if done {
				if n := len(fsys.done); g.Rank() == 0 {
					require.Equal(t, []string{"Write", "Sync", "Rename", "SyncDir"}, fsys.done[n-4:])
				}
				require.Greater(t, failAt, 10)
				require.NotEqual(t, len(first), len(now))
				return
			}
		}
	})
}

// failingFS fails at one of its operations, and only at that.
type failingFS struct {
	checkpoint.FS
	left int      // operations until then
	done []string // so far
}

func (f *failingFS) fail(op string) error {
	f.done = append(f.done, op)
	if f.left--; f.left == 0 {
		return fmt.Errorf("%s: %w", op, kit.ErrDiskFull)
	}
	return nil
}

func (f *failingFS) Create(path string) (checkpoint.Handle, error) {
	if err := f.fail("Create"); err != nil {
		return nil, err
	}
	h, err := f.FS.Create(path)
	return &failingHandle{h, f}, err
}

func (f *failingFS) Open(path string) (checkpoint.Handle, error) {
	if err := f.fail("Open"); err != nil {
		return nil, err
	}
	h, err := f.FS.Open(path)
	return &failingHandle{h, f}, err
}

func (f *failingFS) Rename(from, to string) error {
	if err := f.fail("Rename"); err != nil {
		return err
	}
	return f.FS.Rename(from, to)
}

func (f *failingFS) SyncDir(dir string) error {
	if err := f.fail("SyncDir"); err != nil {
		return err
	}
	return f.FS.SyncDir(dir)
}

type failingHandle struct {
	checkpoint.Handle
	fs *failingFS
}

func (h *failingHandle) Write(b []byte) (int, error) {
	if err := h.fs.fail("Write"); err != nil {
		return 0, err
	}
	return h.Handle.Write(b)
}

func (h *failingHandle) Sync() error {
	if err := h.fs.fail("Sync"); err != nil {
		return err
	}
	return h.Handle.Sync()
}

func (h *failingHandle) ReadAt(b []byte, at int64) (int, error) {
	if err := h.fs.fail("ReadAt"); err != nil {
		return 0, err
	}
	return h.Handle.ReadAt(b, at)
}

// slowFS takes its time for large writes.
type slowFS struct {
	checkpoint.FS
	pause func()
}

type slowHandle struct {
	checkpoint.Handle
	pause func()
}

func (f slowFS) Create(path string) (checkpoint.Handle, error) {
	h, err := f.FS.Create(path)
	return slowHandle{h, f.pause}, err
}

func (h slowHandle) Write(b []byte) (int, error) {
	if len(b) >= 1<<20 {
		h.pause()
	}
	return h.Handle.Write(b)
}

// reducing counts the all-reduces of a group.
type reducing struct {
	comm.Group
	n *int
}

func (r reducing) AllReduce(buf comm.Buffer, op comm.Op) comm.Work {
	*r.n++
	return r.Group.AllReduce(buf, op)
}

// TestExportToSlowDisk writes a tensor in a minute of fake time. The ranks hear of each other
// meanwhile, as they would take one that says nothing for one that hangs.
func TestExportToSlowDisk(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		slow := slowFS{checkpoint.OS(), func() { time.Sleep(time.Minute) }}
		var ranks sync.WaitGroup
		for _, g := range comm.Local(2) {
			ranks.Go(func() {
				n := 0
				m := kit.Wrap(t, kit.Calls(kit.Call("a", kit.Having(kit.Weight("w", 512, 600), kit.Weight("b", 7)))), fsdp.Config{Group: reducing{g, &n}})
				n = 0
				assert.NoError(t, m.Export(kit.OnFS(t.Context(), slow), filepath.Join(dir, "model"), nil))
				assert.Greater(t, n, 50)
				assert.NoError(t, m.Close())
			})
		}
		ranks.Wait()
	})
	tensors, _ := kit.ParseFile(t, filepath.Join(dir, "model"))
	require.Len(t, tensors["a.w"].Data, 512*600)
}

// TestExportErrors checks what every rank hears of what can be known before anything is written.
func TestExportErrors(t *testing.T) {
	for name, c := range map[string]struct {
		opts func(rank int, opt optim.Optimizer) *fsdp.ExportOptions
		path string
		want string
	}{
		"no type": {func(int, optim.Optimizer) *fsdp.ExportOptions { return &fsdp.ExportOptions{DType: new(fsdp.DType(9))} }, "x", "ExportOptions.DType is DType(9): want Float32, Float64"},
		"two types": {func(r int, _ optim.Optimizer) *fsdp.ExportOptions {
			return &fsdp.ExportOptions{DType: new(fsdp.DType(r))}
		}, "x", `ranks disagree about the options: rank 0 has "DType float32", rank 1 has "DType float64"`},
		"negative size": {func(int, optim.Optimizer) *fsdp.ExportOptions { return &fsdp.ExportOptions{MaxFileSize: -1} }, "x", "option MaxFileSize is -1: want a number of bytes"},
		"names not distinct": {func(int, optim.Optimizer) *fsdp.ExportOptions {
			return &fsdp.ExportOptions{Rename: func(string) string { return "w" }}
		}, "x", `Rename gives both a.w and a.b the name "w"`},
		"transposed vector": {func(int, optim.Optimizer) *fsdp.ExportOptions {
			return &fsdp.ExportOptions{Transpose: func(n string) bool { return n == "a.b" }}
		}, "x", "Transpose selects a.b [7], which does not have two dimensions"},
		"name of an entry": {func(_ int, opt optim.Optimizer) *fsdp.ExportOptions {
			return &fsdp.ExportOptions{Optimizer: opt, Rename: func(n string) string {
				if n == "a.b" {
					return "exp_avg:a.w"
				}
				return n
			}}
		}, "x", `the state would have two tensors named "exp_avg:a.w"`},
		"reserved metadata": {func(int, optim.Optimizer) *fsdp.ExportOptions {
			return &fsdp.ExportOptions{Metadata: map[string]string{"gofsdp.optimizer": ""}}
		}, "x", `the name "gofsdp.optimizer" is reserved: choose another`},
		"no optimizer on one rank": {func(r int, opt optim.Optimizer) *fsdp.ExportOptions {
			if r == 1 {
				opt = nil
			}
			return &fsdp.ExportOptions{Optimizer: opt}
		}, "x", `ranks disagree about the options: rank 0 has "options [Optimizer]", rank 1 has "options []"`},
		"options on one rank": {func(r int, opt optim.Optimizer) *fsdp.ExportOptions {
			if r == 0 {
				return nil
			}
			return &fsdp.ExportOptions{Optimizer: opt}
		}, "x", `ranks disagree about the options: rank 0 has "options []", rank 1 has "options [Optimizer]"`},
		"no directory": {func(int, optim.Optimizer) *fsdp.ExportOptions { return nil }, filepath.Join("no", "such", "file"), "such"},
		"no path":      {func(int, optim.Optimizer) *fsdp.ExportOptions { return nil }, "", "the path is empty: give the path of a file, an index or a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for r, err := range kit.ErrorsOf(t, 2, func(ctx context.Context, g comm.Group) error {
				m := kit.Wrap(t, smallModel, fsdp.Config{Group: g})
				opt, err := optim.AdamW{}.New(m.Params())
				require.NoError(t, err)
				path := c.path
				if path != "" {
					path = filepath.Join(dir, path)
				}
				failed := m.Export(ctx, path, c.opts(g.Rank(), opt))
				kit.StateBits(t, ctx, m)
				return failed
			}) {
				require.ErrorContains(t, err, c.want, "rank %d", r)
			}
			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}

// inFile returns a float32 tensor of a file.
func inFile(shape ...int) *kit.FileTensor {
	return &kit.FileTensor{DType: "F32", Shape: shape, Data: kit.Elements(tensor.New(tensor.WithShape(shape...), tensor.WithBacking(kit.Elements(kit.Floats(1, shape...)))))}
}

// TestExportSweeps: what an Export has left that was killed goes with the next one to the same
// path, and nothing else does.
func TestExportSweeps(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "model.safetensors")
	left := []string{"model.safetensors.tmp-0123abcd", "model.safetensors.tmp-ffffffff"}
	others := []string{"model.safetensors.tmp-0123abcde", "model.safetensors.tmp-0123ABCD", "model_safetensors.tmp-0123abcd", "other.tmp-0123abcd", "amodel.safetensors.tmp-0123abcd"}
	for _, name := range append(left, others...) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600))
	}
	require.NoError(t, os.Mkdir(path+".tmp-00000000", 0o700))
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, smallModel, fsdp.Config{Group: g})
		require.NoError(t, m.Export(ctx, path, nil))
	})
	want := append(others, "model.safetensors", "model.safetensors.tmp-00000000")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	require.ElementsMatch(t, want, names)
}
