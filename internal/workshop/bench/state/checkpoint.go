package state

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/gofsdp/gofsdp/fsdp"
)

// stateCheckpoints measures checkpoints of values and state, compared with plain files of the same
// size.
type stateCheckpoints struct {
	*stateRank
	half *stateHolder // the model on the first half of the ranks, nil on the others
}

// checkpoint measures saving and loading.
func (r *stateRank) checkpoint(ctx context.Context) (err error) {
	c := &stateCheckpoints{stateRank: r}
	color := 0
	if r.Rank >= r.Size/2 {
		color = -1
	}
	g, err := r.group.Split(ctx, color, r.Rank)
	if err != nil {
		return err
	}
	if g != nil {
		if c.half, err = r.hold(ctx, g); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.half.Close()) }()
	}
	rows, trials := c.trials()
	if err := r.measure(ctx, trials); err != nil || r.Rank != 0 {
		return err
	}
	return r.reportCheckpoints(rows)
}

// trials returns the measurements, and their rows in the order of the report.
func (c *stateCheckpoints) trials() (rows []*stateRow, trials []*stateTrial) {
	peer := stateFilePeers[statePeerOf{c.Model, c.Size}]
	values, all := 4*c.model.params(), 12*c.model.params()
	write := &stateRow{name: "plain write", bytes: all, peer: peer.write}
	synced := &stateRow{name: "plain write, fsync", bytes: all}
	read := &stateRow{name: "plain read", bytes: all, peer: peer.read}
	row := func(against *stateRow, bytes int, peer float64, format string, args ...any) *stateRow {
		return &stateRow{name: fmt.Sprintf(format, args...), bytes: bytes, peer: peer, against: []*stateRow{against}}
	}
	for _, own := range []*stateRow{write, synced} {
		own.against = []*stateRow{synced}
	}
	read.against = []*stateRow{read}
	trials = []*stateTrial{
		{rows: []*stateRow{write, synced}, prepare: remove(c.plain()), run: c.writeFile},
		{rows: []*stateRow{row(synced, all, peer.save, "Save")}, prepare: c.removeCheckpoints, run: c.save},
		{rows: []*stateRow{row(synced, all, 0, "SaveAsync, training waits"), row(synced, all, 0, "SaveAsync, until on disk")},
			prepare: c.removeCheckpoints, run: c.saveAsync},
		{rows: []*stateRow{row(synced, values, 0, "Export of parameters")}, prepare: remove(c.exported()), run: c.export},
		{rows: []*stateRow{read}, run: c.readFile},
		c.loading(row(read, all, peer.load, "Load on %d ranks", c.Size), c.held, true, c.load),
		c.loading(row(read, all, 0, "Load on %d", c.Size/2), c.half, true, c.load),
		c.loading(row(read, values, 0, "Import of parameters"), c.held, false, c.imported),
	}
	for _, t := range trials {
		rows = append(rows, t.rows...)
	}
	return rows, trials
}

func (c *stateCheckpoints) checkpoints() string { return filepath.Join(c.Dir, "checkpoints") }
func (c *stateCheckpoints) exported() string    { return filepath.Join(c.Dir, "model.safetensors") }
func (c *stateCheckpoints) plain() string {
	return filepath.Join(c.Dir, fmt.Sprintf("plain-%d", c.Rank))
}

// remove makes room for the next file of that name.
func remove(path string) func(context.Context) error {
	return func(context.Context) error { return os.RemoveAll(path) }
}

// writeFile writes the bytes of this rank to a file, and nothing else.
func (c *stateCheckpoints) writeFile(_ context.Context, lap func()) error {
	f, err := os.Create(c.plain())
	if err != nil {
		return err
	}
	for part := range c.held.memory {
		if err == nil {
			_, err = f.Write(part)
		}
	}
	lap()
	return errors.Join(err, f.Sync(), f.Close())
}

// readFile reads the file back to the same memory.
func (c *stateCheckpoints) readFile(context.Context, func()) error {
	f, err := os.Open(c.plain())
	if err != nil {
		return err
	}
	for part := range c.held.memory {
		if err == nil {
			_, err = io.ReadFull(f, part)
		}
	}
	return errors.Join(err, f.Close())
}

// removeCheckpoints makes room for the next one.
func (c *stateCheckpoints) removeCheckpoints(ctx context.Context) error {
	for c.Rank == 0 {
		path, err := fsdp.LatestCheckpoint(c.checkpoints())
		if errors.Is(err, fsdp.ErrNoCheckpoint) {
			break
		}
		if err == nil {
			err = os.RemoveAll(path)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *stateCheckpoints) save(ctx context.Context, _ func()) error {
	return c.held.Save(ctx, c.checkpoints(), c.held.opt, nil)
}

func (c *stateCheckpoints) saveAsync(ctx context.Context, lap func()) error {
	saving, err := c.held.SaveAsync(ctx, c.checkpoints(), c.held.opt, nil)
	if err != nil {
		return err
	}
	lap()
	return saving.Wait(ctx)
}

func (c *stateCheckpoints) export(ctx context.Context, _ func()) error {
	return c.held.Export(ctx, c.exported(), nil)
}

// loading is a trial that fills h with values and, if asked for, state. h is nil on ranks that do
// nothing.
func (c *stateCheckpoints) loading(row *stateRow, h *stateHolder, state bool, load func(context.Context, *stateHolder) error) *stateTrial {
	if h == nil {
		return &stateTrial{rows: []*stateRow{row}, run: func(context.Context, func()) error { return nil }}
	}
	return &stateTrial{
		rows: []*stateRow{row},
		prepare: func(context.Context) error {
			h.forget(state)
			return nil
		},
		run: func(ctx context.Context, _ func()) error { return load(ctx, h) },
		finish: func(first bool) error {
			if !first {
				return nil
			}
			return h.check()
		},
	}
}

func (c *stateCheckpoints) load(ctx context.Context, h *stateHolder) error {
	_, err := h.Load(ctx, c.checkpoints(), h.opt, nil)
	return err
}

func (c *stateCheckpoints) imported(ctx context.Context, h *stateHolder) error {
	return h.Import(ctx, c.exported(), nil)
}
