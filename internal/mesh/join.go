package mesh

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/gofsdp/gofsdp/internal/auth"
	"github.com/gofsdp/gofsdp/internal/store"
)

// Keys in the store, below the keys of the job.
const (
	keySize  = "size"  // record of the rank that said first how many there are
	keyRank  = "rank-" // record of each rank
	keyAbort = "abort" // setback of the first rank that could not join
)

var (
	// errTwice is wrapped by the error of a rank that another process has taken. Others need not
	// give up because of it.
	errTwice = errors.New("give every process its own rank, and every job its own name (FSDP_JOB) and address")
)

// Join connects all ranks. It returns when all are connected, or when any rank finds that it cannot
// join, or ctx ends.
func Join(ctx context.Context, cfg Config) (*Mesh, error) {
	cfg, err := cfg.check()
	if err != nil {
		return nil, fmt.Errorf("mesh: rank %d: %w", cfg.Rank, err)
	}
	m := newMesh(cfg)
	m.network = store.NetworkOf(ctx)
	if err = m.prepare(); err == nil {
		err = m.join(ctx)
	}
	if err != nil {
		err = store.Advise(err)
		m.abandon(ctx, err)
		return nil, fmt.Errorf("mesh: rank %d of %d joining job %q: %w", cfg.Rank, cfg.Size, cfg.Job, err)
	}
	return m, nil
}

// prepare describes this process, and listens.
func (m *Mesh) prepare() (err error) {
	if m.cfg.TLS {
		if m.server, m.client, err = auth.TLS(); err != nil {
			return err
		}
	}
	who, err := thisProcess(m.cfg.Host)
	if err != nil {
		return err
	}
	who.Note = m.cfg.Note
	m.self = record{process: who, Rank: m.cfg.Rank, Size: m.cfg.Size}
	if n := len(encode(visit{process: who, Channel: math.MaxUint64})); n > auth.MaxExtra {
		return fmt.Errorf("the description of host %q has %d bytes, at most %d are allowed", who.Host, n, auth.MaxExtra)
	}
	return m.listen()
}

