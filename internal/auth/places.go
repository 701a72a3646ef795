package auth

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Places bounds the connections that have not proven themselves. If all places are taken, a new
// connection gets the place of another one: the oldest from the address with the most connections,
// after its Grace. So unrelated processes that connect and send nothing, however many and however
// often, neither fill the places nor delay a rank by more than Grace for every 256 of them, and
// connections from one address do not drive out a rank at another. The zero value is ready. Methods
// may be called concurrently.
type Places struct {
	mu    sync.Mutex
	taken []place       // in the order of arrival
	freed chan struct{} // closed when a place is given back; nil while no call waits for that
}

const (
	// MaxUnproven is how many places there are.
	MaxUnproven = 256
	// Grace is enough time for a rank to prove itself, even on a busy host.
	Grace = 100 * time.Millisecond
)

var errCrowded = errors.New("the connection had not proved the secret yet, and was closed for a newer one")

type place struct {
	conn  net.Conn
	host  string
	since time.Time
}

// Take gives conn a place, which Leave gives back. It may close another connection first. It
// reports false if stop is closed before.
func (p *Places) Take(conn net.Conn, stop <-chan struct{}) bool {
	for {
		freed, wait := p.try(conn)
		if wait <= 0 {
			return true
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-freed:
		case <-stop:
		}
		timer.Stop()
		select {
		case <-stop:
			return false
		default:
		}
	}
}

// try gives conn a place, or returns for how long there is none unless freed is closed before.
func (p *Places) try(conn net.Conn) (freed <-chan struct{}, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.taken) == MaxUnproven {
		i := p.victim()
		if wait = time.Until(p.taken[i].since.Add(Grace)); wait > 0 {
			if p.freed == nil {
				p.freed = make(chan struct{})
			}
			return p.freed, wait
		}
		_ = p.taken[i].conn.Close() // its reader notices
		p.remove(i)
	}
	p.taken = append(p.taken, place{conn, host(conn), time.Now()})
	return nil, 0
}

// victim returns the oldest place of the address that has the most.
func (p *Places) victim() int {
	count := map[string]int{}
	for _, t := range p.taken {
		count[t.host]++
	}
	oldest := 0
	for i, t := range p.taken {
		if count[t.host] > count[p.taken[oldest].host] {
			oldest = i
		}
	}
	return oldest
}

func (p *Places) remove(i int) { p.taken = append(p.taken[:i], p.taken[i+1:]...) }

// Leave gives the place of conn back. It returns err, which ended the handshake or is nil, unless
// another connection has taken the place: then it returns that reason.
func (p *Places) Leave(conn net.Conn, err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.freed != nil {
		close(p.freed)
		p.freed = nil
	}
	for i, t := range p.taken {
		if t.conn == conn {
			p.remove(i)
			return err
		}
	}
	return fmt.Errorf("auth: %s: %w", conn.RemoteAddr(), errCrowded)
}

// host returns the address that conn comes from, without the port.
func host(conn net.Conn) string {
	addr := conn.RemoteAddr().String()
	if name, _, err := net.SplitHostPort(addr); err == nil {
		return name
	}
	return addr
}
