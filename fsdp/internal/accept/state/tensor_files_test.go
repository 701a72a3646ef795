package state_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/optim"
)

// inParts are options of a file in which parameters of smallModel are several tensors: a.w [31, 3]
// is three, one of them empty, and b.w [5, 11] is two that lie transposed.
func inParts() *fsdp.ExportOptions {
	return &fsdp.ExportOptions{
		Concat: func(name string) []fsdp.Part {
			switch name {
			case "a.w":
				return []fsdp.Part{{Name: "q", Rows: 10}, {Name: "none", Rows: 0}, {Name: "k", Rows: 21}}
			case "b.w":
				return []fsdp.Part{{Name: "up", Rows: 2}, {Name: "gate", Rows: 3}}
			}
			return nil
		},
		Transpose: func(name string) bool { return name == "b.w" },
		Rename:    func(name string) string { return "x." + name },
	}
}

// fromParts are options that import such a file.
func fromParts() *fsdp.ImportOptions {
	to := inParts()
	return &fsdp.ImportOptions{Concat: to.Concat, Transpose: to.Transpose, Rename: to.Rename}
}

// weightMap is where an index has tensors.
func weightMap(t *testing.T, path string) map[string]string {
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var index struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	require.NoError(t, json.Unmarshal(text, &index))
	return index.WeightMap
}

// TestParts exports and imports parameters that are several tensors there, in one file and in
// several, on any number of ranks, to the bit.
func TestParts(t *testing.T) {
	for world := 1; world <= 4; world++ {
		for _, split := range []int64{0, 1, 300, 1 << 20} {
			t.Run(fmt.Sprintf("%d ranks, at %d", world, split), func(t *testing.T) {
				dir := t.TempDir()
				path := filepath.Join(dir, "model.safetensors")
				index := path
				if split > 0 && split < 1<<20 {
					index = path + ".index.json"
				}
				var want kit.Bits
				kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
					m := kit.Wrap(t, smallModel, fsdp.Config{Group: g, Seed: 5})
					was := kit.StateBits(t, ctx, m)
					to := inParts()
					to.MaxFileSize, to.ExtraFiles = split, map[string][]byte{"config.json": fmt.Append(nil, g.Rank())}
					require.NoError(t, m.Export(ctx, path, to))
					next := kit.Wrap(t, smallModel, fsdp.Config{Group: g, Seed: 6})
					require.NoError(t, next.Import(ctx, index, fromParts()))
					kit.RequireSameBits(t, was, kit.StateBits(t, ctx, next))
					if g.Rank() == 0 {
						want = was
					}
				})
				config, err := os.ReadFile(filepath.Join(dir, "config.json"))
				require.NoError(t, err)
				require.Equal(t, "0", string(config), "it is rank 0's")
				requireParts(t, dir, index, want)
				_, err = os.Stat(path)
				require.Equal(t, index == path, err == nil)
			})
		}
	}
}

// requireParts reads the files with a parser that knows only the format.
func requireParts(t *testing.T, dir, index string, want kit.Bits) {
	tensors := make(map[string]*kit.FileTensor)
	if filepath.Ext(index) == ".json" {
		for name, file := range weightMap(t, index) {
			all, _ := kit.ParseFile(t, filepath.Join(dir, file))
			tensors[name] = all[name]
		}
	} else {
		tensors, _ = kit.ParseFile(t, index)
	}
	require.Equal(t, []string{"gate", "k", "none", "q", "up", "x.a.b"}, kit.SortedKeys(tensors))
	bitsOfData := func(parts ...[]float64) (all []uint64) {
		for _, v := range slices.Concat(parts...) {
			all = append(all, math.Float64bits(v))
		}
		return all
	}
	require.EqualValues(t, want["a.w"], bitsOfData(tensors["q"].Data, tensors["none"].Data, tensors["k"].Data))
	require.EqualValues(t, want["a.b"], bitsOfData(tensors["x.a.b"].Data))
	require.Equal(t, []int{11, 2}, tensors["up"].Shape)
	require.EqualValues(t, want["b.w"], bitsOfData(kit.Turned(tensors["up"].Data, 11, 2), kit.Turned(tensors["gate"].Data, 11, 3)))
}

// TestPartsReadTheirOwn counts what ranks read of a parameter that is three tensors in two files.
func TestPartsReadTheirOwn(t *testing.T) {
	model := kit.Calls(kit.Call("a", kit.Having(kit.Initial(kit.Weight("w", 3000, 100)), kit.Initial(kit.Weight("v", 1000, 100)))))
	path := filepath.Join(t.TempDir(), "model.safetensors")
	join := func(name string) []fsdp.Part {
		if name == "a.v" {
			return nil
		}
		return []fsdp.Part{{Name: "q", Rows: 1000}, {Name: "k", Rows: 500}, {Name: "v", Rows: 1500}}
	}
	var read, calls [4]int64
	kit.OnRanks(t, 4, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, model, fsdp.Config{Group: g})
		require.NoError(t, m.Export(ctx, path, &fsdp.ExportOptions{Concat: join, MaxFileSize: 1_200_000, DType: new(fsdp.BFloat16)}))
		require.NoError(t, m.Export(ctx, path, &fsdp.ExportOptions{Concat: join, MaxFileSize: 600_000, DType: new(fsdp.BFloat16)}))
		fsys := &countingFS{FS: checkpoint.OS(), bytes: &read[g.Rank()], calls: &calls[g.Rank()]}
		require.NoError(t, m.Import(kit.OnFS(ctx, fsys), path+".index.json", &fsdp.ImportOptions{Concat: join}))
	})
	for r := range read {
		require.InDelta(t, 400_000*2/4, read[r], 3000, "rank %d: its share of bfloat16, two headers and the index", r)
	}
}