// join meets the other ranks in the store and waits until all are connected to all.
func (m *Mesh) join(ctx context.Context) error {
	for _, l := range m.listeners {
		m.start(func() { m.accept(l) })
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if m.cfg.Joining != nil {
		m.cfg.Joining(m.absent)
	}
	if err := m.announce(ctx); err != nil {
		return err
	}
	if m.cfg.Size == 1 {
		m.othersReady(m.cfg.Rank)
	}
	if m.sparse {
		m.start(m.report)
	}
	var helpers sync.WaitGroup
	helpers.Go(func() { m.watch(ctx) })
	for _, rank := range m.near {
		if rank < m.cfg.Rank {
			helpers.Go(func() { m.seek(ctx, rank) })
		}
	}
	var err, ended error
	select {
	case <-m.complete:
	case err = <-m.broken:
	case <-ctx.Done():
		ended = context.Cause(ctx)
		if err = m.reason(); err != nil {
			ended = nil
		}
	}
	cancel()
	helpers.Wait()
	if ended != nil {
		return m.late(ended)
	}
	return err
}

// reason waits for the reason why joining has not ended in time, if this rank does not have it: one
// of many ranks that is connected to all its neighbours gets it from others, whose time is up, too.
func (m *Mesh) reason() error {
	m.mu.Lock()
	linked := m.linked
	m.mu.Unlock()
	if !linked || m.cfg.Rank == 0 {
		return nil
	}
	timer := time.NewTimer(2 * linger)
	defer timer.Stop()
	select {
	case err := <-m.broken:
		return err
	case <-timer.C:
		return nil
	}
}

// fail ends joining with err, unless something else has ended it already.
func (m *Mesh) fail(err error) {
	select {
	case m.broken <- err:
	default:
	}
}

// late explains why joining has not ended in time. If the store does not respond either, other
// ranks may not have been able to join.
func (m *Mesh) late(cause error) error {
	err := m.lacking(cause)
	ctx, cancel := context.WithTimeout(context.Background(), linger)
	defer cancel()
	if _, silent := m.claim(ctx, m.key(keySize)); silent != nil {
		err = fmt.Errorf("%w; the store does not answer either: %w", err, silent)
	}
	return err
}

// lacking names the ranks that have not joined.
func (m *Mesh) lacking(cause error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	missing := m.missing()
	switch {
	case len(missing) == 0 && m.sparse && m.cfg.Rank != 0:
		return fmt.Errorf("this rank is connected, but rank 0 has not reported that all %d ranks are: %w", m.cfg.Size, cause)
	case len(missing) == 0:
		unready := m.unready()
		if between := m.relays(unready); len(between) > 0 {
			return fmt.Errorf("ranks %v of %d have not connected to all others, or ranks %v have not forwarded their reports: %w",
				unready, m.cfg.Size, between, cause)
		}
		return fmt.Errorf("ranks %v of %d have not connected to all others: %w", unready, m.cfg.Size, cause)
	}
	err := fmt.Errorf("ranks %v of %d have not joined: %w", missing, m.cfg.Size, cause)
	for _, r := range missing {
		if trouble := m.trouble[r]; trouble != nil {
			err = fmt.Errorf("%w; %w", err, trouble)
		}
	}
	return err
}

// announce stores the record of this rank in the store, unless another process is there or the job
// has another size.
func (m *Mesh) announce(ctx context.Context) error {
	first, err := m.claim(ctx, m.key(keySize))
	if err != nil {
		return err
	}
	if first.Size != m.cfg.Size {
		return fmt.Errorf("rank %d on %v was started with a world size of %d, rank %d on %v with %d",
			m.cfg.Rank, m.self.process, m.cfg.Size, first.Rank, first.process, first.Size)
	}
	holder, err := m.claim(ctx, m.key(keyRank, m.cfg.Rank))
	if err != nil {
		return err
	}
	if holder.process != m.self.process {
		return fmt.Errorf("rank %d has already joined from %s, this is %s: %w", m.cfg.Rank, holder.withStart(), m.self.withStart(), errTwice)
	}
	return nil
}

// key returns the store key for the job or one of its ranks.
func (m *Mesh) key(parts ...any) string { return "mesh/" + m.cfg.Job + "/" + fmt.Sprint(parts...) }

// claim stores the record of this rank unless one is there, and returns the one that is there now.
func (m *Mesh) claim(ctx context.Context, key string) (record, error) {
	value, err := m.cfg.Store.Claim(ctx, key, encode(m.self))
	if err != nil {
		return record{}, err
	}
	return decode[record](value)
}

// watch waits for the setback of another rank. It ignores failures of the store: callers that need
// the store report them.
func (m *Mesh) watch(ctx context.Context) {
	value, err := m.cfg.Store.Get(ctx, m.key(keyAbort))
	if err != nil {
		return
	}
	gaveUp, err := decode[setback](value)
	if err != nil {
		m.fail(err)
		return
	}
	m.fail(&gaveUp)
}

// seek connects to a lower rank: the higher one dials.
func (m *Mesh) seek(ctx context.Context, rank int) {
	err := m.find(ctx, rank)
	switch {
	case err == nil:
	case ctx.Err() == nil:
		m.fail(err)
	case !errors.Is(err, ctx.Err()): // the cause of the delay
		m.mu.Lock()
		m.trouble[rank] = err
		m.mu.Unlock()
	}
}

// find reads a rank's record in the store, dials the rank and attaches the connection.
func (m *Mesh) find(ctx context.Context, rank int) error {
	value, err := m.cfg.Store.Get(ctx, m.key(keyRank, rank))
	if err != nil {
		return err
	}
	where, err := decode[record](value)
	if err != nil {
		return err
	}
	to := dialTarget{network: "tcp", address: where.ifaces()[0].TCP}
	if where.Host == m.self.Host && where.Unix != "" && m.self.Unix != "" {
		to = dialTarget{network: "unix", address: where.Unix}
	}
	conn, err := m.dial(ctx, ctx, to, rank, auth.Hello{Purpose: purposeControl}, visit{process: m.self.process})
	if err != nil {
		return fmt.Errorf("%w%s", err, m.hint(where))
	}
	return m.attach(rank, where, conn)
}

// hint explains if where is an address that cannot be reached from here.
func (m *Mesh) hint(where record) string {
	addr, err := netip.ParseAddrPort(where.ifaces()[0].TCP)
	if err != nil || !addr.Addr().IsLoopback() || where.Host == m.self.Host {
		return ""
	}
	return fmt.Sprintf(" (rank %d listens on loopback, on another host than rank %d: set Listen on all ranks)", where.Rank, m.cfg.Rank)
}

// attach starts the control connection with a rank. If it was the last, attach reports it to all.
func (m *Mesh) attach(rank int, who record, conn net.Conn) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		_ = conn.Close()
		return ErrClosed
	case m.peers[rank] != nil:
		_ = conn.Close()
		return fmt.Errorf("rank %d is already connected from %v", rank, m.peers[rank].who.process)
	}
	p := newPeer(m, rank, who, asControl(conn))
	m.peers[rank] = p
	m.running.Go(p.run)
	switch {
	case len(m.missing()) > 0:
		return nil
	case m.sparse:
		m.allLinked()
		return nil
	}
	for _, p := range m.peers {
		if p != nil {
			_ = p.post(frameReady, nil, nil) // if it has ended, its run reports it
		}
	}
	m.noteReady(m.cfg.Rank)
	return nil
}

