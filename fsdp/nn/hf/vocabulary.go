package hf

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/state"
	"github.com/gofsdp/gofsdp/internal/safetensors"
)

// NewRows says how Load makes the rows of tokens that the directory does not have, if the Vocab of
// Model.Model was raised before Wrap. They are rows of the embedding and, unless it is tied, of the
// head. The head's bias has an element for each.
type NewRows uint8

const (
	// NoNewRows makes none: a larger vocabulary is an error.
	NoNewRows NewRows = iota
	// MeanRows are the mean of the rows in the directory. The logits of new tokens are then the
	// mean of the logits of all others, so the model does not prefer them before it has learned.
	MeanRows
	// ZeroRows are zero.
	ZeroRows
	// InitRows keep the initial values of Model.Model, which Wrap draws by Config.Seed.
	InitRows
)

// newRows begins the names, in no file, of rows that Load makes or leaves.
const newRows = "new rows "

// tokens returns the number of tokens when the model was opened, and now.
func (m *Model) tokens() (was, now int, err error) {
	_, keys, err := describe(m.Model)
	was, _ = m.was["vocab_size"].(int)
	now, _ = keys["vocab_size"].(int)
	return was, now, err
}

// grow returns ctx for an Import that makes the rows of new tokens. It cuts them off the parameters
// that have a row for each token: parameters whose first dimension is the number of tokens in the
// model and in the directory. A rank that has none of the rows does not read the others.
func (m *Model) grow(ctx context.Context, names *fsdp.ExportOptions) (context.Context, error) {
	if m.NewRows == NoNewRows {
		return ctx, nil
	}
	if m.NewRows > InitRows {
		return ctx, fmt.Errorf("hf: Load: NewRows is %d, want NoNewRows, MeanRows, ZeroRows or InitRows", m.NewRows)
	}
	was, now, err := m.tokens()
	if err != nil || now <= was {
		return ctx, err
	}
	weights, err := weightsIn(m.dir)
	if err != nil {
		return ctx, err
	}
	makers := make(map[string]state.Maker)
	split := func(name string, shape []int) ([]fsdp.Part, error) {
		t, ok, err := weights.tensor(names.Rename(name))
		if err != nil || !ok || len(t.Shape) == 0 || t.Shape[0] != was || len(shape) == 0 || shape[0] != now {
			return nil, err
		}
		made := fmt.Sprintf("%s(%s) of %s", newRows, [...]string{"", "mean", "zero", "initial"}[m.NewRows], name)
		switch m.NewRows {
		case MeanRows:
			mean := sync.OnceValues(func() ([]float64, error) { return weights.mean(t) })
			makers[made] = func(first int, dst []float64) error {
				row, err := mean()
				for i := range dst {
					if err == nil {
						dst[i] = row[(first+i)%len(row)]
					}
				}
				return err
			}
		case ZeroRows:
			makers[made] = func(_ int, dst []float64) error {
				clear(dst)
				return nil
			}
		}
		return []fsdp.Part{{Name: t.Name, Rows: was}, {Name: made, Rows: now - was}}, nil
	}
	return state.WithSplit(state.WithMake(ctx, makers), split), nil
}

// mean returns the mean of the rows of a tensor, in float64. It adds them up in their order, so
// that all ranks get the same bits, and reads a few at a time.
func (f *files) mean(t located) (row []float64, err error) {
	file, err := os.Open(filepath.Join(f.dir, t.file))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	rows, size := t.Shape[0], t.DType.Size()
	row = make([]float64, int(t.Size)/size/rows)
	some := make([]byte, min(rows, max(1, 1<<20/(len(row)*size)))*len(row)*size)
	for at := int64(0); at < t.Size; at += int64(len(some)) {
		part := some[:min(int64(len(some)), t.Size-at)]
		if err := safetensors.ReadFull(file, part, t.Offset+at); err != nil {
			return nil, fmt.Errorf("%s: tensor %s: %w", t.file, t.Name, err)
		}
		for i := range len(part) / size {
			row[i%len(row)] += safetensors.Float(t.DType, part[i*size:])
		}
	}
	for i := range row {
		row[i] /= float64(rows)
	}
	return row, nil
}

// larger returns err, an error of Load, with advice if the cause is a larger vocabulary.
func (m *Model) larger(err error) error {
	wrong := (*fsdp.StateError)(nil)
	if !errors.As(err, &wrong) || len(wrong.Reshaped) == 0 {
		return err
	}
	if was, now, failed := m.tokens(); failed == nil && now > was {
		return fmt.Errorf("hf: Load: %w: the model has %d tokens and the directory %d: Model.NewRows makes the rows of new tokens, as in m.NewRows = hf.MeanRows",
			err, now, was)
	}
	return err
}
