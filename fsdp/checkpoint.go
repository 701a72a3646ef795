package fsdp

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
)

// A Checkpoint says what Load has loaded.
type Checkpoint struct {
	Path  string // directory of the checkpoint, in the one of all checkpoints
	Step  int    // of the training
	World int    // number of ranks that wrote it
	about checkpointMeta
}

// ErrNoCheckpoint is wrapped by the error of Load and LatestCheckpoint where no save has been completed yet, which is how a first
// run begins. On every rank it is an [fs.ErrNotExist], too. Where there are checkpoints and all of them are damaged, the error is
// another, so that nobody begins anew unawares.
var ErrNoCheckpoint error = checkpoint.ErrNone

// ErrNoExtra is wrapped by the error of Checkpoint.Extra and RankExtra if nothing was saved under the name.
var ErrNoExtra = errors.New("not in the checkpoint")

// LatestCheckpoint returns the directory of the last checkpoint in dir that is complete, or dir if it is one itself.
func LatestCheckpoint(dir string) (path string, err error) {
	if path, err = checkpoint.Latest(checkpoint.OS(), dir); err != nil {
		return "", fmt.Errorf("fsdp: %w", err)
	}
	return path, nil
}

// Extra decodes into v, a pointer, what the option Extra has saved under that name.
func (c *Checkpoint) Extra(name string, v any) error {
	return c.decode(fmt.Sprintf("Extra %q", name), c.about.Extra[name], v)
}

// RankExtra decodes into v what the option RankExtra has saved under that name on a rank of the World that saved.
func (c *Checkpoint) RankExtra(name string, rank int, v any) error {
	if rank < 0 || rank >= len(c.about.RankExtra) {
		return fmt.Errorf("fsdp: checkpoint %s: RankExtra %q of rank %d: %d ranks have written it", c.Path, name, rank, c.World)
	}
	return c.decode(fmt.Sprintf("RankExtra %q of rank %d", name, rank), c.about.RankExtra[rank][name], v)
}

func (c *Checkpoint) decode(what string, text json.RawMessage, v any) error {
	err := ErrNoExtra
	if text != nil {
		err = json.Unmarshal(text, v)
	}
	if err != nil {
		return fmt.Errorf("fsdp: checkpoint %s: %s: %w", c.Path, what, err)
	}
	return nil
}

// checkpointMeta is what a manifest says beside the tensors.
type checkpointMeta struct {
	Seed           uint64   `json:"seed"`
	Forwards       int      `json:"forwards"`                  // training passes: they key dropout
	OptimizerSteps *int     `json:"optimizer_steps,omitempty"` // nil if there was no optimizer
	Extra          extras   `json:"extra,omitempty"`
	RankExtra      []extras `json:"rank_extra"`        // by rank
	Buffers        []string `json:"buffers,omitempty"` // names of the parameters that are buffers: every rank's own
	Config         []string `json:"config"`            // for people: the configuration and the model
}

// extras are values of the user's, as JSON.
type extras map[string]json.RawMessage

// encodeExtras encodes the values of an option.
func encodeExtras(option string, values map[string]any) (extras, error) {
	if len(values) == 0 {
		return nil, nil
	}
	all := make(extras, len(values))
	for name, v := range values {
		var text []byte
		err := ranks.Guarded(func() (err error) { text, err = json.Marshal(v); return err }) // v may encode itself
		if err != nil {
			return nil, fmt.Errorf("%s(%q): %w", option, name, err)
		}
		all[name] = text
	}
	return all, nil
}

// fields returns m as a manifest keeps it.
func (m checkpointMeta) fields() (fields map[string]json.RawMessage, err error) {
	text, err := json.Marshal(m)
	if err == nil {
		err = json.Unmarshal(text, &fields)
	}
	return fields, err
}

// parseMeta is the reverse of fields, for what a manifest of world ranks says.
func parseMeta(fields map[string]json.RawMessage, world int) (m checkpointMeta, err error) {
	text, err := json.Marshal(fields)
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	switch {
	case err != nil:
		return m, fmt.Errorf("what the manifest says about the training: %w", err)
	case m.Forwards < 0 || m.OptimizerSteps != nil && *m.OptimizerSteps < 0:
		return m, fmt.Errorf("the manifest counts fewer than no passes or steps")
	case len(m.RankExtra) != world:
		return m, fmt.Errorf("the manifest has the RankExtra of %d ranks, of %d", len(m.RankExtra), world)
	}
	return m, nil
}

// noCheckpointError is ErrNoCheckpoint in the words of the rank that has looked.
type noCheckpointError struct{ message string }

func (e *noCheckpointError) Error() string { return e.message }
func (e *noCheckpointError) Unwrap() error { return ErrNoCheckpoint }
