package comm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gofsdp/gofsdp/comm/internal/session"
	"github.com/gofsdp/gofsdp/internal/auth"
	"github.com/gofsdp/gofsdp/internal/mesh"
	"github.com/gofsdp/gofsdp/internal/quorum"
	"github.com/gofsdp/gofsdp/internal/store"
	"github.com/gofsdp/gofsdp/internal/text"
)

// Reconnect returns a new group of the ranks that are left of old, a group of [Connect] or
// Reconnect that has failed. All of them call it. It returns when all ranks of the new group have
// it. They keep their order, and the settings of old. The caller still closes old, as soon as it
// does not need it any more: Close waits for ranks that may be alive.
//
//	g, err := comm.Reconnect(ctx, old) // on each rank that is left; its rank and size may differ
//
// The ranks that are left agree on the ranks of the new group, and any of them may be lost
// meanwhile, rank 0 included: then they agree again. Two parts of a network that is cut never both
// continue. The part that continues has more than half of the ranks of the last group that was
// agreed on, or half of them and its rank 0. So of two ranks on two hosts, rank 0 continues without
// rank 1, and rank 1 ends without rank 0. With Config.Witness, the part that continues has more
// than half of the ranks, or half of them and the vote of the witness: then either rank continues
// without the other one, and neither without the witness. A witness that has been started again
// votes from the next group on. Ranks that listen on loopback are on one host, where the end of a
// process is certain: any number of them continues. With Config.Members and Config.Listen they
// count as ranks of several hosts.
//
// A rank leaves as planned by closing old after a step. It reports to the others that it takes part
// in no later group. So the others need no majority without it, and do not wait for another process
// in its place.
//
// Processes with Config.Join that wait to join take the places of lost ranks, in the order of their
// Config.Rank, and then places behind the others. Reconnect waits for them for
// Config.ReplaceTimeout, if ranks are lost. The group need not have failed: the ranks may call
// Reconnect between two steps to let processes in, see [Joining].
//
// Reconnect fails in the other part after Config.JoinTimeout, and names the ranks that are missing.
// A rank that lives and does not call Reconnect within half of that time is left out. If it calls
// Reconnect later, this fails: the others continue without it. After an error this rank has left
// the job.
func Reconnect(ctx context.Context, old Group) (Group, error) {
	var v any
	ok := old != nil && reflect.TypeOf(old).Comparable() // else it is not a group of Connect
	if ok {
		v, ok = places.Load(old)
	}
	if !ok {
		return nil, errors.New("comm: Reconnect needs a group of all ranks of Connect or Reconnect that is not closed: " +
			"ranks that are goroutines end together, and a group of Split is made again from the new group")
	}
	p := v.(*place)
	g, err := p.reconnect(ctx)
	if err != nil {
		return nil, fmt.Errorf("comm: rank %d of %d: connecting again: %w", p.cfg.Rank, p.cfg.Size, errors.Join(store.Advise(err), p.node.Close()))
	}
	return g, nil
}

// Joining returns how many processes with Config.Join wait to join the ranks of g, a group of
// [Connect] or Reconnect. It is 0 for other groups. The processes ask up to 16 ranks, so the number
// may differ between ranks, also for a moment before all have asked. So the ranks agree before they
// call [Reconnect]: the method Any of fsdp.Sharded returns whether the number is not 0 on any rank.
//
//	if grow, err := m.Any(ctx, comm.Joining(g) > 0); grow { // after a step: let them in
func Joining(g Group) int {
	if g == nil || !reflect.TypeOf(g).Comparable() {
		return 0
	}
	if v, ok := places.Load(g); ok && v.(*place).unable == nil {
		return v.(*place).node.Joining()
	}
	return 0
}

// places has the place of this process by its world group, until that is closed.
var places sync.Map

// A place is this process's place in a world group.
type place struct {
	cfg  Config // with the secret, and with this rank and size
	job  string // the name of the group to the mesh
	node *quorum.Node
	// unable is why there is no node. The rank still joins the mesh, as the others get the error
	// there.
	unable  error
	unfound error             // why rank 0 has not found the witness of the first group
	m       quorum.Membership // its number is 0 in the first group
	first   int               // number that may not be published, and those after it

	mu   sync.Mutex
	over bool // the node belongs to a later group
	left bool // the group has been closed before
}

// quorum returns the configuration of a process's part in decisions.
func (c *Config) quorum() quorum.Config {
	return quorum.Config{
		Rank: c.Rank, Job: c.Job, Secret: c.Secret, TLS: c.TLS, Listen: c.Listen, Limit: c.JoinTimeout, Replace: c.ReplaceTimeout, Log: c.Logger,
		Apart: c.Members != "" && c.Listen != "",
	}
}

