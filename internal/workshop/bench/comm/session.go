package comm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// A candidate that does not answer within patience hangs. After it is told to end, it has grace.
const (
	patience = 60 * time.Second
	grace    = 3 * time.Second
)

// session is a running candidate: its processes, and a connection to each rank. Ranks are idle
// between calls of do.
type session struct {
	candidate
	listener net.Listener
	procs    []*process
	ranks    []*peer // by rank
}

// process is one that was started here.
type process struct {
	cmd    *exec.Cmd
	output *tail
	exited chan struct{}
}

// peer is the connection to a rank.
type peer struct {
	conn  net.Conn
	lines *bufio.Reader
	pid   int
}

// launch starts the processes of c; connect waits for its ranks. It must be called on the main
// goroutine.
func launch(shop *workshop, c candidate, world int) (*session, error) {
	dir, err := os.MkdirTemp(shop.dir, c.name+"-")
	if err != nil {
		return nil, err
	}
	s := &session{candidate: c, ranks: make([]*peer, c.connections(world))}
	socket := filepath.Join(dir, "s")
	if s.listener, err = net.Listen("unix", socket); err != nil {
		return nil, err
	}
	for _, cmd := range c.command(start{shop, shop.programs[c.program], socket, dir, len(s.ranks), shop.max}) {
		p := &process{cmd, new(tail), make(chan struct{})}
		cmd.Stdout, cmd.Stderr, cmd.WaitDelay = p.output, p.output, grace
		own(cmd)
		if err := cmd.Start(); err != nil {
			s.close()
			return nil, err
		}
		s.procs = append(s.procs, p)
		go func() {
			cmd.Wait() // its output shows how it ended
			close(p.exited)
			s.listener.Close() // ends the wait for ranks that cannot come
		}()
	}
	return s, nil
}

// connect waits until all ranks have said hello. If they do not, it ends the session.
func (s *session) connect(ctx context.Context) (err error) {
	defer func() {
		s.listener.Close()
		if err != nil {
			s.close()
			err = fmt.Errorf("%s: start: %w%s", s.name, err, s.output())
		}
	}()
	s.listener.(*net.UnixListener).SetDeadline(time.Now().Add(patience))
	defer context.AfterFunc(ctx, func() { s.listener.Close() })()
	for range s.ranks {
		conn, err := s.listener.Accept()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, net.ErrClosed):
			return errors.New("ended too early")
		case err != nil:
			return err
		}
		p := &peer{conn: conn, lines: bufio.NewReader(conn)}
		conn.SetDeadline(time.Now().Add(patience))
		line, err := p.lines.ReadString('\n')
		if err != nil {
			return errors.Join(err, conn.Close())
		}
		rank, pid, err := parseHello(line)
		if err == nil && (rank >= len(s.ranks) || s.ranks[rank] != nil) {
			err = fmt.Errorf("rank %d of %d is one too many", rank, len(s.ranks))
		}
		if err != nil {
			return errors.Join(err, conn.Close())
		}
		p.pid = pid
		s.ranks[rank] = p
	}
	return nil
}

// do sends the command to all ranks and returns the seconds of the slowest. After an error other
// than a refusal the session cannot be used any more.
func (s *session) do(ctx context.Context, c command) (slowest float64, err error) {
	s.setDeadline(time.Now().Add(patience))
	defer context.AfterFunc(ctx, func() { s.setDeadline(time.Unix(1, 0)) })()
	for rank, p := range s.ranks {
		if _, err := fmt.Fprintln(p.conn, c); err != nil {
			return 0, s.lost(ctx, rank, c, err)
		}
	}
	for rank, p := range s.ranks {
		line, readErr := p.lines.ReadString('\n')
		if readErr != nil {
			return 0, s.lost(ctx, rank, c, readErr)
		}
		seconds, failed := parseReply(line)
		if failed != nil && err == nil {
			err = fmt.Errorf("%s: rank %d: %v: %w", s.name, rank, c, failed)
		}
		slowest = max(slowest, seconds)
	}
	return slowest, err
}

func (s *session) setDeadline(t time.Time) {
	for _, p := range s.ranks {
		p.conn.SetDeadline(t)
	}
}

// lost returns the error of a rank that does not answer, with the output of its process.
func (s *session) lost(ctx context.Context, rank int, c command, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%s: rank %d: no answer to %v in %v%s", s.name, rank, c, patience, s.output())
	case errors.Is(err, io.EOF):
		err = errors.New("hung up")
	}
	for _, p := range s.procs { // it may be about to print the reason
		p.wait(grace)
	}
	return fmt.Errorf("%s: rank %d: %v: %w%s", s.name, rank, c, err, s.output())
}

// output returns the last lines of each process that printed something.
func (s *session) output() string {
	var text strings.Builder
	for _, p := range s.procs {
		if t := p.output.String(); t != "" {
			fmt.Fprintf(&text, "\n  %s", strings.ReplaceAll(t, "\n", "\n  "))
		}
	}
	return text.String()
}

// hangUp tells the ranks to end.
func (s *session) hangUp() {
	s.listener.Close()
	for _, p := range s.ranks {
		if p != nil {
			p.conn.Close()
		}
	}
}

// close ends the session: idle ranks end by themselves, and the others are killed.
func (s *session) close() {
	s.hangUp()
	deadline := time.Now().Add(grace)
	left := false
	for _, p := range s.procs {
		left = !p.wait(time.Until(deadline)) || left
	}
	if !left {
		return
	}
	for _, p := range s.ranks {
		if p != nil {
			killProcess(p.pid) // a launcher may have put it into its own group
		}
	}
	for _, p := range s.procs {
		killGroup(p.cmd.Process)
	}
	for _, p := range s.procs {
		<-p.exited
	}
}

// wait reports whether p has exited within d.
func (p *process) wait(d time.Duration) bool {
	select {
	case <-p.exited:
		return true
	case <-time.After(d):
		return false
	}
}

// tail keeps the end of a process's output.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailBytes = 1000

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	t.text = t.text[max(0, len(t.text)-tailBytes):]
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.text))
}
