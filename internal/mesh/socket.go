package mesh

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/internal/store"
)

const bufferSize = 4 << 20 // bytes on the way in each direction of a data connection

// Unanswered is when a silent host counts as lost. A stopped process does not: its kernel responds.
const Unanswered = 20 * time.Second

// listen opens the listeners of m and records their addresses in m.self.
func (m *Mesh) listen() error {
	if m.network != nil {
		return m.listenModelled()
	}
	config := net.ListenConfig{Control: enlarge}
	config.SetMultipathTCP(false) // its sockets know none of our options
	err := m.listenEach(resolve, func(ctx context.Context, address string) (net.Listener, error) {
		l, err := config.Listen(ctx, "tcp", address)
		if err != nil {
			err = fmt.Errorf("%w; this host has %v", err, interfaces())
		}
		return l, err
	})
	if err != nil {
		return err
	}
	local, name, err := listenUnix()
	if err != nil {
		return err
	}
	if name != "" {
		m.listeners = append(m.listeners, local)
		m.self.Unix = name
	}
	return nil
}

// listenModelled is listen on a network that is not this machine's. [Config.Listen] is then an
// address.
func (m *Mesh) listenModelled() error {
	return m.listenEach(func(address string) (string, error) { return address, nil }, m.network.Listen)
}

// listenEach listens on everything that [Config.Listen] names.
func (m *Mesh) listenEach(resolve func(string) (string, error), listen func(context.Context, string) (net.Listener, error)) error {
	names := strings.Split(m.cfg.Listen, ",")
	if len(names) > maxLanes {
		return fmt.Errorf("listen on %q: %d interfaces, at most %d are possible", m.cfg.Listen, len(names), maxLanes)
	}
	var faces []string
	for _, name := range names {
		if name == "" && len(names) > 1 {
			return fmt.Errorf("listen on %q: an empty name; this host has %v", m.cfg.Listen, interfaces())
		}
		ip, err := resolve(name)
		if err != nil {
			return err
		}
		l, err := listen(context.Background(), net.JoinHostPort(ip, "0"))
		if err != nil {
			return err
		}
		m.listeners = append(m.listeners, l)
		f := iface{name, l.Addr().String()}
		if name == ip || len(names) == 1 {
			f.Name = ""
		}
		faces = append(faces, f.String())
	}
	m.self.TCP = strings.Join(faces, ",")
	return nil
}

// Address returns the IP address of the first interface that listen names, as in [Config.Listen],
// on the network of ctx.
func Address(ctx context.Context, listen string) (string, error) {
	first, _, _ := strings.Cut(listen, ",")
	if store.NetworkOf(ctx) != nil {
		return first, nil
	}
	return resolve(first)
}

// resolve returns the IP address that a name in Config.Listen stands for.
func resolve(listen string) (string, error) {
	if listen == "" {
		return "127.0.0.1", nil
	}
	if addr, err := netip.ParseAddr(listen); err == nil {
		if addr.IsUnspecified() {
			return "", fmt.Errorf("listen on %s: other ranks cannot dial this address: name an interface", listen)
		}
		return listen, nil
	}
	if network, err := netip.ParsePrefix(listen); err == nil {
		return addressIn(network)
	}
	face, err := net.InterfaceByName(listen)
	if err != nil {
		return "", fmt.Errorf("listen on %q: not an address or interface of this host, which has %v", listen, interfaces())
	}
	addrs, err := face.Addrs()
	if err != nil {
		return "", fmt.Errorf("listen on %s: %w", listen, err)
	}
	best := ""
	for _, a := range addrs {
		ip, _, err := net.ParseCIDR(a.String())
		switch {
		case err != nil || ip.IsLinkLocalUnicast():
		case ip.To4() != nil:
			return ip.String(), nil
		case best == "":
			best = ip.String()
		}
	}
	if best == "" {
		return "", fmt.Errorf("listen on %s: the interface has no address; this host has %v", listen, interfaces())
	}
	return best, nil
}

// addressIn returns the first address of this host in a network.
func addressIn(network netip.Prefix) (string, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return "", fmt.Errorf("listen in %v: %w", network, err)
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && network.Contains(p.Addr()) {
			return p.Addr().String(), nil
		}
	}
	return "", fmt.Errorf("listen in %v: this host has no address in that network, only %v", network, interfaces())
}

// interfaces returns this host's network interfaces and their addresses, for an error.
func interfaces() (names []string) {
	list, err := net.Interfaces()
	if err != nil {
		return nil
	}
	for _, i := range list {
		addrs, _ := i.Addrs() // none is as good to know
		names = append(names, fmt.Sprint(i.Name, addrs))
	}
	return names
}

// tune prepares a new connection for its purpose. Each of several lanes detects that its other end
// is silent: a live control connection proves nothing about another interface.
func tune(conn net.Conn, purpose string, lanes int) {
	watched := purpose == purposeControl || lanes > 1
	if c, ok := conn.(interface{ Unanswered(time.Duration) }); ok && watched {
		c.Unanswered(Unanswered)
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	if watched {
		// A host that dies or is cut off sends nothing. If this cannot be set, the system's own
		// intervals apply.
		_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 5 * time.Second, Count: 3})
	}
	if purpose == purposeControl {
		setUserTimeout(tcp) // on a data connection it would end one that is not read for as long
		return
	}
	here, _ := tcp.LocalAddr().(*net.TCPAddr)
	there, _ := tcp.RemoteAddr().(*net.TCPAddr)
	if here != nil && there != nil && here.IP.Equal(there.IP) {
		setLossBased(tcp)
	}
}

// controlConn is the connection under a control connection.
type controlConn interface {
	net.Conn
	CloseWrite() error
}

// asControl returns the connection to use for control messages on conn.
func asControl(conn net.Conn) controlConn {
	switch conn := conn.(type) {
	case *tls.Conn:
		return encrypted{conn, conn.NetConn().(controlConn)}
	case *net.UnixConn:
		return withFiles(conn)
	default:
		return conn.(controlConn) // TCP
	}
}

// encrypted is a TLS connection that ends without an alert: sending one may block for 5 s, and our
// last frame is an end that cannot be forged.
type encrypted struct {
	*tls.Conn
	tcp controlConn
}

func (e encrypted) CloseWrite() error { return e.tcp.CloseWrite() }

func (e encrypted) Close() error { return e.tcp.Close() }