// TestSplitReplaces removes the files of an earlier export that a new one does not replace, and no
// others.
func TestSplitReplaces(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "model.safetensors")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "model-1-of-2.safetensors"), nil, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "model-00001-of-00002.safetensors.tmp-0123abcd"), nil, 0o600))
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, smallModel, fsdp.Config{Group: g})
		for _, c := range []struct {
			at   int64
			left []string
		}{
			{1 << 20, []string{"model.safetensors"}},
			{1, []string{"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors", "model.safetensors.index.json"}},
			{400, []string{"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"}},
			{1 << 20, []string{"model.safetensors"}},
		} {
			require.NoError(t, m.Export(ctx, path, &fsdp.ExportOptions{MaxFileSize: c.at}))
			if g.Rank() == 0 {
				left, err := filepath.Glob(filepath.Join(dir, "*"))
				require.NoError(t, err)
				for i := range left {
					left[i] = filepath.Base(left[i])
				}
				want := append([]string{"model-1-of-2.safetensors"}, c.left...)
				slices.Sort(want)
				require.Equal(t, want, left)
			}
		}
	})
}

// TestSplitFails fails at each operation of a disk in turn: on every rank, without a file left that
// is not complete, and never with an index of files that are not there.
func TestSplitFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "model.safetensors")
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, smallModel, fsdp.Config{Group: g})
		for failAt := 1; ; failAt++ {
			fsys := &failingFS{FS: checkpoint.OS(), left: failAt}
			err := m.Export(kit.OnFS(ctx, fsys), path, &fsdp.ExportOptions{MaxFileSize: 400, ExtraFiles: map[string][]byte{"b": nil}})
			if g.Rank() == 0 {
				temps, _ := filepath.Glob(filepath.Join(dir, "*.tmp-*"))
				require.Empty(t, temps)
				if _, none := os.Stat(path + ".index.json"); none == nil {
					for _, file := range weightMap(t, path+".index.json") {
						kit.ParseFile(t, filepath.Join(dir, file))
					}
				}
			}
			require.NoError(t, g.Barrier(ctx))
			if err == nil {
				require.Greater(t, failAt, 15)
				return
			}
			require.ErrorContains(t, err, kit.ErrDiskFull.Error())
		}
	})
}

