package state_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/fsdp/internal/state"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/optim"
)

// smallFile has the tensors of smallModel.
func smallFile() map[string]*kit.FileTensor {
	return map[string]*kit.FileTensor{"a.w": inFile(31, 3), "a.b": inFile(7), "b.w": inFile(5, 11)}
}

// TestImportErrors checks what every rank hears of a file that does not fit, and that nothing has
// changed.
func TestImportErrors(t *testing.T) {
	type file = map[string]*kit.FileTensor
	all := func(string) bool { return true }
	for name, c := range map[string]struct {
		change func(f file)
		opts   func(opt optim.Optimizer, rank int) *fsdp.ImportOptions
		path   string
		want   string
		fits   *fsdp.StateError // what the error says, but for the file
	}{
		"missing":   {change: func(f file) { delete(f, "a.b") }, want: "does not fit the model: missing a.b", fits: &fsdp.StateError{Missing: []string{"a.b"}}},
		"extra":     {change: func(f file) { f["z"] = inFile(1); f["y"] = inFile(2) }, want: "extra ", fits: &fsdp.StateError{Extra: []string{"y", "z"}}},
		"reshaped":  {change: func(f file) { f["b.w"] = inFile(11, 5) }, want: "reshaped b.w [11 5] -> [5 11]", fits: &fsdp.StateError{Reshaped: []string{"b.w [11 5] -> [5 11]"}}},
		"all wrong": {change: func(f file) { f["x.w"], f["a.b"] = f["a.w"], inFile(8); delete(f, "a.w") }, want: "missing a.w, see AllowMissing; extra x.w, see AllowExtra, or Rename if these are the missing ones; reshaped a.b [8] -> [7]"},
		"transposed": {opts: func(optim.Optimizer, int) *fsdp.ImportOptions {
			return &fsdp.ImportOptions{Transpose: func(n string) bool { return n == "b.w" }}
		}, want: "reshaped b.w [5 11] -> [11 5]"},
		"renamed": {opts: func(optim.Optimizer, int) *fsdp.ImportOptions {
			return &fsdp.ImportOptions{Rename: func(n string) string { return "x." + n }, AllowExtra: all}
		}, want: "missing x.a.w, x.a.b, x.b.w", fits: &fsdp.StateError{Missing: []string{"x.a.w", "x.a.b", "x.b.w"}}},
		"name of an entry": {opts: func(opt optim.Optimizer, _ int) *fsdp.ImportOptions {
			return &fsdp.ImportOptions{Optimizer: opt, Rename: func(n string) string { return strings.Replace(n, "a.b", "exp_avg:b.w", 1) }, AllowMissing: all, AllowExtra: all}
		}, want: `Import: the state would have two tensors named "exp_avg:b.w"`},
		"no state of an optimizer": {opts: func(opt optim.Optimizer, _ int) *fsdp.ImportOptions {
			return &fsdp.ImportOptions{Optimizer: opt}
		}, want: "missing exp_avg:a.w, exp_avg_sq:a.w, exp_avg:a.b, exp_avg_sq:a.b, exp_avg:b.w and 2 more"},
		"half of an entry": {change: func(f file) { f["exp_avg:a.b"] = inFile(7) }, opts: func(opt optim.Optimizer, _ int) *fsdp.ImportOptions {
			return &fsdp.ImportOptions{Optimizer: opt, AllowMissing: all}
		}, want: "missing exp_avg_sq:a.b, optimizer"},
		"allowed on one rank": {change: func(f file) { delete(f, "a.b") }, opts: func(_ optim.Optimizer, rank int) *fsdp.ImportOptions {
			return &fsdp.ImportOptions{AllowMissing: func(string) bool { return rank == 1 }}
		}, want: "missing a.b"},
		"AllowMissing panics": {change: func(f file) { delete(f, "a.b") }, opts: func(_ optim.Optimizer, rank int) *fsdp.ImportOptions {
			return &fsdp.ImportOptions{AllowMissing: func(string) bool { panic("nothing allowed today") }}
		}, want: "nothing allowed today"},
		"no file":     {path: "nosuchfile", want: "nosuchfile"},
		"a directory": {path: ".", want: "rank 0: Import: "},
		"no path":     {path: "-", want: "the path is empty: give the path of a file, an index or a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "model.safetensors")
			f := smallFile()
			if c.change != nil {
				c.change(f)
			}
			makeFile(t, path, f, nil)
			if c.path != "" {
				path = filepath.Join(dir, c.path)
			}
			if c.path == "-" {
				path = ""
			}
			errs := kit.ErrorsOf(t, 3, func(ctx context.Context, g comm.Group) error {
				m := kit.Wrap(t, smallModel, fsdp.Config{Group: g})
				opt, err := optim.AdamW{}.New(m.Params())
				require.NoError(t, err)
				before := kit.StateBits(t, ctx, m)
				var opts *fsdp.ImportOptions
				if c.opts != nil {
					opts = c.opts(opt, g.Rank())
				}
				failed := m.Import(ctx, path, opts)
				kit.RequireSameBits(t, before, kit.StateBits(t, ctx, m))
				require.NoError(t, opt.Step(0))
				return failed
			})
			for r, err := range errs {
				if c.path != "." || r == 0 {
					require.ErrorContains(t, err, c.want, "rank %d", r)
				}
				if c.fits != nil {
					var e *fsdp.StateError
					require.ErrorAs(t, err, &e)
					require.Equal(t, "file "+path, e.Where)
					require.Equal(t, c.fits.Missing, e.Missing)
					require.ElementsMatch(t, c.fits.Extra, e.Extra)
					require.Equal(t, c.fits.Reshaped, e.Reshaped)
				}
			}
		})
	}
}

