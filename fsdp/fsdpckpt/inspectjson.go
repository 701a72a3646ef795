package main

import (
	"encoding/json"

	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/safetensors"
	"github.com/gofsdp/gofsdp/optim"
)

// The JSON of inspect. Sizes are bytes, offsets and lengths are elements.
type (
	checkpointJSON struct {
		Path            string                       `json:"path"`
		Step            int                          `json:"step"`
		Ranks           int                          `json:"ranks"`
		Seed            *uint64                      `json:"seed,omitempty"`
		Passes          *int                         `json:"passes,omitempty"`
		OptimizerSteps  *int                         `json:"optimizer_steps,omitempty"`
		OptimizerGroups []optim.Group                `json:"optimizer_groups,omitempty"`
		Base            []baseTensor                 `json:"base,omitempty"` // frozen and left out
		Extra           map[string]json.RawMessage   `json:"extra,omitempty"`
		RankExtra       []map[string]json.RawMessage `json:"rank_extra,omitempty"`
		Size            int64                        `json:"size"`
		Files           []fileJSON                   `json:"files"`
		Tensors         []tensorJSON                 `json:"tensors,omitempty"`
	}
	fileJSON struct {
		Name string `json:"name"`
		Size int64  `json:"size"`
	}
	tensorJSON struct {
		Name    string            `json:"name"`
		Param   string            `json:"param"`
		Entry   string            `json:"entry,omitempty"`
		Owner   *int              `json:"owner,omitempty"` // rank, if ranks have their own
		Buffer  bool              `json:"buffer,omitempty"`
		DType   safetensors.DType `json:"dtype"`
		Shape   []int             `json:"shape"`
		Size    int64             `json:"size"`
		Updates int               `json:"updates,omitempty"`
		Pieces  []pieceJSON       `json:"pieces"`
	}
	pieceJSON struct {
		File   string `json:"file"`
		Offset int    `json:"offset"`
		Len    int    `json:"len"`
	}
)

// inspectJSON prints the output of inspect as JSON.
func inspectJSON(sys system, dir string, m *checkpoint.Manifest, a *about, tensors bool) error {
	c := checkpointJSON{
		Path: dir, Step: m.Step, Ranks: m.World, Seed: a.Seed, Passes: a.Forwards, OptimizerSteps: a.OptimizerSteps, OptimizerGroups: a.OptimizerGroups,
		Base: a.Base, Extra: a.Extra, RankExtra: a.RankExtra, Size: fileBytes(m), Files: []fileJSON{},
	}
	for _, f := range m.Files {
		c.Files = append(c.Files, fileJSON{f.Name, f.Size})
	}
	if tensors {
		for i := range m.Tensors {
			c.Tensors = append(c.Tensors, describe(m, &m.Tensors[i], a))
		}
	}
	e := json.NewEncoder(sys.out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(c)
}

func describe(m *checkpoint.Manifest, t *checkpoint.Tensor, a *about) tensorJSON {
	d := tensorJSON{
		Name: t.Name(), Param: t.Param, Entry: t.Entry, Buffer: a.isBuffer(t.Key), DType: t.DType,
		Shape: append([]int{}, t.Shape...), Size: tensorBytes(t), Updates: t.Steps, Pieces: []pieceJSON{},
	}
	if t.Owner != checkpoint.Shared {
		d.Owner = &t.Owner
	}
	for p := range t.All() {
		d.Pieces = append(d.Pieces, pieceJSON{m.Files[p.File].Name, p.Offset, p.Len})
	}
	return d
}
