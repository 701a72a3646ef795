package comm

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
)

// answer is a rank's answer to a question of report.
type answer struct {
	from   int // world rank
	status Status
}

// report asks all ranks of l for their flight records, see [Report].
func (l *link) report(ctx context.Context) ([]Status, error) {
	all := make([]Status, len(l.ranks))
	answers := make(chan answer, len(l.ranks))
	s := l.session
	s.mu.Lock()
	s.asking++
	number := s.asking
	s.asked[number] = answers
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.asked, number)
		s.mu.Unlock()
	}()
	question := binary.LittleEndian.AppendUint64(nil, number)
	for r, world := range l.ranks {
		all[r] = Status{Group: l.name, Rank: r, Err: "does not answer"}
		if r != l.rank {
			s.send(world, newsAsk, l.id, question)
		}
	}
	all[l.rank] = l.member.status()
	for open := l.silent(all); open > 0; open = l.silent(all) {
		select {
		case a := <-answers:
			for r, world := range l.ranks {
				if world == a.from {
					a.status.Rank = r
					all[r] = a.status
				}
			}
		case <-ctx.Done():
			return all, nil
		}
	}
	return all, nil
}

// silent returns how many ranks may still answer. Those that are gone never will.
func (l *link) silent(all []Status) (n int) {
	l.session.mu.Lock()
	defer l.session.mu.Unlock()
	for r, world := range l.ranks {
		if all[r].Err == "" {
			continue
		}
		if err, gone := l.session.gone[world]; gone {
			all[r].Err = fmt.Sprintf("does not answer: %v", err)
			continue
		}
		n++
	}
	return n
}

// answer answers a question of another rank.
func (l *link) answer(n news) {
	status, err := json.Marshal(l.member.status())
	if len(n.body) != 8 || err != nil {
		return // the other rank waits for the end of its context
	}
	l.session.send(n.from, newsAnswer, l.id, append(n.body, status...))
}

// answered hands an answer to whoever asked.
func (s *session) answered(n news) {
	if len(n.body) < 8 {
		return
	}
	a := answer{from: n.from}
	if err := json.Unmarshal(n.body[8:], &a.status); err != nil {
		a.status.Err = fmt.Sprintf("answer not understood: %v", err)
	}
	s.mu.Lock()
	ch := s.asked[binary.LittleEndian.Uint64(n.body)]
	s.mu.Unlock()
	if ch == nil {
		return // too late
	}
	select {
	case ch <- a:
	default: // answered twice
	}
}

// report says what the ranks of an in-process group have under way. It keeps no
// record of what is complete, nor of time: that would cost every operation more
// than the operation costs.
func (l *local) report(context.Context) ([]Status, error) {
	t := l.team
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]Status, len(t.members))
	for r, m := range t.members {
		all[r] = Status{Group: t.name, Rank: r, Issued: m.issued, Completed: m.issued}
	}
	for _, o := range t.live {
		state := o.state.Load()
		seq := state >> tagShift
		for r, m := range t.members {
			if m.issued < seq || phase(state&valueMask) == done {
				continue
			}
			name := "issued"
			if phase(state&valueMask) == ready {
				name = "running"
			}
			all[r].Completed = min(all[r].Completed, seq-1)
			all[r].Recent = append(all[r].Recent, Record{Seq: seq, Call: o.calls[r].String(), State: name})
		}
	}
	for r := range all {
		slices.SortFunc(all[r].Recent, func(a, b Record) int { return cmp.Compare(a.Seq, b.Seq) })
	}
	return all, nil
}
