package main

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/optim"
)

// about is the metadata that fsdp.Save writes into a manifest in addition to the tensors. Other
// writers may leave any of it out.
type about struct {
	Seed            *uint64                      `json:"seed"`
	Forwards        *int                         `json:"forwards"`
	OptimizerSteps  *int                         `json:"optimizer_steps"`
	OptimizerGroups []optim.Group                `json:"optimizer_groups"`
	Extra           map[string]json.RawMessage   `json:"extra"`
	RankExtra       []map[string]json.RawMessage `json:"rank_extra"` // by rank
	Buffers         []string                     `json:"buffers"`    // names of buffers
	Base            []baseTensor                 `json:"base"`       // frozen parameters that Save has left out
}

// A baseTensor is a parameter that the checkpoint lacks (SaveOptions.TrainedOnly).
type baseTensor struct {
	Param string `json:"param"`
	Owner int    `json:"owner"`
	Shape []int  `json:"shape"`
}

// name returns the name of the parameter.
func (b *baseTensor) name() string { return checkpoint.Key{Param: b.Param, Owner: b.Owner}.Name() }

// readAbout reads a manifest's metadata about the training.
func readAbout(m *checkpoint.Manifest) (*about, error) {
	a := new(about)
	text, err := json.Marshal(m.Meta)
	if err == nil {
		err = json.Unmarshal(text, a)
	}
	if err != nil {
		return nil, fmt.Errorf("the manifest's record of the training is invalid: %w", err)
	}
	return a, nil
}

// isBuffer reports whether a tensor is a buffer, of which every rank has its own. The other tensors
// that ranks own are the parameters of units with their own process groups: experts.
func (a *about) isBuffer(k checkpoint.Key) bool {
	return k.Owner != checkpoint.Shared && k.Entry == "" && slices.Contains(a.Buffers, k.Param)
}
