package simnet

import "time"

// Isolate cuts h off for a time.
func (h *Host) Isolate(d time.Duration) {
	h.mu.Lock()
	now := time.Now()
	h.cutOff = append(h.cutOff, now, now.Add(d))
	h.mu.Unlock()
	for _, c := range h.conns() {
		c.wakeBoth()
		c.peer.wakeBoth()
	}
}

// part is a time in which nothing passes between some hosts and the rest.
type part struct {
	some, both  map[*Host]bool
	from, until time.Time
}

// Part cuts the connection between some hosts and the rest, for a time. Hosts in both reach all
// others.
func (n *Net) Part(some []*Host, d time.Duration, both ...*Host) {
	n.mu.Lock()
	now := time.Now()
	p := part{map[*Host]bool{}, map[*Host]bool{}, now, now.Add(d)}
	for _, h := range some {
		p.some[h] = true
	}
	for _, h := range both {
		p.both[h] = true
	}
	n.parts = append(n.parts, p)
	n.parted.Store(true)
	n.mu.Unlock()
	for _, h := range some {
		for _, c := range h.conns() {
			c.wakeBoth()
			c.peer.wakeBoth()
		}
	}
}

// resend is the time after which TCP sends again when the path is open.
const resend = 200 * time.Millisecond

// through returns the arrival time of data that would arrive at a time if neither host were cut
// off.
func through(a, b *Host, at time.Time) time.Time {
	for again := true; again; {
		again = false
		cuts(a, b, func(from, until time.Time) {
			if !at.Before(from) && at.Before(until) {
				at, again = until.Add(resend), true
			}
		})
	}
	return at
}

// silentSince returns the time since which nothing passes between two hosts at a time. It returns
// the zero time if data passes.
func silentSince(a, b *Host, now time.Time) (since time.Time) {
	cuts(a, b, func(from, until time.Time) {
		if !now.Before(from) && now.Before(until) && (since.IsZero() || from.Before(since)) {
			since = from
		}
	})
	return since
}

// cuts calls f with the times in which nothing passes between two hosts.
func cuts(a, b *Host, f func(from, until time.Time)) {
	for _, h := range [...]*Host{a, b} {
		h.mu.Lock()
		for i := 0; i < len(h.cutOff); i += 2 {
			f(h.cutOff[i], h.cutOff[i+1])
		}
		h.mu.Unlock()
	}
	if !a.net.parted.Load() {
		return
	}
	a.net.mu.Lock()
	defer a.net.mu.Unlock()
	for _, p := range a.net.parts {
		if p.some[a] != p.some[b] && !p.both[a] && !p.both[b] {
			f(p.from, p.until)
		}
	}
}
