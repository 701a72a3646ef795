package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/gofsdp/gofsdp/comm"
)

// Strangers are processes that do not belong to a job and try to join it, or keep it from starting.
// An intrusion is their action between the moment at which rank 0 listens and the start of the
// other ranks.
type intrusion struct {
	name  string
	begin func(s *intruder) error
}

var intrusions = []intrusion{
	{"held connections", func(s *intruder) error { return s.hold(500, false) }},
	{"renewed connections", func(s *intruder) error { return s.hold(500, true) }},
	{"another user", (*intruder).otherUser},
}

const (
	intrudedRanks = 3               // ranks of a job
	entryTime     = 5 * time.Second // for all of them to join; an idle machine needs some tenths of it
	// otherUID is a user that runs nothing else.
	otherUID         = 64173
	strangerVariable = "GOFSDP_FAULTS_STRANGER" // host:port of the store that a child attacks
)

// errNotRun is wrapped by the error of an intrusion that this process cannot run.
var errNotRun = errors.New("not run")

// strangers runs all intrusions, one after the other, and returns how many made the ranks fail.
func strangers(ctx context.Context, out io.Writer) (failed int) {
	for _, g := range intrusions {
		took, err := g.run(ctx)
		switch {
		case errors.Is(err, errNotRun):
			fmt.Fprintf(out, "strangers, %s: %v\n", g.name, err)
		case err != nil:
			failed++
			fmt.Fprintf(out, "FAIL strangers, %s: %v\n", g.name, err)
		default:
			fmt.Fprintf(out, "ok strangers, %s: %d ranks joined after %v\n", g.name, intrudedRanks, took.Round(time.Millisecond))
		}
	}
	return failed
}

// An intruder runs one intrusion.
type intruder struct {
	ctx    context.Context
	addr   string       // of the store
	shown  *alarm       // warnings
	joined func() error // action of a stranger after the ranks have joined; nil for none
	end    []func()
	crowd  sync.WaitGroup
}

// alarm records whether something was logged.
type alarm struct {
	slog.Handler
	rung chan struct{}
}

func (a *alarm) Enabled(context.Context, slog.Level) bool { return true }

func (a *alarm) Handle(context.Context, slog.Record) error {
	select {
	case a.rung <- struct{}{}:
	default: // one is enough
	}
	return nil
}

// run returns the time that the ranks took to join during the intrusion.
func (g intrusion) run(ctx context.Context) (took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, joinTime+spare)
	defer cancel()
	s := &intruder{ctx: ctx, shown: &alarm{slog.DiscardHandler, make(chan struct{}, 1)}}
	if err := s.findPort(); err != nil {
		s.over()
		return 0, err
	}
	groups, errs := make([]comm.Group, intrudedRanks), make([]error, intrudedRanks)
	var ranks sync.WaitGroup
	connect := func(r int) {
		ranks.Go(func() {
			groups[r], errs[r] = comm.Connect(ctx, comm.Config{
				Rank: r, Size: intrudedRanks, Rendezvous: "tcp://" + s.addr, Job: "intruded", Logger: slog.New(s.shown),
			})
		})
	}
	connect(0)
	conn, err := s.dial()
	if err == nil {
		err = errors.Join(conn.Close(), g.begin(s))
	}
	begin := time.Now()
	if err != nil {
		cancel()
	}
	for r := 1; r < intrudedRanks; r++ {
		connect(r)
	}
	ranks.Wait()
	took = time.Since(begin)
	if err == nil {
		err = s.judge(took, errors.Join(errs...))
	}
	cancel()
	s.over()
	for _, group := range groups {
		if group != nil {
			err = errors.Join(err, group.Close())
		}
	}
	return took, err
}

// over ends the actions of the strangers.
func (s *intruder) over() {
	for _, f := range s.end {
		f()
	}
	s.crowd.Wait()
}

// findPort finds a port for rank 0 to listen on. A connection that is kept until the end stops the
// kernel from giving the port to another process.
func (s *intruder) findPort() error {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.addr = ln.Addr().String()
	there, err := net.Dial("tcp", s.addr)
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	s.end = append(s.end, func() { _ = there.Close() }) // nothing was sent on it
	here, err := ln.Accept()
	if err == nil {
		s.end = append(s.end, func() { _ = here.Close() })
	}
	return errors.Join(err, ln.Close())
}

// judge checks the result after the ranks have joined, or failed to.
func (s *intruder) judge(took time.Duration, err error) error {
	if err != nil {
		return err
	}
	if took > entryTime+spare {
		return fmt.Errorf("the ranks joined after %v, %v are allowed", took.Round(time.Millisecond), entryTime+spare)
	}
	if s.joined != nil {
		if err := s.joined(); err != nil {
			return err
		}
	}
	select {
	case <-s.shown.rung:
		return nil
	default:
		return errors.New("no warning was shown")
	}
}