// TestImportOtherFiles gives ranks different files.
func TestImportOtherFiles(t *testing.T) {
	dir := t.TempDir()
	first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")
	makeFile(t, first, smallFile(), nil)
	makeFile(t, second, smallFile(), map[string]string{"another": "one"})
	for _, err := range kit.ErrorsOf(t, 2, func(ctx context.Context, g comm.Group) error {
		m := kit.Wrap(t, smallModel, fsdp.Config{Group: g})
		return m.Import(ctx, []string{first, second}[g.Rank()], nil)
	}) {
		require.ErrorContains(t, err, "ranks disagree")
	}
	for r, err := range kit.ErrorsOf(t, 2, func(ctx context.Context, g comm.Group) error {
		m := kit.Wrap(t, smallModel, fsdp.Config{Group: g})
		return m.Import(ctx, []string{first, "nowhere"}[g.Rank()], nil)
	}) {
		require.ErrorContains(t, err, "nowhere", "rank %d", r)
		require.ErrorContains(t, err, "rank 1", "rank %d", r)
	}
}

// TestImportOfCheckpoints: a directory of checkpoints is no damaged file.
func TestImportOfCheckpoints(t *testing.T) {
	dir := t.TempDir()
	m := kit.Wrap(t, smallModel, fsdp.Config{})
	defer m.Close()
	require.NoError(t, m.Save(t.Context(), dir, nil, nil))
	require.ErrorContains(t, m.Import(t.Context(), dir, nil), dir+" is a directory of checkpoints, not a file of Export: use Load")
}

// TestImportOptions reads a file of another program with other names, something missing and
// something over.
func TestImportOptions(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.safetensors")
	f := smallFile()
	f["over"] = inFile(3)
	delete(f, "a.b")
	makeFile(t, path, f, nil)
	for _, precision := range []fsdp.Precision{{}, kit.Float64s} {
		kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
			m := kit.Wrap(t, smallModel, fsdp.Config{Group: g, Precision: precision})
			opt, err := optim.AdamW{}.New(m.Params())
			require.NoError(t, err)
			require.NoError(t, opt.Step(0))
			before, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
			require.NoError(t, err)
			require.NoError(t, m.Import(ctx, path, &fsdp.ImportOptions{Optimizer: opt, AllowMissing: func(name string) bool { return name == "a.b" || name == "optimizer" || strings.Contains(name, ":") }, AllowExtra: func(name string) bool { return name == "over" }}))
			after, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
			require.NoError(t, err)
			require.Equal(t, kit.Elements(before["a.b"]), kit.Elements(after["a.b"]))
			for _, name := range []string{"a.w", "b.w"} {
				for i, x := range kit.Elements(after[name]) {
					require.Equal(t, float64(float32(f[name].Data[i])), x)
				}
			}
			require.Equal(t, 1, opt.Steps())
		})
	}
}