// members returns the directory of memberships, or "".
func (c *Config) members() string {
	if dir, ok := strings.CutPrefix(c.Rendezvous, fileScheme); ok && c.Members == "" {
		return dir
	}
	return c.Members
}

// note describes this process to the other ranks.
func (p *place) note() string {
	if p.unable != nil {
		return ""
	}
	m, w := p.node.Self(), p.m.Witness
	return strings.Join([]string{m.ID, m.Address, w.Address, w.ID}, " ")
}

// begin makes the membership of the first group from the notes of its ranks.
func (p *place) begin(m *mesh.Mesh) error {
	for r := range p.cfg.Size {
		note := strings.Split(m.Note(r), " ")
		if len(note) != 4 {
			return fmt.Errorf("rank %d has no address at which it agrees on the next group: use the same version of this library on all ranks", r)
		}
		p.m.Members = append(p.m.Members, quorum.Member{ID: note[0], Address: note[1], Rank: r})
		witness := quorum.Member{ID: note[3], Address: note[2]}
		switch {
		case r > 0 && witness.Address != p.m.Witness.Address:
			return fmt.Errorf("rank %d has the witness %q, rank 0 has %q: set FSDP_WITNESS, or Config.Witness, to the same on all ranks", r, witness.Address, p.m.Witness.Address)
		case r == 0 && witness.Address != "" && witness.ID == "":
			return errors.Join(fmt.Errorf("rank 0 has not found the witness at %s: start it with fsdprun -serve-witness", witness.Address), p.unfound)
		case r == 0:
			p.m.Witness = witness
		}
	}
	p.node.Begin(p.m)
	return nil
}

// close ends this process's part in decisions.
func (p *place) close() error {
	if p.unable != nil {
		return nil
	}
	return p.node.Close()
}

// take makes p the place of g.
func (p *place) take(ctx context.Context, g Group, s *session.Session, m *mesh.Mesh) error {
	if p.unable != nil {
		return p.unable
	}
	if p.m.Members == nil {
		if err := p.begin(m); err != nil {
			return err
		}
	}
	if err := errors.Join(p.fill(ctx), p.publish(ctx)); err != nil {
		return err
	}
	s.Leaving = func() (bool, error) { return p.leave(g) }
	s.Departed(func(rank int) { p.node.Depart(p.m.Members[rank].ID) })
	places.Store(g, p)
	return nil
}

// leave ends this process's part in decisions unless it has a place in a later group. It reports
// whether it has ended.
func (p *place) leave(g Group) (departs bool, err error) {
	places.Delete(g)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return false, nil
	}
	p.left = true
	err = p.node.Close()
	return p.node.Latest() == p.m.Number, err // else it may have let a process in, which lives
}

// mostTries is how often the same ranks try to form a group.
const mostTries = 3

// reconnect agrees on memberships until the group of one has formed.
func (p *place) reconnect(ctx context.Context) (Group, error) {
	ctx, j, done := startJoining(ctx, p.cfg)
	defer done()
	return p.again(ctx, p.m, j)
}

// again agrees on memberships after last until the group of one has formed.
func (p *place) again(ctx context.Context, last quorum.Membership, j *joining) (Group, error) {
	for tries := 0; ; {
		j.waitsFor("call Reconnect", p.node.Missing)
		m, err := p.node.Next(ctx, last.Number+1)
		if err != nil {
			return nil, err
		}
		g, err := p.form(ctx, m, j)
		if err == nil {
			p.mu.Lock()
			left := p.left
			p.over = true
			p.mu.Unlock()
			if left {
				return nil, errors.Join(errors.New("the former group was closed meanwhile"), g.Close())
			}
			return g, nil
		}
		if tries++; !slices.Equal(m.Members, last.Members) {
			tries = 1
		}
		if tries == mostTries || ctx.Err() != nil || errors.Is(err, quorum.ErrExcluded) {
			return nil, err
		}
		last = m
	}
}

// form forms the group of m.
func (p *place) form(ctx context.Context, m quorum.Membership, j *joining) (Group, error) {
	self := p.node.Self()
	cfg := p.cfg
	cfg.Rank, cfg.Size = m.Index(self.ID), len(m.Members)
	next := &place{cfg: cfg, node: p.node, m: m, first: p.m.Number + 1, job: fmt.Sprintf("%s %d %s", text.Cut(cfg.Job, mesh.MaxJob/2), m.Number, m.Members[0].ID)}
	meeting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer p.node.Guard(meeting, m, cancel)()
	meet, done, err := next.meet(meeting)
	if err != nil {
		return nil, err
	}
	j.cfg.Rank, j.cfg.Size = cfg.Rank, cfg.Size
	g, err := next.join(ctx, meeting, meet, j)
	if err = errors.Join(err, done()); err != nil && g != nil {
		next.over = true // so that Close leaves p its node
		return nil, errors.Join(err, g.Close())
	}
	return g, err
}