// TestPartsErrors checks what every rank hears of options and indices that do not fit, and that
// nothing has changed.
func TestPartsErrors(t *testing.T) {
	join := func(parts ...fsdp.Part) *fsdp.ImportOptions {
		return &fsdp.ImportOptions{Concat: func(name string) []fsdp.Part {
			if name != "a.w" {
				return nil
			}
			return parts
		}}
	}
	const whole = `{"weight_map": {"a.w": "m", "a.b": "m", "b.w": "m"}}`
	for name, c := range map[string]struct {
		index string
		opts  func(opt optim.Optimizer) *fsdp.ImportOptions
		want  string
	}{
		"too few rows": {whole, func(optim.Optimizer) *fsdp.ImportOptions {
			return join(fsdp.Part{Name: "q", Rows: 30})
		},
			"option Concat: the parts of a.w [31 3] have 30 rows in total, and must have all its rows: [{q 30}]"},
		"negative": {whole, func(optim.Optimizer) *fsdp.ImportOptions {
			return join(fsdp.Part{Name: "q", Rows: 32}, fsdp.Part{Name: "k", Rows: -1})
		}, "option Concat gives a.w a part with -1 rows"},
		"twice": {whole, func(optim.Optimizer) *fsdp.ImportOptions {
			return join(fsdp.Part{Name: "q", Rows: 30}, fsdp.Part{Name: "q", Rows: 1})
		}, `option Concat gives both a.w and a.w the name "q"`},
		"optimizer": {whole, func(opt optim.Optimizer) *fsdp.ImportOptions {
			o := fromParts()
			o.Optimizer = opt
			return o
		},
			"options Concat and Exclude cannot be given with Optimizer"},
		"parts missing": {whole, func(optim.Optimizer) *fsdp.ImportOptions {
			return join(fsdp.Part{Name: "q", Rows: 30}, fsdp.Part{Name: "k", Rows: 1})
		}, "does not fit the model: missing q, k, see AllowMissing; extra a.w"},
		"part reshaped": {whole, func(optim.Optimizer) *fsdp.ImportOptions {
			return join(fsdp.Part{Name: "a.w", Rows: 30}, fsdp.Part{Name: "k", Rows: 1})
		}, "does not fit the model: missing k, see AllowMissing; reshaped a.w [31 3] -> [30 3]"},
		"no JSON":        {`{"weight_map": `, nil, "model.safetensors.index.json: unexpected EOF"},
		"no map":         {`{"metadata": {}}`, nil, "model.safetensors.index.json: the index has no weight_map"},
		"elsewhere":      {`{"weight_map": {"a.w": "../m"}}`, nil, `tensor "a.w" is in "../m", which is not a file name next to the index`},
		"directory":      {`{"weight_map": {"a.w": "."}}`, nil, `tensor "a.w" is in ".", which is not a file name next to the index`},
		"no such file":   {`{"weight_map": {"a.w": "n"}}`, nil, "n: no such file"},
		"not in file":    {`{"weight_map": {"a.w": "m", "a.b": "m", "b.w": "m", "c.w": "m"}}`, nil, `the index has tensor "c.w" in m, but that file does not contain it`},
		"not in index":   {`{"weight_map": {"a.w": "m", "a.b": "m"}}`, nil, `tensor "b.w" is in m, but the index has it in ""`},
		"index is right": {whole, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			makeFile(t, filepath.Join(dir, "m"), smallFile(), nil)
			path := filepath.Join(dir, "model.safetensors.index.json")
			require.NoError(t, os.WriteFile(path, []byte(c.index), 0o600))
			kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
				m := kit.Wrap(t, smallModel, fsdp.Config{Group: g})
				opt, err := optim.AdamW{}.New(m.Params())
				require.NoError(t, err)
				before := kit.StateBits(t, ctx, m)
				var opts *fsdp.ImportOptions
				if c.opts != nil {
					opts = c.opts(opt)
				}
				err = m.Import(ctx, path, opts)
				if c.want == "" {
					require.NoError(t, err)
					return
				}
				require.ErrorContains(t, err, c.want)
				kit.RequireSameBits(t, before, kit.StateBits(t, ctx, m))
			})
		})
	}
}

// TestExclude exports a part of the model, and ExtraFiles says which names it does not take.
func TestExclude(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.safetensors")
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, smallModel, fsdp.Config{Group: g})
		require.NoError(t, m.Export(ctx, path, &fsdp.ExportOptions{Exclude: func(name string) bool { return name == "a.w" }}))
		for _, name := range []string{"../x", "", "model.safetensors", ".", "a/../x", "a/", "/x"} {
			err := m.Export(ctx, path, &fsdp.ExportOptions{ExtraFiles: map[string][]byte{name: nil}})
			require.ErrorContains(t, err, fmt.Sprintf("option ExtraFiles: %q is not a valid file name next to", name))
		}
		require.ErrorContains(t, m.Export(ctx, path, &fsdp.ExportOptions{MaxFileSize: -1}), "option MaxFileSize is -1: want a number of bytes")
	})
	tensors, _ := kit.ParseFile(t, path)
	require.Equal(t, []string{"a.b", "b.w"}, kit.SortedKeys(tensors))
}

// TestFilesInDirectories writes small files into directories next to the file, and removes what an
// Export that was killed has left there.
func TestFilesInDirectories(t *testing.T) {
	dir := t.TempDir()
	left := filepath.Join(dir, "a", "b", "x.json.tmp-0123abcd")
	require.NoError(t, os.MkdirAll(filepath.Dir(left), 0o700))
	require.NoError(t, os.WriteFile(left, nil, 0o600))
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, smallModel, fsdp.Config{Group: g})
		opts := &fsdp.ExportOptions{ExtraFiles: map[string][]byte{"a/b/x.json": []byte("x"), "c/y.json": []byte("y"), "z.json": []byte("z")}}
		for range 2 {
			require.NoError(t, m.Export(ctx, filepath.Join(dir, "model.safetensors"), opts))
		}
	})
	for name, want := range map[string]string{"a/b/x.json": "x", "c/y.json": "y", "z.json": "z"} {
		text, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(name)))
		require.NoError(t, err)
		require.Equal(t, want, string(text))
	}
	require.NoFileExists(t, left)
}

// TestFilesOfRankZero gives the files and the metadata of an export on rank 0 only, as they are the
// only ones that are written.
func TestFilesOfRankZero(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "model.safetensors")
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, smallModel, fsdp.Config{Group: g})
		opts := &fsdp.ExportOptions{}
		if g.Rank() == 0 {
			opts.ExtraFiles, opts.Metadata = map[string][]byte{"config.json": []byte("{}")}, map[string]string{"made by": "rank 0"}
		}
		require.NoError(t, m.Export(ctx, path, opts))
	})
	config, err := os.ReadFile(filepath.Join(dir, "config.json"))
	require.NoError(t, err)
	require.Equal(t, "{}", string(config))
	_, metadata := kit.ParseFile(t, path)
	require.Equal(t, "rank 0", metadata["made by"])
}
