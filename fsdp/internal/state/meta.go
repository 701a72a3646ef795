package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/optim"
)

// Meta is the part of a checkpoint's manifest that is not about tensors.
type Meta struct {
	// Run identifies the training, see lineage. Earlier versions did not write it.
	Run string `json:"run,omitempty"`

	Seed           uint64 `json:"seed"`
	Forwards       int    `json:"forwards"`                  // training passes: they key dropout
	OptimizerSteps *int   `json:"optimizer_steps,omitempty"` // nil if there was no optimizer

	// OptimizerGroups may be missing: earlier versions did not write them, and later ones do not
	// need them.
	OptimizerGroups []optim.Group `json:"optimizer_groups,omitempty"`

	// NotFinite is the number of values that are NaN or infinite, which an option has allowed. Earlier
	// versions did not look for them.
	NotFinite int `json:"not_finite,omitempty"`

	// Base lists the parameters that the checkpoint lacks, as they were frozen and the option
	// TrainedOnly was given.
	Base []BaseTensor `json:"base,omitempty"`

	Extra     Extras   `json:"extra,omitempty"`
	RankExtra []Extras `json:"rank_extra"`        // by rank
	Buffers   []string `json:"buffers,omitempty"` // names of the parameters that are buffers
	Config    []string `json:"config"`            // for people to read
}

// Extras are the user's values, as JSON.
type Extras map[string]json.RawMessage

// encodeExtras encodes the values of an option.
func encodeExtras(option string, values map[string]any) (Extras, error) {
	if len(values) == 0 {
		return nil, nil
	}
	all := make(Extras, len(values))
	for name, v := range values {
		var text []byte
		err := ranks.Guarded("encoding", func() (err error) { // v may encode itself
			text, err = json.Marshal(v)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("%s(%q): %w", option, name, err)
		}
		all[name] = text
	}
	return all, nil
}

// fields returns m in the form that a manifest keeps.
func (m Meta) fields() (fields map[string]json.RawMessage, err error) {
	text, err := json.Marshal(m)
	if err == nil {
		err = json.Unmarshal(text, &fields)
	}
	return fields, err
}

// parseMeta is the reverse of fields, for the manifest of world ranks.
func parseMeta(fields map[string]json.RawMessage, world int) (m Meta, err error) {
	text, err := json.Marshal(fields)
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	switch {
	case err != nil:
		return m, fmt.Errorf("the manifest's record of the training is invalid: %w", err)
	case m.Forwards < 0 || m.OptimizerSteps != nil && *m.OptimizerSteps < 0:
		return m, errors.New("the manifest has a negative number of passes or steps")
	case len(m.RankExtra) != world:
		return m, fmt.Errorf("the manifest has RankExtra values of %d ranks, but %d ranks wrote the checkpoint", len(m.RankExtra), world)
	}
	return m, nil
}

// countsKey is the key in a file's metadata of the counts of an optimizer, as JSON.
const countsKey = "gofsdp.optimizer"

// optimizerCounts is the value of countsKey.
type optimizerCounts struct {
	Steps   int            `json:"steps"`            // calls of Step
	Updates map[string]int `json:"updates"`          // by parameter, with its name in the file
	Groups  []optim.Group  `json:"groups,omitempty"` // likewise; earlier versions did not write them
}

// parseCounts decodes the metadata of an optimizer.
func parseCounts(text string) (c optimizerCounts, err error) {
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return c, err
	}
	least := c.Steps
	for _, n := range c.Updates {
		least = min(least, n)
	}
	if least < 0 {
		return c, fmt.Errorf("the number of optimizer steps is %d: it must not be negative", least)
	}
	return c, nil
}

// of returns how many updates the optimizer has made to a tensor of its state, or -1 for any other
// tensor.
func (c *optimizerCounts) of(tensor string) int {
	_, param, entry := strings.Cut(tensor, ":")
	if n, ok := c.Updates[param]; entry && ok {
		return n
	}
	return -1
}
