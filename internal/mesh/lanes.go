package mesh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"

	"github.com/gofsdp/gofsdp/internal/auth"
)

// maxLanes is how many interfaces a rank may listen on. Two ranks have up to twice as many lanes:
// one rank may have many with IPv4, and the other many with IPv6.
const maxLanes = 16

// Lane is one of the connections between two ranks on a channel. If one of them listens on several
// interfaces there are several lanes, each between two other interfaces.
type Lane struct {
	net.Conn
	Over string // the two interfaces, the dialing rank's first; "" if each rank has one
	of   int    // lanes on the channel, 0 for 1
}

// iface is one of several interfaces that a rank listens on.
type iface struct {
	Name string // as in [Config.Listen]
	TCP  string // address of the listener, host:port
}

// ip returns the address of f.
func (f iface) ip() netip.Addr {
	addr, _ := netip.ParseAddrPort(f.TCP) // the zero address is of no family
	return addr.Addr().Unmap()
}

func (f iface) String() string { return strings.TrimSpace(f.Name + " " + f.TCP) }

// dialTarget is an address to dial, and the address of this host to dial from; "" leaves that to
// the system.
type dialTarget struct{ network, address, local string }

// ifacePair is the interface of the dialing rank and the interface of the listening rank.
type ifacePair struct{ dialer, listener iface }

// pairs returns the interfaces of each lane between two ranks: the first of one with the first of
// the other and so on; the shorter list starts again. Interfaces with an IPv4 address come first.
// If neither rank listens on several, the result is one pair with only the address to dial.
func pairs(from, to record) (list []ifacePair, err error) {
	if len(from.ifaces()) == 1 && len(to.ifaces()) == 1 {
		return []ifacePair{{listener: iface{TCP: to.TCP}}}, nil
	}
	for _, v4 := range []bool{true, false} {
		near, far := from.family(v4), to.family(v4)
		if (len(near) == 0) != (len(far) == 0) {
			return nil, fmt.Errorf("rank %d listens on %v, rank %d on %v: set FSDP_LISTEN to interfaces of the same address families, IPv4 or IPv6, on both ranks",
				from.Rank, from.ifaces(), to.Rank, to.ifaces())
		}
		for k := range max(len(near), len(far)) {
			list = append(list, ifacePair{near[k%len(near)], far[k%len(far)]})
		}
	}
	return list, nil
}

// ifaces returns the interfaces that a rank listens on.
func (r record) ifaces() (list []iface) {
	for f := range strings.SplitSeq(r.TCP, ",") {
		at := strings.LastIndexByte(f, ' ') + 1
		list = append(list, iface{strings.TrimSpace(f[:at]), f[at:]})
	}
	return list
}

// family returns the interfaces of a rank that have IPv4 addresses, or the others.
func (r record) family(v4 bool) (list []iface) {
	for _, f := range r.ifaces() {
		if f.ip().Is4() == v4 {
			list = append(list, f)
		}
	}
	return list
}

// dialLanes opens all lanes to a lower rank.
func (m *Mesh) dialLanes(caller, ctx context.Context, who record, channel uint64) ([]Lane, error) {
	list, err := pairs(m.self, who)
	if err != nil {
		return nil, err
	}
	lanes, errs := make([]Lane, len(list)), make([]error, len(list))
	var all sync.WaitGroup
	for k, p := range list {
		v := visit{process: m.self.process, Channel: channel}
		to := dialTarget{network: "tcp", address: p.listener.TCP}
		if len(list) > 1 {
			to.local = p.dialer.ip().String()
			v.Lane, v.Lanes, v.Over = k, len(list), fmt.Sprintf("%v to %v", iface{p.dialer.Name, to.local}, p.listener)
		}
		all.Go(func() {
			lanes[k] = Lane{Over: v.Over}
			lanes[k].Conn, errs[k] = m.dial(caller, ctx, to, who.Rank, auth.Hello{Purpose: purposeData}, v)
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		CloseLanes(lanes)
		return nil, err
	}
	return lanes, nil
}

// takeLanes waits for all lanes from a higher rank. The first contains their number.
func (m *Mesh) takeLanes(ctx context.Context, rank int, channel uint64) (lanes []Lane, err error) {
	for k := 0; k == 0 || k < lanes[0].of; k++ {
		l, err := m.conns.take(ctx, label{rank, channel, k})
		if err != nil {
			CloseLanes(lanes)
			return nil, err
		}
		lanes = append(lanes, l)
	}
	return lanes, nil
}

// CloseLanes closes unused connections.
func CloseLanes(lanes []Lane) {
	for _, l := range lanes {
		if l.Conn != nil {
			_ = l.Close() // nothing was sent
		}
	}
}
