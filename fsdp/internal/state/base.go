package state

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/checksum"
)

// The base
//
// A checkpoint of the option TrainedOnly lacks the frozen parameters, its base. It has their names,
// shapes and checksums instead, and Load compares them with the frozen parameters of the model. A
// checksum covers the whole parameter, as float32, so it is the same for all layouts, numbers of
// ranks and master types:
//
//	every rank   the checksums of its pieces, as terms of the checksums of the whole   to rank 0
//	rank 0       their sums                                                            to every rank

// A BaseTensor describes a frozen parameter that a checkpoint lacks.
type BaseTensor struct {
	Param string `json:"param"`
	Owner int    `json:"owner"` // as in checkpoint.Key
	Shape []int  `json:"shape"`
	Sum   uint32 `json:"crc32"` // of the elements as little-endian float32
}

func (b *BaseTensor) key() checkpoint.Key { return checkpoint.Key{Param: b.Param, Owner: b.Owner} }

// frozen reports whether a parameter is frozen. Buffers are not: forwards change them.
func (s *Store) frozen(param int) bool {
	k := group(s.Layout, param).Kind
	return k.Frozen && !k.Buffer
}

// base lists the frozen parameters.
func (s *Store) base() (list []Tensor) {
	for _, t := range values(s.Layout) {
		if s.frozen(t.Index) {
			list = append(list, t)
		}
	}
	return list
}

// describeBase returns the frozen parameters, for a checkpoint without them.
func (s *Store) describeBase(ctx context.Context, own []Piece) ([]BaseTensor, error) {
	list := s.base()
	sums, err := s.sumBase(ctx, list, own)
	if err != nil {
		return nil, err
	}
	all := make([]BaseTensor, len(list))
	for i, t := range list {
		all[i] = BaseTensor{t.Param, t.Owner, t.Shape, sums[i]}
	}
	return all, nil
}

// keepBase remembers the frozen parameters that a checkpoint lacks. It returns an error on every
// rank if one of them has changed since the checkpoint before, unless Rebase was called.
func (v *Saver) keepBase(now []BaseTensor) error {
	before := make(map[checkpoint.Key]uint32, len(v.base))
	for i := range v.base {
		before[v.base[i].key()] = v.base[i].Sum
	}
	for i := range now {
		if sum, ok := before[now[i].key()]; ok && sum != now[i].Sum {
			return fmt.Errorf("option TrainedOnly: the frozen parameter %s has changed since the last save with this option, "+
				"and the checkpoint would lack it: leave out the option", now[i].key().Name())
		}
	}
	v.base = now
	return nil
}

// Rebase says that the program has loaded values, which may be of another base.
func (v *Saver) Rebase() { v.base = nil }

// sumBase returns, on every rank, the checksums of the whole parameters in list. own has this
// rank's pieces.
func (s *Store) sumBase(ctx context.Context, list []Tensor, own []Piece) ([]uint32, error) {
	terms := make([]uint32, len(list))
	err := busy(ctx, s.Team, nil, func(ctx context.Context) error { return s.addTerms(ctx, list, own, terms) })
	if err != nil {
		return nil, err
	}
	failed := func(err error) error {
		return s.Team.Fail(fmt.Errorf("exchanging the checksums of frozen parameters: %w", err))
	}
	all, err := gather(ctx, s.Team.Group(), encodeSums(terms), "checksums")
	if err != nil {
		return nil, failed(err)
	}
	clear(terms)
	for _, b := range all { // on rank 0
		for i, term := range decodeSums(b) {
			terms[i] ^= term
		}
	}
	told, err := s.Team.Tell(ctx, 0, encodeSums(terms))
	if err != nil {
		return nil, failed(err)
	}
	return decodeSums(told), nil
}

// addTerms adds to terms the checksums of this rank's pieces, each followed by zeros to the end of
// its parameter: the sum over all pieces is the checksum of the parameter. One of several replicas
// counts.
func (s *Store) addTerms(ctx context.Context, list []Tensor, own []Piece, terms []uint32) error {
	at := make(map[checkpoint.Key]int, len(list))
	for i := range list {
		at[list[i].Key] = i
	}
	var narrow [checkpoint.ChunkBytes / float64Bytes * 4]byte
	for i := range own {
		p := &own[i]
		k, ok := at[p.Key]
		if !ok || !s.writes(p) {
			continue
		}
		var sum uint32
		err := portions(ctx, p.Vec, func(b []byte) error {
			h := host(s.Compute, b)
			sum = checksum.Update(sum, convert(narrow[:4*h.Len()], comm.Float32, h))
			return nil
		})
		if err != nil {
			return fmt.Errorf("%s: %w", p.Name(), err)
		}
		terms[k] ^= checksum.Join(sum, 0, 4*(p.Len()-p.Offset-p.Vec.Len()))
	}
	return nil
}

func encodeSums(sums []uint32) []byte {
	b := make([]byte, 0, 4*len(sums))
	for _, sum := range sums {
		b = binary.LittleEndian.AppendUint32(b, sum)
	}
	return b
}

func decodeSums(b []byte) []uint32 {
	sums := make([]uint32, len(b)/4)
	for i := range sums {
		sums[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return sums
}
