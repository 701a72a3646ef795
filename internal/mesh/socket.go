package mesh

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"time"
)

const bufferSize = 4 << 20 // bytes on the way in each direction of a data connection

// Unanswered is when a silent host is taken for lost. A stopped process is not: its kernel answers.
const Unanswered = 20 * time.Second

// listen opens the listeners of m and notes their addresses in m.self.
func (m *Mesh) listen() error {
	if m.network != nil {
		return m.listenModelled()
	}
	ip, err := resolve(m.cfg.Listen)
	if err != nil {
		return err
	}
	config := net.ListenConfig{Control: enlarge}
	config.SetMultipathTCP(false) // its sockets know none of our options
	tcp, err := config.Listen(context.Background(), "tcp", net.JoinHostPort(ip, "0"))
	if err != nil {
		return err
	}
	m.listeners = append(m.listeners, tcp)
	m.self.TCP = tcp.Addr().String()
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

// listenModelled is listen on a network that is not this machine's, where [Config.Listen] is an
// address.
func (m *Mesh) listenModelled() error {
	l, err := m.network.Listen(context.Background(), net.JoinHostPort(m.cfg.Listen, "0"))
	if err != nil {
		return err
	}
	m.listeners = append(m.listeners, l)
	m.self.TCP = l.Addr().String()
	return nil
}

// resolve returns the IP address that Config.Listen names.
func resolve(listen string) (string, error) {
	if listen == "" {
		return "127.0.0.1", nil
	}
	if addr, err := netip.ParseAddr(listen); err == nil {
		if addr.IsUnspecified() {
			return "", fmt.Errorf("listen on %s: the others need an address that they can dial; name an interface", listen)
		}
		return listen, nil
	}
	face, err := net.InterfaceByName(listen)
	if err != nil {
		return "", fmt.Errorf("listen on %q: neither an address nor an interface of this host, which are %v", listen, interfaces())
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
		return "", fmt.Errorf("listen on %s: the interface has no address", listen)
	}
	return best, nil
}

// interfaces returns the names of this host's network interfaces, for an error.
func interfaces() (names []string) {
	list, err := net.Interfaces()
	if err != nil {
		return nil
	}
	for _, i := range list {
		names = append(names, i.Name)
	}
	return names
}

// tune prepares a new connection for its purpose.
func tune(conn net.Conn, purpose string) {
	if c, ok := conn.(interface{ Unanswered(time.Duration) }); ok && purpose == purposeControl {
		c.Unanswered(Unanswered)
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	if purpose == purposeControl {
		// A host that dies or is cut off says nothing. Where this cannot be set, the system's own
		// pace must do.
		_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 5 * time.Second, Count: 3})
		setUserTimeout(tcp)
		return
	}
	here, _ := tcp.LocalAddr().(*net.TCPAddr)
	there, _ := tcp.RemoteAddr().(*net.TCPAddr)
	if here != nil && there != nil && here.IP.Equal(there.IP) {
		setLossBased(tcp)
	}
}

// controlConn is what control connections run on.
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

// encrypted is a TLS connection that ends without an alert: sending one may block for 5 s, and the
// end that nobody can forge is our frame.
type encrypted struct {
	*tls.Conn
	tcp controlConn
}

func (e encrypted) CloseWrite() error { return e.tcp.CloseWrite() }

func (e encrypted) Close() error { return e.tcp.Close() }