// TestImportDropsGradients checks that neither gradients nor a waiting Forward outlive an Import,
// and that Hold prevents one.
func TestImportDropsGradients(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.safetensors")
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.Shapes["chain"], fsdp.Config{Group: g, Precision: kit.Float64s, WrapPolicy: fsdp.WrapEach()})
		require.NoError(t, m.Export(ctx, path, nil))
		want := kit.StateBits(t, ctx, m)
		kit.ForwardBackward(t, ctx, m, kit.ShapeBatch(g.Rank()))
		_, err := m.Forward(ctx, kit.ShapeBatch(g.Rank())...)
		require.NoError(t, err)
		p := m.Hold()
		require.ErrorContains(t, m.Import(ctx, path, nil), "put aside by Hold")
		require.NoError(t, p.Discard(ctx))
		_, err = m.Forward(ctx, kit.ShapeBatch(g.Rank())...)
		require.NoError(t, err)
		require.NoError(t, m.Import(ctx, path, nil))
		require.Empty(t, kit.GradsOf(t, ctx, m))
		require.Error(t, m.Backward(ctx))
		kit.RequireSameBits(t, want, kit.StateBits(t, ctx, m))
		kit.RequireIdle(t, ctx, m, kit.ShapeBatch(g.Rank()))
	})
}

// TestImportBreaksOff lets the disk of one rank fail in the middle: every rank gets its error, the
// model refuses to go on, and an Import that succeeds repairs it.
func TestImportBreaksOff(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.safetensors")
	kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.Shapes["chain"], fsdp.Config{Group: g, Precision: kit.Float64s, WrapPolicy: fsdp.WrapEach()})
		opt, err := optim.SGD{}.New(m.Params())
		require.NoError(t, err)
		require.NoError(t, m.Export(ctx, path, nil))
		want := kit.StateBits(t, ctx, m)
		fsys := &failingFS{FS: checkpoint.OS()}
		if g.Rank() == 1 {
			fsys.left = 6 // after Open and the header
		}
		err = m.Import(kit.OnFS(ctx, fsys), path, nil)
		require.ErrorContains(t, err, "rank 1")
		require.ErrorContains(t, err, path)
		require.ErrorContains(t, err, "elements [")
		require.ErrorContains(t, err, kit.ErrDiskFull.Error())
		for _, refused := range []error{
			forwardError(ctx, m, g.Rank()), m.Export(ctx, path+"2", nil), fullError(ctx, m),
		} {
			require.ErrorContains(t, refused, "an Import of "+path+" has failed in the middle")
		}
		if len(m.Params()) > 0 {
			require.ErrorContains(t, opt.Step(1), "an Import of "+path+" has failed in the middle")
		}
		require.NoError(t, m.Import(ctx, path, nil))
		kit.RequireSameBits(t, want, kit.StateBits(t, ctx, m))
		kit.ForwardBackward(t, ctx, m, kit.ShapeBatch(g.Rank()))
		require.NoError(t, opt.Step(1))
	})
	require.NoFileExists(t, path+"2")
}

func forwardError(ctx context.Context, m *fsdp.Sharded, rank int) error {
	_, err := m.Forward(ctx, kit.ShapeBatch(rank)...)
	return err
}

func fullError(ctx context.Context, m *fsdp.Sharded) error {
	_, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
	return err
}

// TestImportReadsItsOwn counts what ranks read of a file: together no more than there is, and the
// header on each. Of a matrix that lies transposed that holds for the wide parts of rows; narrow
// ones are read with what lies between, at once.
func TestImportReadsItsOwn(t *testing.T) {
	tall := kit.Calls(kit.Call("a", kit.Having(kit.Initial(kit.Weight("w", 5003, 31)))))
	flat := kit.Calls(kit.Call("a", kit.Having(kit.Initial(kit.Weight("w", 31, 5003)))))
	for name, c := range map[string]struct {
		model      fsdp.Model
		transposed bool
		shared     int64 // bytes that ranks read of what others own
		all        bool  // whether they may read more of it
	}{"plain": {kit.StateModel, false, 12, false}, "wide": {tall, true, 31 * 4, false}, "narrow": {flat, true, 0, true}} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "model.safetensors")
			var read, calls [4]int64
			kit.OnRanks(t, 4, func(ctx context.Context, g comm.Group) {
				m := kit.Wrap(t, c.model, fsdp.Config{Group: g})
				transpose := func(string) bool { return c.transposed }
				require.NoError(t, m.Export(ctx, path, &fsdp.ExportOptions{Transpose: transpose}))
				fsys := &countingFS{FS: checkpoint.OS(), bytes: &read[g.Rank()], calls: &calls[g.Rank()]}
				require.NoError(t, m.Import(kit.OnFS(ctx, fsys), path, &fsdp.ImportOptions{Transpose: transpose}))
			})
			info, err := os.Stat(path)
			require.NoError(t, err)
			data := int64(0)
			tensors, _ := kit.ParseFile(t, path)
			for _, x := range tensors {
				data += x.Offsets[1] - x.Offsets[0]
			}
			if most := 4*(info.Size()-data+c.shared) + data; !c.all {
				require.LessOrEqual(t, read[0]+read[1]+read[2]+read[3], most)
			}
			require.Less(t, calls[0], int64(50))
		})
	}
}

