package nccl

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gofsdp/gofsdp/comm"
)

// Before every collective the ranks exchange a record each, over meta:
//
//	byte  0      what the rank is about to do
//	bytes 8..72  the signature of its call
const (
	signatureAt = 8
	recordSize  = signatureAt + comm.SignatureSize
)

const (
	inPlace byte = iota // a collective, in device memory
	staged              // a collective, with a host buffer
	leaving             // nothing any more
)

// records are those of all ranks.
type records struct {
	mine, all       []byte
	mineBuf, allBuf comm.Buffer
}

func newRecords(meta comm.Group) records {
	r := records{mine: make([]byte, recordSize), all: make([]byte, meta.Size()*recordSize)}
	r.mineBuf, r.allBuf = comm.Of(r.mine).Named("calls"), comm.Of(r.all).Named("calls")
	return r
}

func (r *records) of(rank int) []byte { return r.all[rank*recordSize:][:recordSize] }

// onHost reports whether some of b lies in host memory.
func onHost(b comm.Buffer) bool {
	_, device := b.Device()
	return !device && b.Len() > 0
}

// meet returns when all ranks have come to collective seq and want the same; it reports
// whether one has a host buffer.
func (b *backend) meet(ctx context.Context, seq uint64, c *comm.Call) (stage bool, err error) {
	if !b.enter() {
		return false, errHalted
	}
	b.records.mine[0] = inPlace
	if onHost(c.Dst) || onHost(c.Src) {
		b.records.mine[0] = staged
	}
	c.Signature().Put(b.records.mine[signatureAt:])
	err = b.meta.AllGather(b.records.allBuf, b.records.mineBuf).Wait(ctx)
	b.exit()
	if err != nil {
		return false, b.missed(ctx, seq, c, err)
	}
	first := b.records.of(0)
	for r := range b.meta.Size() {
		record := b.records.of(r)
		switch {
		case record[0] == leaving:
			b.serial.Left(r, seq-1)
			return false, &comm.RankError{Group: b.name, Rank: r, Err: comm.ErrClosed}
		case record[0] == staged:
			stage = true
		}
	}
	for r := range b.meta.Size() {
		if record := b.records.of(r); !bytes.Equal(first[signatureAt:], record[signatureAt:]) {
			return false, b.mismatch(seq, r)
		}
	}
	return stage, nil
}

// enter begins a call of meta that Stop may end. It returns false if Stop has been called.
func (b *backend) enter() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.meeting = !b.halted
	return b.meeting
}

func (b *backend) exit() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.meeting = false
}

// missed tells the handle why the ranks have not come together: err, of meta.
func (b *backend) missed(ctx context.Context, seq uint64, c *comm.Call, err error) error {
	err = heard(err)
	var blame *comm.RankError
	if !errors.As(err, &blame) {
		b.serial.Failed(err)
		return err
	}
	failing := b.reason(nil) != nil
	switch {
	case ctx.Err() != nil && blame.Rank == b.meta.Rank():
		err = &comm.RankError{Group: b.name, Rank: blame.Rank, Err: fmt.Errorf("%s: %w", numbered(seq, c), blame.Err)}
		b.serial.Failed(err)
	case errors.Is(blame.Err, comm.ErrClosed) && !failing:
		b.serial.Left(blame.Rank, seq-1)
	default:
		b.serial.Failed(err)
	}
	return err
}

// numbered names a collective within its group.
func numbered(seq uint64, c *comm.Call) string {
	if l := c.Label(); l != "" {
		return fmt.Sprintf("%v #%d %q", c.Kind, seq, l)
	}
	return fmt.Sprintf("%v #%d", c.Kind, seq)
}

// mismatch fails the group because rank r has made another call than rank 0. Every rank
// finds the same.
func (b *backend) mismatch(seq uint64, r int) error {
	err := &comm.MismatchError{Group: b.name, Seq: seq, Ranks: [2]int{0, r}}
	for i, rank := range err.Ranks {
		s, bad := comm.ParseSignature(b.records.of(rank)[signatureAt:])
		if bad != nil {
			return &comm.RankError{Group: b.name, Rank: rank, Err: bad}
		}
		err.Calls[i] = s.String()
	}
	return err
}

// divide makes the groups of a split, as far as all ranks of this one have a part in it.
func (b *backend) divide(ctx context.Context, seq uint64, c *comm.Call) error {
	mine, err := comm.Slice[int64](c.Src)
	if err != nil {
		return err
	}
	pairs, err := comm.Slice[int64](c.Dst)
	if err != nil {
		return err
	}
	if !b.enter() {
		return errHalted
	}
	defer b.exit()
	if err := b.meta.AllGather(c.Dst, c.Src).Wait(ctx); err != nil {
		return err
	}
	var p part
	if p.meta, err = b.meta.Split(ctx, int(mine[0]), int(mine[1])); err != nil {
		return err
	}
	color, key := place(pairs, b.meta.Rank())
	limited, done := b.whileGood(ctx)
	p.communicator, err = b.communicator.Split(limited, color, key, b.cfg.Communicator)
	done()
	if p.meta != nil {
		b.mu.Lock()
		b.parts[seq] = p // also if it failed: the others are told why before the part is closed
		b.mu.Unlock()
	}
	return err
}

// place returns a color and a key for NCCL, which are 32 bits there, that mean the same as
// those of rank in pairs, which holds the (color, key) of every rank.
func place(pairs []int64, rank int) (color, key int) {
	own := pairs[2*rank : 2*rank+2]
	if own[0] < 0 {
		return NoColor, 0
	}
	var colors []int64
	for r := range len(pairs) / 2 {
		colors = append(colors, pairs[2*r])
		if k := cmp.Compare(pairs[2*r+1], own[1]); pairs[2*r] == own[0] && (k < 0 || k == 0 && r < rank) {
			key++
		}
	}
	slices.Sort(colors)
	color, _ = slices.BinarySearch(slices.Compact(colors), own[0])
	return color, key
}

// grace is how long a rank that closes the group waits for the others to do so or to want
// more, before it takes it that they need nothing from it any more.
var grace = time.Second

// farewell reports whether all ranks leave the group now.
func (b *backend) farewell() bool {
	b.records.mine[0] = leaving
	work, met := b.meta.AllGather(b.records.allBuf, b.records.mineBuf), make(chan error, 1)
	go func() { met <- work.Wait(context.Background()) }()
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case err := <-met:
		if err != nil {
			return false
		}
	case <-timer.C:
		_ = b.meta.Close() // ends the wait; Leave closes it again, for the answer
		<-met
		return false
	}
	for r := range b.meta.Size() {
		if b.records.of(r)[0] != leaving {
			return false
		}
	}
	return true
}
