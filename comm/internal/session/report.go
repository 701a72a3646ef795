package session

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"

	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/internal/text"
)

// question is a question of [transport.Report] that some ranks have not answered. Guarded by the session's
// mu, except for answers.
type question struct {
	open    map[int]struct{} // world ranks that have not answered
	answers chan answer      // has room for all
}

// answer is a rank's answer.
type answer struct {
	from   int // world rank
	status transport.Status
}

// answer records the answer of a world rank, or a substitute. Only the first one counts.
func (q *question) answer(from int, s transport.Status) {
	if _, ok := q.open[from]; ok {
		delete(q.open, from)
		q.answers <- answer{from, s}
	}
}

// Report asks all ranks of l for their flight records, see [transport.Report].
func (l *Link) Report(ctx context.Context) ([]transport.Status, error) {
	l.mu.Lock()
	closed := l.closed
	l.mu.Unlock()
	if closed {
		return nil, &transport.RankError{Group: l.Name, Rank: l.Rank, Err: transport.ErrClosed}
	}
	number, q := l.ask()
	defer func() {
		l.Session.mu.Lock()
		delete(l.Session.asked, number)
		l.Session.mu.Unlock()
	}()
	all := make([]transport.Status, len(l.Ranks))
	rankOf := make(map[int]int, len(l.Ranks))
	for r, world := range l.Ranks {
		all[r] = transport.Status{Group: l.Name, Rank: r, Err: "does not answer"}
		rankOf[world] = r
	}
	for range l.Ranks {
		select {
		case a := <-q.answers:
			r := rankOf[a.from]
			all[r] = a.status
			all[r].Group, all[r].Rank = l.Name, r
		case <-ctx.Done():
			return all, nil
		}
	}
	return all, nil
}

// ask puts a question to all ranks of l. It answers at once for this rank and for ranks that cannot
// be asked.
func (l *Link) ask() (number uint64, q *question) {
	q = &question{map[int]struct{}{}, make(chan answer, len(l.Ranks))}
	for _, world := range l.Ranks {
		q.open[world] = struct{}{}
	}
	s := l.Session
	s.mu.Lock()
	s.asking++
	number = s.asking
	s.asked[number] = q
	for world, err := range s.gone {
		q.answer(world, transport.Status{Err: fmt.Sprintf("does not answer: %v", err)})
	}
	s.mu.Unlock()
	own := l.member.Status()
	s.mu.Lock()
	q.answer(l.Ranks[l.Rank], own)
	s.mu.Unlock()
	l.tell(newsAsk, binary.LittleEndian.AppendUint64(nil, number))
	return number, q
}

// maxRecordText bounds the text of a record that travels, in bytes: labels may be long.
const maxRecordText = 256

// reply answers a question of another rank about a group.
func (s *Session) reply(id uint64, n news, status transport.Status) {
	for i := range status.Recent {
		r := &status.Recent[i]
		r.Call = text.Cut(r.Call, maxRecordText)
	}
	body, err := json.Marshal(status)
	if len(n.body) != 8 || err != nil {
		return // the other rank waits for the end of its context
	}
	_ = s.send(n.from, newsAnswer, id, append(n.body, body...))
}

// answered passes an answer to the call of Report that asked.
func (s *Session) answered(n news) {
	if len(n.body) < 8 {
		return
	}
	var status transport.Status
	if err := json.Unmarshal(n.body[8:], &status); err != nil {
		status = transport.Status{Err: fmt.Sprintf("sent a malformed answer: %v", err)}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.asked[binary.LittleEndian.Uint64(n.body)]; q != nil { // else it is too late
		q.answer(n.from, status)
	}
}