// mostPublished is the number of members of a membership in a directory, and of ranks that publish
// it if all have the same directory.
const mostPublished = 16

func keyMembers(number int) string { return fmt.Sprint("members/", number) }

// publish writes the membership into the directory of memberships, if there is one, for processes
// that join. It fails if another membership has claimed the number: the other ranks may have died
// after they had admitted a new process, while this rank was stopped. Without such a directory no
// process joins.
func (p *place) publish(ctx context.Context) error {
	path := p.cfg.members()
	if path == "" || p.cfg.Members == "" && p.cfg.Rank >= mostPublished {
		return nil
	}
	dir, err := p.cfg.directory()
	if err != nil {
		return err
	}
	m := p.m
	if n := len(m.Members); n > mostPublished { // of as many hosts as possible
		m.Members = nil
		for i := range mostPublished {
			m.Members = append(m.Members, p.m.Members[i*n/mostPublished])
		}
	}
	value, err := json.Marshal(m)
	if err == nil {
		value, err = dir.Claim(ctx, keyMembers(m.Number), value)
	}
	var first quorum.Membership
	if err == nil {
		err = json.Unmarshal(value, &first)
	}
	if err == nil && !slices.Equal(first.Members, m.Members) {
		err = fmt.Errorf("%w: %s has another group %d", quorum.ErrExcluded, path, m.Number)
	}
	return errors.Join(err, dir.Close())
}

// directory opens the directory of memberships.
func (c *Config) directory() (store.Store, error) {
	return store.Dir(c.members(), store.Config{Job: c.Job, Secret: c.Secret})
}

// entryLimit is how long a process that joins waits for another membership when all members of one
// have ended: the processes that they had let in form a group.
const entryLimit = 10 * time.Second

// enter joins a running job. It asks the members of each membership, from the first one, until one
// of them lives.
func (p *place) enter(ctx context.Context, j *joining) (_ Group, err error) {
	dir, err := p.cfg.directory()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	get := ctx
	for number := 0; ; number++ {
		value, err := dir.Get(get, keyMembers(number))
		if err != nil {
			return nil, fmt.Errorf("no member of the %d groups before answers: %w", number, err)
		}
		var m quorum.Membership
		if err := json.Unmarshal(value, &m); err != nil {
			return nil, fmt.Errorf("the members of group %d: %w", number, err)
		}
		if m.Witness.Address != p.cfg.Witness {
			return nil, fmt.Errorf("the job has the witness %q, this process has %q: set FSDP_WITNESS, or Config.Witness, to the same", m.Witness.Address, p.cfg.Witness)
		}
		j.waitsFor("call Reconnect", func() []int { return nil })
		next, err := p.node.Enter(ctx, m)
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err == nil:
			p.m.Number = number // the last one that is certainly published
			next.Number--       // again begins with it
			return p.again(ctx, next, j)
		}
		j.note(err)
		if get = ctx; errors.Is(err, quorum.ErrEnded) {
			var cancel context.CancelFunc
			get, cancel = context.WithTimeoutCause(ctx, entryLimit, err)
			defer cancel()
		}
	}
}

// fill publishes the membership under the numbers of memberships whose groups have not formed, too.
// A process that joins reads one number after the other.
func (p *place) fill(ctx context.Context) error {
	for number := p.first; number < p.m.Number; number++ {
		unformed := &place{cfg: p.cfg, m: p.m}
		unformed.m.Number = number
		if err := unformed.publish(ctx); err != nil && !errors.Is(err, quorum.ErrExcluded) { // it formed on other ranks
			return err
		}
	}
	return nil
}

// meet opens the store in which the ranks of a group meet. Rank 0 serves it.
func (p *place) meet(ctx context.Context) (_ store.Store, done func() error, err error) {
	server := store.Config{Job: p.job, Secret: p.cfg.Secret, Rank: p.cfg.Rank, Log: func(err error) { p.cfg.Logger.Warn("rendezvous", "error", err) }}
	client := server
	client.Log = nil
	if p.cfg.TLS {
		if server.TLS, client.TLS, err = auth.TLS(); err != nil {
			return nil, nil, err
		}
	}
	stop := func() error { return nil }
	var address string
	if p.cfg.Rank == 0 {
		ip, err := mesh.Address(ctx, p.cfg.Listen)
		if err != nil {
			return nil, nil, err
		}
		serving, err := store.Listen(ctx, net.JoinHostPort(ip, "0"), server)
		if err != nil {
			return nil, nil, err
		}
		stop, address = serving.Close, serving.Addr().String()
		p.node.Meet(address)
	} else if address, err = p.node.Meeting(ctx, p.m); err != nil {
		return nil, nil, err
	}
	meet, err := store.Dial(ctx, address, client)
	if err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	return meet, func() error { return errors.Join(meet.Close(), stop()) }, nil
}
