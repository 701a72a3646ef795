package state

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/optim"
)

// consolidate measures ways to consolidate the optimizer state, and the limits of the transport and
// of memory.
func (r *stateRank) consolidate(ctx context.Context) (err error) {
	peer := statePeers[statePeerOf{r.Model, r.Size}]
	values, state := 4*r.model.params(), 8*r.model.params()
	parts, err := r.listParts(ctx)
	if err != nil {
		return err
	}
	torch, err := r.startTorch(ctx, parts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, torch.close()) }()
	var rows []*stateRow
	row := func(bytes int, peer float64, name string) *stateRow {
		rows = append(rows, &stateRow{name: name, bytes: bytes, peer: peer})
		return rows[len(rows)-1]
	}
	var trials []*stateTrial
	var theirs []*stateRow // on rank 0, on every rank, and by ZeroRedundancyOptimizer
	for _, all := range []bool{false, true} {
		who, gather := "rank 0: ", peer.gather
		if all {
			who, gather = "every rank: ", peer.allGather
		}
		each := row(state, 0, who+"broadcast a tensor")
		trials = append(trials, r.consolidation(each, func(ctx context.Context) (*optim.FullState, error) { return r.broadcastParts(ctx, parts, all) }))
		if !all {
			trials = append(trials, r.consolidation(row(state, peer.broadcast, who+"broadcast a rank"), r.broadcast))
		}
		trials = append(trials,
			r.consolidation(row(state, gather, who+"OptimStateDict"), func(ctx context.Context) (*optim.FullState, error) {
				return r.held.OptimStateDict(ctx, r.held.opt, &fsdp.StateDictOptions{AllRanks: all})
			}),
			r.again(row(state, 0, who+"the same, Into"), all))
		for _, row := range rows[len(rows)-3:] {
			row.against = []*stateRow{each}
		}
		if torch != nil {
			theirs = append(theirs, row(state, 0, who+"PyTorch, a tensor"))
			trials = append(trials, torch.trial(theirs[len(theirs)-1], map[bool]string{false: "parts", true: "everywhere"}[all]))
		}
	}
	if torch != nil {
		theirs = append(theirs, row(state, 0, "rank 0: PyTorch, ZeRO"))
		trials = append(trials, torch.trial(theirs[2], "zero"))
	}
	fresh, warm := row(state, 0, "transport, into new memory"), row(state, 0, "transport, into warm memory")
	trials = append(trials,
		r.parameters(row(values, 0, "parameters, gather")),
		r.rawCopy(fresh, true, r.transport),
		r.rawCopy(warm, false, r.transport),
		r.rawCopy(row(state, 0, "copy, into new memory"), true, r.memcpy),
		r.rawCopy(row(state, 0, "copy, into warm memory"), false, r.memcpy))
	for _, row := range rows {
		if row.against == nil {
			row.against = []*stateRow{rows[0]}
		}
		row.against = append(row.against, fresh, warm)
		if torch != nil {
			each := theirs[0]
			if strings.HasPrefix(row.name, "every rank") {
				each = theirs[1]
			}
			row.against = append(row.against, each, theirs[2])
		}
	}
	if err := r.measure(ctx, trials); err != nil || r.Rank != 0 {
		return err
	}
	return r.reportConsolidation(rows, peer)
}

// again is the trial of OptimStateDict in the memory of an earlier result.
func (r *stateRank) again(row *stateRow, all bool) *stateTrial {
	var old *optim.FullState
	t := r.consolidation(row, func(ctx context.Context) (*optim.FullState, error) {
		return r.held.OptimStateDict(ctx, r.held.opt, &fsdp.StateDictOptions{AllRanks: all, Into: old})
	})
	t.prepare = func(ctx context.Context) (err error) {
		old, err = r.held.OptimStateDict(ctx, r.held.opt, &fsdp.StateDictOptions{AllRanks: all})
		return err
	}
	finish := t.finish
	t.finish = func(first bool) error {
		old = nil
		return finish(first)
	}
	return t
}

// consolidation is the trial of one way.
func (r *stateRank) consolidation(row *stateRow, how func(context.Context) (*optim.FullState, error)) *stateTrial {
	var full *optim.FullState
	return &stateTrial{
		rows: []*stateRow{row},
		run: func(ctx context.Context, _ func()) (err error) {
			full, err = how(ctx)
			return err
		},
		finish: func(first bool) error {
			defer func() { full = nil }()
			switch {
			case r.Rank == 0 && full == nil:
				return fmt.Errorf("rank 0 has nothing")
			case full == nil || !first:
				return nil
			}
			return r.checkFull(full)
		},
	}
}

// checkFull checks every number of a consolidated state.
func (r *stateRank) checkFull(full *optim.FullState) error {
	n := 0
	for _, e := range full.Entries() {
		if err := checkState(e.Name+":"+e.Param, 0, e.Data.(optim.Host).F32); err != nil {
			return err
		}
		n += e.Data.Len()
	}
	if n != 2*r.model.params() {
		return fmt.Errorf("%d numbers, want %d", n, 2*r.model.params())
	}
	return nil
}