type countingFS struct {
	checkpoint.FS
	bytes, calls *int64
}

func (f *countingFS) Open(path string) (checkpoint.Handle, error) {
	h, err := f.FS.Open(path)
	return &countingHandle{h, f}, err
}

type countingHandle struct {
	checkpoint.Handle
	fs *countingFS
}

func (h *countingHandle) ReadAt(b []byte, at int64) (int, error) {
	*h.fs.bytes += int64(len(b))
	*h.fs.calls++
	return h.Handle.ReadAt(b, at)
}

// TestImportWithoutOptimizer passes over the state of an optimizer that the file has, as Load does,
// and over nothing else.
func TestImportWithoutOptimizer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.safetensors")
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, smallModel, fsdp.Config{Group: g})
		opt, err := optim.AdamW{}.New(m.Params())
		require.NoError(t, err)
		require.NoError(t, m.Export(ctx, path, &fsdp.ExportOptions{Optimizer: opt}))
		require.NoError(t, m.Import(ctx, path, nil))
		other := kit.Wrap(t, kit.Calls(kit.Call("a", kit.Having(kit.Initial(kit.Weight("w", 31, 3))))), fsdp.Config{Group: g})
		var unfit *fsdp.StateError
		require.ErrorAs(t, other.Import(ctx, path, nil), &unfit)
		require.Equal(t, []string{"a.b", "b.w"}, unfit.Extra)
	})
}

// TestImportMakes makes a tensor that the file lacks: each element once, on the rank that owns it.
// An error of one rank is an error of all, and the model refuses to go on.
func TestImportMakes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.safetensors")
	f := smallFile()
	delete(f, "a.w")
	makeFile(t, path, f, nil)
	missing := &fsdp.ImportOptions{AllowMissing: func(name string) bool { return name == "a.w" }}
	for _, precision := range []fsdp.Precision{{}, kit.Float64s} {
		for ranks := 1; ranks <= 4; ranks++ {
			var made [31 * 3]atomic.Int32
			kit.OnRanks(t, ranks, func(ctx context.Context, g comm.Group) {
				m := kit.Wrap(t, smallModel, fsdp.Config{Group: g, Precision: precision, Frozen: func(name string) bool { return name == "a.w" }})
				fails := g.Rank() == 0
				makers := map[string]state.Maker{"a.w": func(first int, dst []float64) error {
					if fails {
						return errors.New("no idea")
					}
					for i := range dst {
						made[first+i].Add(1)
						dst[i] = float64(first + i)
					}
					return nil
				}}
				err := m.Import(state.WithMake(ctx, makers), path, missing)
				require.ErrorContains(t, err, "making a.w: no idea")
				require.ErrorContains(t, forwardError(ctx, m, g.Rank()), "left parameters partly loaded: call Load or Import again")
				require.NoError(t, g.Barrier(ctx))
				if fails = false; g.Rank() == 0 {
					for i := range made {
						made[i].Store(0)
					}
				}
				require.NoError(t, g.Barrier(ctx))
				require.NoError(t, m.Import(state.WithMake(ctx, makers), path, missing))
				after, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
				require.NoError(t, err)
				for i, x := range kit.Elements(after["a.w"]) {
					require.Equal(t, float64(i), x)
					require.EqualValues(t, 1, made[i].Load())
				}
			})
		}
	}
}
