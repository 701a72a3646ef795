package simnet

import (
	"context"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Window is the largest number of bytes of a connection that are written at one end and not read at
// the other.
const Window = 4 << 20

// Config describes a network.
type Config struct {
	Seed      uint64
	Latency   time.Duration // one way
	Jitter    time.Duration // greatest additional latency
	Bandwidth float64       // of each direction of a connection, bytes/s; 0 for no limit
}

// Net is a network of hosts. Its methods may be called concurrently.
type Net struct {
	cfg    Config
	faulty atomic.Bool // there have been faults between two hosts
	parted atomic.Bool // there have been parts

	mu    sync.Mutex
	hosts map[string]*Host
	pairs map[[2]*Host]*pair // faults of data that the first host sends to the second
	parts []part
	conns int // opened so far
}

// pair is the faults in the direction from one host to another.
type pair struct {
	slow  time.Duration // more latency
	until time.Time     // so long
	flips []*Met        // for later writes
}

// Met is the time at which a fault between two hosts was first noticed. Its methods may be called
// concurrently.
type Met struct {
	mu sync.Mutex
	at time.Time
}

// At returns that time, or the zero time if the fault has not been noticed.
func (m *Met) At() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.at
}

func (m *Met) note() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.at.IsZero() {
		m.at = time.Now()
	}
}

// New returns a network without hosts.
func New(cfg Config) *Net {
	return &Net{cfg: cfg, hosts: map[string]*Host{}, pairs: map[[2]*Host]*pair{}}
}

// Host returns the host at an IP address. It runs one process.
func (n *Net) Host(ip string) *Host {
	n.mu.Lock()
	defer n.mu.Unlock()
	h := n.hosts[ip]
	if h == nil {
		h = &Host{net: n, ip: netip.MustParseAddr(ip), key: sum(n.cfg.Seed, ip), listeners: map[uint16]*listener{}, ends: map[*Conn]struct{}{}, dialed: map[*Host]uint64{}, port: 20000}
		n.hosts[ip] = h
	}
	return h
}

// Conns returns the number of connections opened so far.
func (n *Net) Conns() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.conns
}

// Open returns the number of connections that are open at one or both ends.
func (n *Net) Open() (open int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, h := range n.hosts {
		h.mu.Lock()
		open += len(h.ends)
		h.mu.Unlock()
	}
	return (open + 1) / 2
}

// Cut resets all open connections between two hosts. The cut is noticed at once if one of them is
// watched, see [Conn.Unanswered], otherwise at the next read or write of one of them.
func (n *Net) Cut(a, b *Host) (cut int, met *Met) {
	met = new(Met)
	for _, c := range a.conns() {
		if c.far == b {
			c.cut(met)
			cut++
		}
	}
	return cut, met
}

// Delay makes all data between two hosts take longer, for a time.
func (n *Net) Delay(a, b *Host, by, during time.Duration) {
	n.change(a, b, func(p *pair) { p.slow, p.until = by, time.Now().Add(during) })
	n.change(b, a, func(p *pair) { p.slow, p.until = by, time.Now().Add(during) })
}

// Flip flips a bit of the next data that a writes to b. That write notices the flip.
func (n *Net) Flip(a, b *Host) (met *Met) {
	met = new(Met)
	n.change(a, b, func(p *pair) { p.flips = append(p.flips, met) })
	return met
}

func (n *Net) change(a, b *Host, f func(*pair)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.faulty.Store(true)
	p := n.pairs[[2]*Host{a, b}]
	if p == nil {
		p = new(pair)
		n.pairs[[2]*Host{a, b}] = p
	}
	f(p)
}

// troubles returns the additional delay of data from a to b, and whether a bit of it is flipped.
func (n *Net) troubles(a, b *Host, now time.Time) (slow time.Duration, flip bool) {
	if !n.faulty.Load() {
		return 0, false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.pairs[[2]*Host{a, b}]
	if p == nil {
		return 0, false
	}
	if now.Before(p.until) {
		slow = p.slow
	}
	if flip = len(p.flips) > 0; flip {
		p.flips[0].note()
		p.flips = p.flips[1:]
	}
	return slow, flip
}

// delay returns the latency of the i-th event of the sequence key.
func (n *Net) delay(key, i uint64) time.Duration {
	d := n.cfg.Latency
	if n.cfg.Jitter > 0 {
		d += time.Duration(mix(key, i) % uint64(n.cfg.Jitter))
	}
	return d
}

// Host is a host with one process: its view of the network.
type Host struct {
	net *Net
	ip  netip.Addr
	key uint64

	mu        sync.Mutex
	listeners map[uint16]*listener
	ends      map[*Conn]struct{} // open here
	dialed    map[*Host]uint64   // connections, by host
	port      uint16             // the latest
	dead      atomic.Bool        // set with mu held
	stalled   time.Time          // until then
	cutOff    []time.Time        // from, until, from, until, …
}

// Listen listens on address, which must be on this host.
func (h *Host) Listen(_ context.Context, address string) (net.Listener, error) {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	port := at.Port()
	if port == 0 {
		port = h.nextPort()
	}
	switch {
	case h.dead.Load():
		return nil, h.failure("listen", syscall.ENETDOWN)
	case at.Addr() != h.ip:
		return nil, h.failure("listen", syscall.EADDRNOTAVAIL)
	case h.listeners[port] != nil:
		return nil, h.failure("listen", syscall.EADDRINUSE)
	}
	l := &listener{host: h, port: port, came: make(chan struct{}, 1), done: make(chan struct{})}
	h.listeners[port] = l
	return l, nil
}

// nextPort returns an unused port. The caller holds h.mu.
func (h *Host) nextPort() uint16 {
	if h.port++; h.port == 0 {
		h.port = 20000
	}
	return h.port
}

// Dial connects to host:port.
func (h *Host) Dial(ctx context.Context, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, &net.AddrError{Err: "no port", Addr: address}
	}
	if _, err := netip.ParseAddr(host); err != nil {
		return nil, &net.AddrError{Err: "no IP address", Addr: address}
	}
	to := h.net.Host(host)
	h.mu.Lock()
	h.dialed[to]++
	key := mix(mix(h.key, to.key), h.dialed[to])
	h.mu.Unlock()
	if err := h.travel(ctx, to, h.net.delay(key, 0)); err != nil {
		return nil, err
	}
	c, err := to.meet(h, uint16(number), key)
	if late := to.travel(ctx, h, h.net.delay(key, 1)); err == nil && late != nil {
		err = late
	}
	if err == nil && h.dead.Load() {
		err = h.failure("dial", syscall.ENETDOWN)
	}
	if err != nil {
		if c != nil {
			_ = c.Close() // it was never used
		}
		return nil, err
	}
	return c, nil
}