// parameters is the trial of StateDict.
func (r *stateRank) parameters(row *stateRow) *stateTrial {
	var full map[string]*tensor.Dense
	return &stateTrial{
		rows: []*stateRow{row},
		run: func(ctx context.Context, _ func()) (err error) {
			full, err = r.held.StateDict(ctx, nil)
			return err
		},
		finish: func(first bool) error {
			defer func() { full = nil }()
			if !first || r.Rank != 0 {
				return nil
			}
			n := 0
			for _, name := range slices.Sorted(maps.Keys(full)) {
				numbers, ok := full[name].Data().([]float32)
				if !ok {
					return fmt.Errorf("%s is of type %T", name, full[name].Data())
				}
				if err := checkState(name, 0, numbers); err != nil {
					return err
				}
				n += len(numbers)
			}
			if n != r.model.params() {
				return fmt.Errorf("%d numbers, want %d", n, r.model.params())
			}
			return nil
		},
	}
}

// A statePart is a part of a tensor, and the rank that has it.
type statePart struct {
	stateHeader
	Rank int
}

// listParts lists the parts of all ranks, in the order of their tensors.
func (r *stateRank) listParts(ctx context.Context) (list []statePart, err error) {
	var m stateMessage
	if err := m.pack(r.held.opt.State()); err != nil {
		return nil, err
	}
	texts, err := comm.GatherBytes(ctx, r.group, m.header)
	for rank, text := range texts {
		var headers []stateHeader
		if err := json.Unmarshal(text, &headers); err != nil {
			return nil, err
		}
		for _, h := range headers {
			list = append(list, statePart{h, rank})
		}
	}
	slices.SortStableFunc(list, func(a, b statePart) int { return cmp.Or(cmp.Compare(a.Param, b.Param), cmp.Compare(a.Name, b.Name)) })
	return list, err
}

// broadcastParts broadcasts one tensor after the other. All ranks know which rank has which
// elements: each part is sent from its rank to all others. Ranks that keep the state receive it at
// its final place; the others always receive into the same memory. Broadcasts that wait for each
// other cannot be faster.
func (r *stateRank) broadcastParts(ctx context.Context, parts []statePart, all bool) (*optim.FullState, error) {
	own := make(map[[2]string][]float32)
	for _, e := range r.held.opt.State() {
		own[[2]string{e.Param, e.Name}] = e.Data.(optim.Host).F32
	}
	full := &optim.FullState{Steps: r.held.opt.Steps(), Params: make(map[string]optim.FullParam)}
	var aside []float32
	for i := range parts {
		p := &parts[i]
		buf := own[[2]string{p.Param, p.Name}]
		switch {
		case all || r.Rank == 0:
			to := wholeOf(full, p.Param, p.Name, p.Shape, p.Steps)[p.Offset:][:p.Len]
			if p.Rank == r.Rank {
				copy(to, buf)
			}
			buf = to
		case p.Rank != r.Rank:
			aside = resize(aside, p.Len)
			buf = aside
		}
		if err := r.group.Broadcast(comm.Of(buf), p.Rank).Wait(ctx); err != nil {
			return nil, err
		}
	}
	if !all && r.Rank != 0 {
		return nil, nil
	}
	return full, nil
}

// wholeOf returns the elements of a tensor in a full state. It adds the tensor if it is missing.
func wholeOf(full *optim.FullState, param, name string, shape []int, steps int) []float32 {
	p, ok := full.Params[param]
	if !ok {
		p = optim.FullParam{Shape: shape, Steps: steps, Entries: make(map[string]optim.Host)}
		full.Params[param] = p
	}
	whole, ok := p.Entries[name]
	if !ok {
		whole.F32 = make([]float32, tensor.Shape(shape).TotalSize())
		p.Entries[name] = whole
	}
	return whole.F32
}

// broadcast does what torch.distributed.optim.ZeroRedundancyOptimizer.consolidate_state_dict does:
// each rank in turn packs all its state into one message and broadcasts it. Rank 0 keeps the
// messages. The others, which also need memory for them, discard them. In the end rank 0 joins all
// pieces by name.
//
// Nothing is slower than necessary: a message is a header and the unchanged numbers, copied once,
// and ranks that discard messages use the same memory for all of them.
func (r *stateRank) broadcast(ctx context.Context) (*optim.FullState, error) {
	all := r.held.opt.State()
	var m stateMessage
	for root := 1; root < r.Size; root++ {
		var err error
		if r.Rank == root {
			err = m.pack(r.held.opt.State())
		}
		if err == nil {
			err = m.broadcast(ctx, r.group, root)
		}
		if err != nil {
			return nil, err
		}
		if r.Rank != 0 {
			continue
		}
		entries, err := m.unpack()
		if err != nil {
			return nil, err
		}
		all = append(all, entries...)
		m = stateMessage{}
	}
	if r.Rank != 0 {
		return nil, nil
	}
	return join(r.held.opt.Steps(), all)
}

