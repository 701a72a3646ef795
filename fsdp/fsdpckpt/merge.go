package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"slices"

	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/safetensors"
	"github.com/gofsdp/gofsdp/optim"
)

var mergeCommand = command{
	name: "merge", args: "PATH OUT.safetensors", n: 2, short: "one file for other programs",
	long: `
Writes the whole parameters and buffers of a checkpoint into one safetensors
file, like fsdp.Export. Frozen parameters that fsdp.Save has left out (option
TrainedOnly) are left out here, too. Buffers are rank 0's. A parameter that
belongs to one rank, such as an expert's, keeps its name "name@rank". All data
is compared with its checksums. The file appears under its name when it is
complete, and replaces an older one. The command needs memory for one chunk,
whatever the model's size.`,
	flags: func(f *flag.FlagSet) action {
		var m merger
		f.BoolVar(&m.optimizer, "optimizer", false, `also write the optimizer state, as "exp_avg:name"`)
		f.StringVar(&m.prefix, "prefix", "", "put this `text` before every parameter's name, such as transformer.")
		f.Func("dtype", "write parameters and buffers as this `type`: bf16, f16, f32 or f64\n(default: unchanged)", m.setType)
		return m.run
	},
}

// merger has the options of a merge.
type merger struct {
	optimizer bool
	prefix    string
	as        safetensors.DType // "" for the type in the checkpoint
}

func (m *merger) setType(name string) error {
	types := map[string]safetensors.DType{"bf16": safetensors.BF16, "f16": safetensors.F16, "f32": safetensors.F32, "f64": safetensors.F64}
	var ok bool
	if m.as, ok = types[name]; !ok {
		return errors.New("want bf16, f16, f32 or f64")
	}
	return nil
}

// optimizerKey is the metadata key under which fsdp.Export stores the counts of an optimizer in a
// file, and fsdp.Import finds them.
const optimizerKey = "gofsdp.optimizer"

// optimizerCounts is the value of optimizerKey, as JSON.
type optimizerCounts struct {
	Steps   int            `json:"steps"`
	Updates map[string]int `json:"updates"`          // by parameter, with its name in the file
	Groups  []optim.Group  `json:"groups,omitempty"` // likewise
}

// A merged tensor has a new name and type.
type merged struct {
	*checkpoint.Tensor
	as safetensors.Tensor
}

func (m *merger) run(ctx context.Context, sys system, args []string) (err error) {
	out := filepath.Clean(args[1])
	if err := noCheckpoint(sys.fs, filepath.Dir(out)); err != nil {
		return err
	}
	r, dir, err := open(ctx, sys, args[0])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	a, err := readAbout(r.Manifest())
	if err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	list, header, err := m.plan(r.Manifest(), a)
	if err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	var total int64
	for _, t := range list {
		total += tensorBytes(t.Tensor)
	}
	p := newProgress(sys.err, "merging", total)
	c := newCopier(r, p)
	err = replace(sys.fs, out, func(w io.Writer) error {
		if _, err := w.Write(header.Encode()); err != nil {
			return err
		}
		for _, t := range list {
			if err := c.copy(ctx, w, t.Tensor, t.as.DType); err != nil {
				return err
			}
		}
		return nil
	})
	p.end()
	if err != nil {
		return err
	}
	last := header.DataStart
	if n := len(header.Tensors); n > 0 {
		last = header.Tensors[n-1].Offset + header.Tensors[n-1].Size
	}
	fmt.Fprintf(sys.out, "%s: %s, %s, of %s\n", out, plural(len(list), "tensor"), sizeText(last), dir)
	if n := len(a.Base); n > 0 {
		fmt.Fprintf(sys.out, "%s, such as %s, %s not in it: they were frozen, and Save has left them out.\nSharded.Export writes a whole model.\n",
			plural(n, "parameter"), a.Base[0].name(), map[bool]string{true: "is", false: "are"}[n == 1])
	}
	return nil
}

// plan chooses the tensors and lays out the file.
func (m *merger) plan(manifest *checkpoint.Manifest, a *about) ([]merged, *safetensors.Header, error) {
	var list []merged
	counts := optimizerCounts{Updates: make(map[string]int)}
	for i := range manifest.Tensors {
		t := &manifest.Tensors[i]
		k, dtype := t.Key, t.DType
		k.Param = m.prefix + k.Param
		switch {
		case k.Entry != "" && !m.optimizer, a.isBuffer(t.Key) && k.Owner != 0:
			continue
		case k.Entry != "":
			counts.Updates[checkpoint.Key{Param: k.Param, Owner: k.Owner}.Name()] = t.Steps
		case m.as != "" && !dtype.IsFloat():
			return nil, nil, fmt.Errorf("%s is %s, which -dtype cannot convert", t.Name(), dtype)
		case m.as != "":
			dtype = m.as
		}
		if a.isBuffer(t.Key) {
			k.Owner = checkpoint.Shared
		}
		list = append(list, merged{t, safetensors.Tensor{Name: k.Name(), DType: dtype, Shape: t.Shape}})
	}
	metadata := map[string]string{"format": "pt"} // required by Python's transformers
	if m.optimizer {
		if a.OptimizerSteps == nil {
			return nil, nil, errors.New("-optimizer: the checkpoint has no optimizer state")
		}
		counts.Steps, counts.Groups = *a.OptimizerSteps, a.OptimizerGroups
		for _, g := range counts.Groups {
			for i := range g.Params {
				g.Params[i] = m.prefix + g.Params[i]
			}
		}
		text, err := json.Marshal(counts)
		if err != nil {
			return nil, nil, err
		}
		metadata[optimizerKey] = string(text)
	}
	slices.SortStableFunc(list, func(t, u merged) int { return safetensors.Order(t.as, u.as) })
	tensors := make([]safetensors.Tensor, len(list))
	for i, t := range list {
		tensors[i] = t.as
	}
	header, err := safetensors.NewHeader(tensors, metadata)
	return list, header, err
}

// replace writes a file that gets its name only when all of it is on disk. Before that, and after
// an error, the previous file stays.
func replace(fsys checkpoint.FS, path string, content func(w io.Writer) error) error {
	draft := fmt.Sprintf("%s.tmp-%08x", path, rand.Uint32())
	err := writeFile(fsys, draft, content)
	if err == nil {
		err = fsys.Rename(draft, path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("%s was not written: %w", path, err), fsys.RemoveAll(draft))
	}
	if err := fsys.SyncDir(filepath.Dir(path)); err != nil {
		return fmt.Errorf("%s was written, but a power failure may undo this: %w", path, err)
	}
	return nil
}