// missing returns the ranks that this one has no connection to. The caller holds m.mu.
func (m *Mesh) missing() (ranks []int) {
	for _, r := range m.near {
		if m.peers[r] == nil {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// absent returns the ranks that joining waits for.
func (m *Mesh) absent() []int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if missing := m.missing(); len(missing) > 0 {
		return missing
	}
	return m.unready()
}

// unready returns the ranks that have not said that they are connected to all. Of many ranks, the
// root has this information, and the others wait for the root. The caller holds m.mu.
func (m *Mesh) unready() (ranks []int) {
	switch {
	case m.joined():
		return nil
	case m.sparse && m.cfg.Rank != 0:
		return []int{0}
	}
	for r := range m.cfg.Size {
		_, ready := m.ready[r]
		if _, heard := m.heard[r]; !ready && !heard {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// relays returns the ranks that have reported to the root and pass on the reports of some that
// have not. The caller holds m.mu.
func (m *Mesh) relays(ranks []int) (known []int) {
	if !m.sparse {
		return nil
	}
	for _, r := range ranks {
		p := parent(r)
		if _, heard := m.heard[p]; heard && p != 0 {
			known = append(known, p)
		}
	}
	slices.Sort(known)
	return slices.Compact(known)
}

// othersReady records that a rank is connected to all others.
func (m *Mesh) othersReady(rank int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sparse { // all are when the list of ranks is complete
		m.missRoll(rank)
	} else {
		m.noteReady(rank)
	}
}

// noteReady is othersReady for callers that hold m.mu.
func (m *Mesh) noteReady(rank int) {
	m.ready[rank] = struct{}{}
	if len(m.ready) == m.cfg.Size {
		close(m.complete)
	}
}

// open waits until all ranks have joined. It reports false when Close has begun.
func (m *Mesh) open() bool {
	select {
	case <-m.complete:
	case <-m.closing:
	}
	select {
	case <-m.closing:
		return false
	default:
		return true
	}
}

// ended handles the end of a rank. A rank that was ready has joined, in any case. If it was not, no
// rank can join.
func (m *Mesh) ended(p *peer, err error) {
	var gaveUp *setback
	switch {
	case !p.ready && errors.As(err, &gaveUp) && !m.joined():
		m.fail(err)
		return
	case !p.ready && !m.joined():
		// It may have given up before it noticed this connection. Then the store has a better
		// reason.
		if !m.wait(linger) {
			return
		}
		if m.fail(err); !m.sparse {
			return
		}
	}
	switch {
	case !m.open():
	case m.sparse:
		m.peerEnded(p, err)
	case errors.Is(err, ErrGone):
		m.cfg.Handler.Gone(p.rank)
	default:
		m.cfg.Handler.Lost(p.rank, err)
	}
}

// abandon reports to the other ranks why this one cannot join, and ends the mesh.
func (m *Mesh) abandon(ctx context.Context, err error) {
	gaveUp := &setback{Rank: m.cfg.Rank, Reason: err.Error()}
	errors.As(err, &gaveUp) // another rank's reason is passed on as it is
	body := encode(gaveUp)
	var publish sync.WaitGroup
	if !errors.Is(err, errTwice) {
		publish.Go(func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), linger)
			defer cancel()
			if _, err := m.cfg.Store.Claim(ctx, m.key(keyAbort), body); err != nil {
				m.cfg.Log.Warn("mesh: cannot report the failure of this rank to the other ranks", "rank", m.cfg.Rank, "error", err)
			}
		})
	}
	m.end(frameAbort, body)
	publish.Wait()
}