// join copies the pieces of all ranks into whole tensors.
func join(steps int, pieces []optim.Entry) (*optim.FullState, error) {
	full := &optim.FullState{Steps: steps, Params: make(map[string]optim.FullParam)}
	for _, e := range pieces {
		whole := wholeOf(full, e.Param, e.Name, e.Shape, e.Steps)
		if err := e.Data.Read(optim.Host{F32: whole[e.Offset:][:e.Data.Len()]}); err != nil {
			return nil, err
		}
	}
	return full, nil
}

// stateMessage is the state of one rank.
type stateMessage struct {
	header  []byte    // JSON of the entries without their numbers
	numbers []float32 // of all entries, one after the other
}

// stateHeader is an entry without its numbers.
type stateHeader struct {
	Param, Name        string
	Shape              []int
	Offset, Len, Steps int
}

// pack makes the message of some entries.
func (m *stateMessage) pack(entries []optim.Entry) (err error) {
	headers, n := make([]stateHeader, len(entries)), 0
	for i, e := range entries {
		headers[i] = stateHeader{e.Param, e.Name, e.Shape, e.Offset, e.Data.Len(), e.Steps}
		n += e.Data.Len()
	}
	m.numbers = resize(m.numbers, n)[:0]
	for _, e := range entries {
		m.numbers = append(m.numbers, e.Data.(optim.Host).F32...)
	}
	m.header, err = json.Marshal(headers)
	return err
}

// broadcast sends the message of the root to all ranks.
func (m *stateMessage) broadcast(ctx context.Context, g comm.Group, root int) error {
	sizes := []int64{int64(len(m.header)), int64(len(m.numbers))}
	if err := g.Broadcast(comm.Of(sizes), root).Wait(ctx); err != nil {
		return err
	}
	m.header, m.numbers = resize(m.header, int(sizes[0])), resize(m.numbers, int(sizes[1]))
	if err := g.Broadcast(comm.Of(m.header), root).Wait(ctx); err != nil {
		return err
	}
	return g.Broadcast(comm.Of(m.numbers), root).Wait(ctx)
}

// unpack returns the entries, whose numbers are in the message.
func (m *stateMessage) unpack() ([]optim.Entry, error) {
	var headers []stateHeader
	if err := json.Unmarshal(m.header, &headers); err != nil {
		return nil, err
	}
	entries, rest := make([]optim.Entry, len(headers)), m.numbers
	for i, h := range headers {
		entries[i] = optim.Entry{Param: h.Param, Name: h.Name, Shape: h.Shape, Offset: h.Offset, Steps: h.Steps, Data: optim.Host{F32: rest[:h.Len]}}
		rest = rest[h.Len:]
	}
	return entries, nil
}

// resize returns n elements. It reuses s if that is large enough.
func resize[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// rawCopy is a trial that only moves as many bytes as the state has, from warm memory of all ranks
// to rank 0: into new memory, as for a result, or into warm memory.
func (r *stateRank) rawCopy(row *stateRow, fresh bool, move func(ctx context.Context, dst, src []float32) error) *stateTrial {
	n := row.bytes / 4 / r.Size
	var src, dst []float32
	room := func() {
		if r.Rank == 0 {
			dst = make([]float32, n*r.Size)
		}
	}
	return &stateTrial{
		rows: []*stateRow{row},
		prepare: func(context.Context) error {
			src = make([]float32, n)
			fillState("", r.Rank*n, src)
			if !fresh {
				room()
				fillState("", 1, dst)
			}
			return nil
		},
		run: func(ctx context.Context, _ func()) error {
			if fresh {
				room()
			}
			return move(ctx, dst, src)
		},
		finish: func(bool) error {
			src, dst = nil, nil
			return nil
		},
	}
}

// transportPiece is the number of elements of a rank that transport moves at a time: a few MB, at
// which the transports are fastest.
const transportPiece = 1 << 20

// transport collects src of all ranks in dst of rank 0.
func (r *stateRank) transport(ctx context.Context, dst, src []float32) error {
	var last comm.Work
	for len(src) > 0 {
		n := min(len(src), transportPiece)
		var all comm.Buffer
		if r.Rank == 0 {
			all, dst = comm.Of(dst[:n*r.Size]), dst[n*r.Size:]
		}
		work := r.group.Gather(all, comm.Of(src[:n]), slices.Repeat([]int{n}, r.Size), 0)
		if last != nil {
			if err := last.Wait(ctx); err != nil {
				return err
			}
		}
		last, src = work, src[n:]
	}
	return last.Wait(ctx)
}

// memcpy fills dst of rank 0 from its own memory; the other ranks are idle.
func (r *stateRank) memcpy(_ context.Context, dst, src []float32) error {
	for len(dst) > 0 {
		dst = dst[copy(dst, src):]
	}
	return nil
}
