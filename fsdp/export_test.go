package fsdp_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
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

// fileTensor is a tensor as a reader that knows nothing but the description of safetensors sees it.
type fileTensor struct {
	DType   string   `json:"dtype"`
	Shape   []int    `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
	data    []float64
}

// parseFile reads a file.
func parseFile(t require.TestingT, path string) (tensors map[string]*fileTensor, about map[string]string) {
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	n := binary.LittleEndian.Uint64(b)
	var raw map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(b[8:8+n], &raw))
	tensors = make(map[string]*fileTensor)
	for name, text := range raw {
		if name == "__metadata__" {
			require.NoError(t, json.Unmarshal(text, &about))
			continue
		}
		x := new(fileTensor)
		require.NoError(t, json.Unmarshal(text, x))
		size := map[string]int{"F64": 8, "F32": 4, "BF16": 2, "F16": 2}[x.DType]
		for data := b[8+n:][x.Offsets[0]:x.Offsets[1]]; len(data) > 0; data = data[size:] {
			var v float64
			switch x.DType {
			case "F64":
				v = math.Float64frombits(binary.LittleEndian.Uint64(data))
			case "F32":
				v = float64(math.Float32frombits(binary.LittleEndian.Uint32(data)))
			case "BF16":
				v = float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(data)) << 16))
			case "F16":
				v = float64(comm.F16(binary.LittleEndian.Uint16(data)).Float32())
			}
			x.data = append(x.data, v)
		}
		tensors[name] = x
	}
	return tensors, about
}

// makeFile writes a file of float32 tensors, with its own idea of the format.
func makeFile(t require.TestingT, path string, tensors map[string]*fileTensor, about map[string]string) {
	header := map[string]any{}
	if about != nil {
		header["__metadata__"] = about
	}
	var data []byte
	for name, x := range tensors {
		begin := int64(len(data))
		for _, v := range x.data {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(v)))
		}
		header[name] = fileTensor{DType: "F32", Shape: x.Shape, Offsets: [2]int64{begin, int64(len(data))}}
	}
	text, err := json.Marshal(header)
	require.NoError(t, err)
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	require.NoError(t, os.WriteFile(path, append(append(b, text...), data...), 0o666))
}

// turned returns the elements of a matrix [rows, cols] in the order of [cols, rows].
func turned(data []float64, rows, cols int) []float64 {
	out := make([]float64, len(data))
	for r := range rows {
		for c := range cols {
			out[c*rows+r] = data[r*cols+c]
		}
	}
	return out
}

// asGPT2 are options of a file with names and layouts of its own.
func asGPT2() []fsdp.StateOption {
	return []fsdp.StateOption{
		fsdp.Rename(func(name string) string { return "h." + strings.ReplaceAll(name, ".w", ".weight") }),
		fsdp.Transpose(func(name string) bool { return name == "b.w" || name == "experts.up" }),
	}
}

// TestExportImport writes values and optimizer state under every layout, reads the file with an
// independent parser, and imports it under another layout, to the bit where the type is that of the
// computation.
func TestExportImport(t *testing.T) {
	renamed := func(name string) string { return "h." + strings.ReplaceAll(name, ".w", ".weight") }
	for _, world := range []int{1, 3, 4} {
		for n, layout := range sortedKeys(stateLayouts(world)) {
			experts := strings.Contains(layout, "experts") // which do not fit another layout
			for _, precision := range []fsdp.Precision{{}, float64s} {
				t.Run(fmt.Sprintf("%d ranks/%s/%v", world, layout, precision.Compute), func(t *testing.T) {
					path := filepath.Join(t.TempDir(), "model.safetensors")
					kind := sortedKeys(stateOptimizers)[n%len(stateOptimizers)]
					var want bits
					var state *optim.FullState
					onRanks(t, world, func(ctx context.Context, g comm.Group) {
						cfg := stateLayouts(world)[layout](t, ctx, g)
						cfg.Precision, cfg.Poison, cfg.Seed = precision, true, 3
						m := wrap(t, stateModel, cfg)
						fsdp.PoisonPadding(m)
						before, err := m.FullState(ctx)
						require.NoError(t, err)
						opt := fiveUpdates(t, m.Shards(), fullNames(before, g.Rank()), stateOptimizers[kind])
						values, err := m.FullState(ctx)
						require.NoError(t, err)
						full, err := m.FullOptimState(ctx, opt, fsdp.OnEveryRank())
						require.NoError(t, err)
						own := path // of rank 0; that of the others does not matter
						if g.Rank() > 0 {
							own = "elsewhere"
						}
						live := m.Memory().Live
						require.NoError(t, m.Export(ctx, own, append(asGPT2(), fsdp.WithOptimizer(opt), fsdp.Metadata(map[string]string{"a": "b"}))...))
						require.Equal(t, live, m.Memory().Live)
						require.NoError(t, m.Import(ctx, path, append(asGPT2(), fsdp.WithOptimizer(opt))...))
						again, err := m.FullState(ctx)
						require.NoError(t, err)
						for name := range again {
							if name != "bn.mean" { // that of rank 0 now
								require.Equal(t, bitsOf(values)[name], bitsOf(again)[name], name)
							}
						}
						if g.Rank() == 0 {
							want, state = bitsOf(values), full
							checkFile(t, path, values, full, renamed)
						}
						left, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
						require.NoError(t, err)
						require.Equal(t, []string{path}, left)
					})
					if experts {
						return
					}
					onRanks(t, 2, func(ctx context.Context, g comm.Group) {
						m := wrap(t, stateModel, fsdp.Config{Group: g, Precision: precision, Seed: 99, Wrap: fsdp.WrapEach()})
						fsdp.PoisonPadding(m)
						opt, err := stateOptimizers[kind](m.Shards())
						require.NoError(t, err)
						require.NoError(t, m.Import(ctx, path, append(asGPT2(), fsdp.WithOptimizer(opt))...))
						requireSameBits(t, want, stateBits(t, ctx, m))
						got, err := m.FullOptimState(ctx, opt, fsdp.OnEveryRank())
						require.NoError(t, err)
						requireSameState(t, state, got)
					})
				})
			}
		}
	}
}

func sortedKeys[V any](m map[string]V) (keys []string) {
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// checkFile compares a file, whose matrices b.w and experts.up lie transposed, with what was
// exported.
func checkFile(t require.TestingT, path string, values params, state *optim.FullState, renamed func(string) string) {
	tensors, about := parseFile(t, path)
	require.Equal(t, "pt", about["format"])
	require.Equal(t, "b", about["a"])
	var counts struct {
		Steps   int
		Updates map[string]int
	}
	require.NoError(t, json.Unmarshal([]byte(about["gofsdp.optimizer"]), &counts))
	require.Equal(t, state.Steps, counts.Steps)
	entries := 0
	check := func(name, inFile string, data []float64) {
		shape := slices.Clone([]int(values[name].Shape()))
		if name == "b.w" || strings.HasPrefix(name, "experts.up") {
			data = turned(data, shape[0], shape[1])
			slices.Reverse(shape)
		}
		require.Contains(t, tensors, inFile)
		if name != "b.s" { // a scalar
			require.Equal(t, shape, tensors[inFile].Shape, inFile)
		}
		require.Equal(t, data, tensors[inFile].data, inFile)
	}
	for name, v := range values {
		check(name, renamed(name), elements(v))
	}
	for name, p := range state.Params {
		require.Equal(t, p.Steps, counts.Updates[renamed(name)])
		for entry, v := range p.Entries {
			entries++
			check(name, entry+":"+renamed(name), asFloat64(v))
		}
	}
	require.Len(t, tensors, len(values)+entries)
}

// TestExportTypes writes every type and reads it back: what fits is the same, and the rest is
// rounded.
func TestExportTypes(t *testing.T) {
	for _, as := range []fsdp.DType{fsdp.Float32, fsdp.Float64, fsdp.BFloat16, fsdp.Float16} {
		path := filepath.Join(t.TempDir(), "model.safetensors")
		onRanks(t, 3, func(ctx context.Context, g comm.Group) {
			m := wrap(t, stateModel, fsdp.Config{Group: g, Seed: 3})
			before, err := m.FullState(ctx)
			require.NoError(t, err)
			require.NoError(t, m.Export(ctx, path, append(asGPT2(), fsdp.As(as))...))
			tensors, _ := parseFile(t, path)
			require.Equal(t, map[fsdp.DType]string{fsdp.Float32: "F32", fsdp.Float64: "F64", fsdp.BFloat16: "BF16", fsdp.Float16: "F16"}[as], tensors["h.a.weight"].DType)
			require.NoError(t, m.Import(ctx, path, asGPT2()...))
			after, err := m.FullState(ctx)
			require.NoError(t, err)
			for name, v := range before {
				for i, x := range elements(v) {
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
					require.Equal(t, x, elements(after[name])[i], "%s[%d] as %v", name, i, as)
				}
			}
		})
	}
}

// TestExportMixedTypes writes values in fewer bits than the optimizer's state: tensors begin at
// multiples of their elements' size.
func TestExportMixedTypes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.safetensors")
	onRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := wrap(t, smallModel, fsdp.Config{Group: g, Precision: float64s})
		opt, err := optim.AdamW{}.New(m.Shards())
		require.NoError(t, err)
		require.NoError(t, m.SetFullOptim(ctx, 0, opt, fullAdam()))
		require.NoError(t, m.Export(ctx, path, fsdp.As(fsdp.BFloat16), fsdp.WithOptimizer(opt)))
		tensors, _ := parseFile(t, path)
		require.Len(t, tensors, 9)
		for name, x := range tensors {
			size := map[bool]int64{true: 8, false: 2}[strings.Contains(name, ":")]
			require.Equal(t, map[int64]string{8: "F64", 2: "BF16"}[size], x.DType, name)
			require.Zero(t, x.Offsets[0]%size, name)
		}
		require.Equal(t, asFloat64(fullAdam().Params["a.b"].Entries["exp_avg"]), tensors["exp_avg:a.b"].data)
	})
}

// TestTransposeLarge exports and imports, transposed and not, matrices of more rows, columns and
// bytes than are converted at once.
func TestTransposeLarge(t *testing.T) {
	for _, shape := range [][2]int{{1031, 523}, {3, 270001}, {270001, 3}, {5003, 211}} {
		path := filepath.Join(t.TempDir(), "model.safetensors")
		model := calls(call("a", having(initial(weight("w", shape[0], shape[1])))))
		onRanks(t, 3, func(ctx context.Context, g comm.Group) {
			m := wrap(t, model, fsdp.Config{Group: g, Seed: 3})
			want, err := m.FullState(ctx)
			require.NoError(t, err)
			for _, as := range []fsdp.DType{fsdp.Float32, fsdp.Float64} {
				for _, turn := range []bool{true, false} {
					transpose := fsdp.Transpose(func(string) bool { return turn })
					require.NoError(t, m.Export(ctx, path, transpose, fsdp.As(as)))
					if g.Rank() == 0 {
						tensors, _ := parseFile(t, path)
						data := elements(want["a.w"])
						if turn {
							data = turned(data, shape[0], shape[1])
						}
						require.Equal(t, data, tensors["a.w"].data)
					}
					next := wrap(t, model, fsdp.Config{Group: g, Seed: 4})
					require.NoError(t, next.Import(ctx, path, transpose))
					got, err := next.FullState(ctx)
					require.NoError(t, err)
					require.Equal(t, elements(want["a.w"]), elements(got["a.w"]))
				}
			}
		})
	}
}

// TestExportReplaces checks that a file is replaced by a whole one, and by nothing else.
func TestExportReplaces(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "model.safetensors")
	onRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := wrap(t, stateModel, fsdp.Config{Group: g})
		require.NoError(t, m.Export(ctx, path))
		first, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, g.Barrier(ctx))
		for failAt := 1; ; failAt++ {
			fsys := &failingFS{FS: checkpoint.OS(), left: failAt}
			err := m.Export(ctx, path, kit.OnFS(fsys), fsdp.As(fsdp.BFloat16))
			done := err == nil
			if g.Rank() == 0 { // the other's file system is not used
				require.Equal(t, fsys.left > 0, done, "%v", err)
			}
			now, rerr := os.ReadFile(path)
			require.NoError(t, rerr)
			if err != nil && !strings.Contains(err.Error(), "SyncDir") {
				require.ErrorContains(t, err, errDiskFull.Error())
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

var errDiskFull = errors.New("the disk is full")

// failingFS fails at one of its operations, and only at that.
type failingFS struct {
	checkpoint.FS
	left int      // operations until then
	done []string // so far
}

func (f *failingFS) fail(op string) error {
	f.done = append(f.done, op)
	if f.left--; f.left == 0 {
		return fmt.Errorf("%s: %w", op, errDiskFull)
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
				m := wrap(t, calls(call("a", having(weight("w", 512, 600), weight("b", 7)))), fsdp.Config{Group: reducing{g, &n}})
				n = 0
				assert.NoError(t, m.Export(t.Context(), filepath.Join(dir, "model"), kit.OnFS(slow)))
				assert.Greater(t, n, 50)
				assert.NoError(t, m.Close())
			})
		}
		ranks.Wait()
	})
	tensors, _ := parseFile(t, filepath.Join(dir, "model"))
	require.Len(t, tensors["a.w"].data, 512*600)
}

// TestExportErrors checks what every rank hears of what can be known before anything is written.
func TestExportErrors(t *testing.T) {
	for name, c := range map[string]struct {
		opts func(rank int, opt optim.Optimizer) []fsdp.StateOption
		path string
		want string
	}{
		"no type":      {func(int, optim.Optimizer) []fsdp.StateOption { return []fsdp.StateOption{fsdp.As(9)} }, "x", "As(DType(9)): want Float32"},
		"two types":    {func(r int, _ optim.Optimizer) []fsdp.StateOption { return []fsdp.StateOption{fsdp.As(fsdp.DType(r))} }, "x", `ranks disagree about the options: rank 0 has "As float32", rank 1 has "As float64"`},
		"wrong option": {func(int, optim.Optimizer) []fsdp.StateOption { return []fsdp.StateOption{fsdp.KeepLast(1)} }, "x", "option KeepLast is not for this method"},
		"names not distinct": {func(int, optim.Optimizer) []fsdp.StateOption {
			return []fsdp.StateOption{fsdp.Rename(func(string) string { return "w" })}
		}, "x", `Rename gives both a.w and a.b the name "w"`},
		"transposed vector": {func(int, optim.Optimizer) []fsdp.StateOption {
			return []fsdp.StateOption{fsdp.Transpose(func(n string) bool { return n == "a.b" })}
		}, "x", "Transpose selects a.b [7], which has not two dimensions"},
		"name of an entry": {func(_ int, opt optim.Optimizer) []fsdp.StateOption {
			return []fsdp.StateOption{fsdp.WithOptimizer(opt), fsdp.Rename(func(n string) string {
				if n == "a.b" {
					return "exp_avg:a.w"
				}
				return n
			})}
		}, "x", `the state would have two tensors named "exp_avg:a.w"`},
		"reserved metadata": {func(int, optim.Optimizer) []fsdp.StateOption {
			return []fsdp.StateOption{fsdp.Metadata(map[string]string{"gofsdp.optimizer": ""})}
		}, "x", `the name "gofsdp.optimizer" is taken`},
		"no optimizer on one rank": {func(r int, opt optim.Optimizer) []fsdp.StateOption {
			if r == 1 {
				opt = nil
			}
			return []fsdp.StateOption{fsdp.WithOptimizer(opt)}
		}, "x", "WithOptimizer: the optimizer is nil"},
		"option on one rank": {func(r int, opt optim.Optimizer) []fsdp.StateOption {
			return []fsdp.StateOption{fsdp.WithOptimizer(opt)}[:r]
		}, "x", `ranks disagree about the options: rank 0 has "options []", rank 1 has "options [WithOptimizer]"`},
		"no directory": {func(int, optim.Optimizer) []fsdp.StateOption { return nil }, filepath.Join("no", "such", "file"), "such"},
		"no path":      {func(int, optim.Optimizer) []fsdp.StateOption { return nil }, "", "no file is named"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for r, err := range errorsOf(t, 2, func(ctx context.Context, g comm.Group) error {
				m := wrap(t, smallModel, fsdp.Config{Group: g})
				opt, err := optim.AdamW{}.New(m.Shards())
				require.NoError(t, err)
				path := c.path
				if path != "" {
					path = filepath.Join(dir, path)
				}
				failed := m.Export(ctx, path, c.opts(g.Rank(), opt)...)
				stateBits(t, ctx, m)
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
func inFile(shape ...int) *fileTensor {
	return &fileTensor{DType: "F32", Shape: shape, data: elements(tensor.New(tensor.WithShape(shape...), tensor.WithBacking(elements(floats(1, shape...)))))}
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
	onRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := wrap(t, smallModel, fsdp.Config{Group: g})
		require.NoError(t, m.Export(ctx, path))
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