// travel waits for the time that data takes from one host to another.
func (h *Host) travel(ctx context.Context, to *Host, d time.Duration) error {
	slow := h.net.slowness(h, to)
	for at := time.Now().Add(d + slow); ; {
		at = through(h, to, at)
		wait := time.Until(at)
		if wait <= 0 {
			return nil
		}
		timer := time.NewTimer(min(wait, time.Second)) // one host may be cut off meanwhile
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// slowness is troubles without flips, for events without data.
func (n *Net) slowness(a, b *Host) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p := n.pairs[[2]*Host{a, b}]; p != nil && time.Now().Before(p.until) {
		return p.slow
	}
	return 0
}

// meet creates the connection that from has dialed, and returns from's end.
func (h *Host) meet(from *Host, port uint16, key uint64) (*Conn, error) {
	h.mu.Lock()
	l := h.listeners[port]
	h.mu.Unlock()
	if l == nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: h.address(port), Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	from.mu.Lock()
	near := from.address(from.nextPort())
	from.mu.Unlock()
	near2 := h.address(port)
	shared := new(stream)
	a := &Conn{stream: shared, host: from, far: h, local: near, remote: near2, key: mix(key, 2)}
	b := &Conn{stream: shared, host: h, far: from, local: near2, remote: near, key: mix(key, 3)}
	a.peer, b.peer = b, a
	if !from.hold(a) || !h.hold(b) {
		from.drop(a)
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: near2, Err: os.NewSyscallError("connect", syscall.ECONNRESET)}
	}
	h.net.mu.Lock()
	h.net.conns++
	h.net.mu.Unlock()
	if !l.offer(b) {
		b.reset(syscall.ECONNRESET)
		h.drop(b)
		a.reset(syscall.ECONNRESET)
	}
	return a, nil
}

func (h *Host) address(port uint16) *net.TCPAddr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(h.ip, port))
}

func (h *Host) failure(op string, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Addr: h.address(0), Err: os.NewSyscallError(op, err)}
}

// hold records an end that is open on h. drop removes it.
func (h *Host) hold(c *Conn) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	alive := !h.dead.Load()
	if alive {
		h.ends[c] = struct{}{}
	}
	return alive
}

func (h *Host) drop(c *Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.ends, c)
}

// conns returns the connections that are open on h.
func (h *Host) conns() []*Conn {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := make([]*Conn, 0, len(h.ends))
	for c := range h.ends {
		list = append(list, c)
	}
	return list
}

// Chance returns a number that looks random and depends on the seed, the host and of.
func (h *Host) Chance(of ...uint64) uint64 {
	c := mix(h.key, 0x6368616e6365)
	for _, v := range of {
		c = mix(c, v)
	}
	return c
}

// Kill ends the process on h: its later messages reach no other host.
func (h *Host) Kill() {
	h.mu.Lock()
	h.dead.Store(true) // from here on nothing is sent on any connection
	h.stalled = time.Time{}
	listeners := h.listeners
	h.listeners = map[uint16]*listener{}
	h.mu.Unlock()
	for _, l := range listeners {
		_ = l.Close()
	}
	for _, c := range h.conns() {
		c.die()
	}
}

// Kill ends the processes on all hosts at once: none of them notices the end of another.
func (n *Net) Kill() {
	n.mu.Lock()
	hosts := slices.Collect(maps.Values(n.hosts))
	n.mu.Unlock()
	for _, h := range hosts {
		h.mu.Lock()
		h.dead.Store(true)
		h.mu.Unlock()
	}
	for _, h := range hosts {
		h.Kill()
	}
}

// Stall stops the process on h for a time: it reads no data, and sends none.
func (h *Host) Stall(d time.Duration) {
	h.mu.Lock()
	if until := time.Now().Add(d); until.After(h.stalled) {
		h.stalled = until
	}
	h.mu.Unlock()
}

// awake returns the time until which the process on h is stopped. That time has passed if it is not
// stopped.
func (h *Host) awake() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.stalled
}

// signal wakes the goroutine that waits on ch, which has room for one signal.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// sum and mix hash.
func sum(seed uint64, text string) uint64 {
	for i := range len(text) {
		seed = mix(seed, uint64(text[i]))
	}
	return seed
}

func mix(h, v uint64) uint64 {
	h ^= v + 0x9e3779b97f4a7c15 + h<<6 + h>>2
	h *= 0xbf58476d1ce4e5b9
	h ^= h >> 31
	h *= 0x94d049bb133111eb
	return h ^ h>>29
}