// dial connects to the store, which may not exist yet.
func (s *intruder) dial() (net.Conn, error) {
	for {
		conn, err := (&net.Dialer{}).DialContext(s.ctx, "tcp", s.addr)
		if err == nil || s.ctx.Err() != nil {
			return conn, err
		}
	}
}

// hold opens the given number of connections and sends nothing. With renew it opens another one for
// each that is closed.
func (s *intruder) hold(connections int, renew bool) error {
	for range connections {
		conn, err := s.dial()
		if err != nil {
			return err
		}
		s.crowd.Go(func() {
			for err == nil {
				s.occupy(conn)
				if !renew {
					return
				}
				conn, err = s.dial()
			}
		})
	}
	return nil
}

// occupy keeps a connection until the other side closes it, or the intrusion ends.
func (s *intruder) occupy(conn net.Conn) {
	defer context.AfterFunc(s.ctx, func() { _ = conn.Close() })()
	_, _ = conn.Read(make([]byte, 1))
	_ = conn.Close()
}

// otherUser starts a process of another user, see attack, and expects that it is refused.
func (s *intruder) otherUser() error {
	dir, err := os.MkdirTemp("", "gofsdp-stranger-")
	if err != nil {
		return err
	}
	s.end = append(s.end, func() { _ = os.RemoveAll(dir) }) // it is in a directory for temporary files
	cmd := exec.CommandContext(s.ctx, filepath.Join(dir, "stranger"))
	if err := asUser(cmd, otherUID); err != nil {
		return fmt.Errorf("%w: %w", errNotRun, err)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	program, err := os.ReadFile(self)
	if err == nil {
		// The other user has no access to the output of go run.
		err = errors.Join(os.Chmod(dir, 0o755), os.WriteFile(cmd.Path, program, 0o755), os.Chmod(cmd.Path, 0o755))
	}
	if err != nil {
		return err
	}
	cmd.Env, cmd.Dir, cmd.Stderr = append(os.Environ(), strangerVariable+"="+s.addr), dir, os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		return err
	}
	s.end = append(s.end, func() {
		_ = in.Close()                                            // ends it
		_ = cmd.Wait()                                            // its result was already received
		_ = os.RemoveAll(fmt.Sprintf("/tmp/gofsdp-%d", otherUID)) // the key of that user
	})
	heard := bufio.NewScanner(out)
	expect := func(want string) error {
		if !heard.Scan() || heard.Text() != want {
			return fmt.Errorf("the stranger says %q, not %q", heard.Text(), want)
		}
		return nil
	}
	s.joined = func() error {
		sockets := ownSockets()
		if len(sockets) != intrudedRanks && runtime.GOOS == "linux" {
			return fmt.Errorf("%d ranks have the sockets %q", intrudedRanks, sockets)
		}
		if _, err := fmt.Fprintln(in, strings.Join(sockets, " ")); err != nil {
			return err
		}
		return expect("turned out")
	}
	return expect("refused")
}

// attack is the action of a process of another user: it tries to join as a rank. After the real
// ranks have joined, it tries to connect to the sockets between them. It reports the results.
func attack(addr string) {
	_, err := comm.Connect(context.Background(), comm.Config{
		Rank: 1, Size: intrudedRanks, Rendezvous: "tcp://" + addr, Job: "intruded", JoinTimeout: joinTime, Logger: slog.New(slog.DiscardHandler),
	})
	if err == nil || !strings.Contains(err.Error(), "the other side has a different secret") {
		fmt.Println("joining:", err)
		return
	}
	fmt.Println("refused")
	in := bufio.NewScanner(os.Stdin)
	in.Scan() // they have joined
	fmt.Println(knock(strings.Fields(in.Text())))
	in.Scan() // until the end
}

// knock connects to sockets, which must hang up at once.
func knock(sockets []string) string {
	for _, name := range sockets {
		conn, err := net.Dial("unix", name)
		if err != nil {
			return err.Error()
		}
		_ = conn.SetDeadline(time.Now().Add(4 * time.Second)) // before the ranks would close connections of the same user
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			return fmt.Sprintf("socket %s: %v", name, err)
		}
		_ = conn.Close()
	}
	return "turned out"
}

// ownSockets returns the names of the Unix sockets that ranks in this process listen on. Only Linux
// has them, see proc_pid_net(5).
func ownSockets() (names []string) {
	own := map[string]bool{}
	files, _ := filepath.Glob("/proc/self/fd/*") // the pattern is valid
	for _, f := range files {
		if to, err := os.Readlink(f); err == nil { // it may be closed by now
			own[to] = true
		}
	}
	list, _ := os.ReadFile("/proc/net/unix") // empty on other systems
	for line := range strings.Lines(string(list)) {
		const flags, inode, name, listens = 3, 6, 7, "00010000"
		f := strings.Fields(line)
		if len(f) == 8 && own["socket:["+f[inode]+"]"] && f[flags] == listens && strings.HasPrefix(f[name], "@gofsdp-") {
			names = append(names, f[name])
		}
	}
	return names
}
