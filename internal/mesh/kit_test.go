package mesh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gofsdp/gofsdp/internal/store"
)

func TestMain(m *testing.M) {
	if os.Getenv(childFolder) != "" {
		os.Exit(child())
	}
	goleak.VerifyTestMain(m)
}

// patience is how long a test waits for what should take milliseconds.
const patience = time.Minute

var secret = []byte("what the ranks of a test share")

// folder is the simplest store that several processes can use: a file for each key.
type folder string

func (f folder) path(key string) string { return filepath.Join(string(f), url.PathEscape(key)) }

// Set replaces what is there.
func (f folder) Set(_ context.Context, key string, value []byte) error {
	name, err := f.write(value)
	return errors.Join(err, os.Rename(name, f.path(key)))
}

func (f folder) Claim(_ context.Context, key string, value []byte) ([]byte, error) {
	name, err := f.write(value)
	if err != nil {
		return nil, err
	}
	if err := os.Link(name, f.path(key)); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return os.ReadFile(f.path(key))
}

func (f folder) write(value []byte) (string, error) {
	file, err := os.CreateTemp(string(f), "tmp")
	if err != nil {
		return "", err
	}
	_, err = file.Write(value)
	return file.Name(), errors.Join(err, file.Close())
}

func (f folder) Get(ctx context.Context, key string) ([]byte, error) {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		if value, err := os.ReadFile(f.path(key)); err == nil {
			return value, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for %q: %w", key, context.Cause(ctx))
		}
	}
}

func (f folder) Close() error { return nil }

var _ store.Store = folder("")

// heard is one call of a Handler.
type heard struct {
	what string // message, gone or lost
	from int
	text string
}

// ear is a Handler that keeps what it hears, by rank.
type ear struct {
	mu   sync.Mutex
	from map[int][]heard
	news chan struct{} // closed at the next
}

func newEar() *ear { return &ear{from: map[int][]heard{}, news: make(chan struct{})} }

func (e *ear) note(h heard) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.from[h.from] = append(e.from[h.from], h)
	close(e.news)
	e.news = make(chan struct{})
}

func (e *ear) Message(from int, msg []byte) { e.note(heard{"message", from, string(msg)}) }
func (e *ear) Gone(rank int)                { e.note(heard{"gone", rank, ""}) }
func (e *ear) Lost(rank int, err error)     { e.note(heard{"lost", rank, err.Error()}) }

// first waits for the first n calls about a rank, and checks that there are no more yet.
func (e *ear) first(t testing.TB, from, n int) []heard {
	t.Helper()
	limit := time.After(patience)
	for {
		e.mu.Lock()
		list, news := e.from[from], e.news
		e.mu.Unlock()
		if len(list) >= n {
			require.Len(t, list, n)
			return list
		}
		select {
		case <-news:
		case <-limit:
			require.FailNow(t, "not heard in time", "%d of %d about rank %d: %v", len(list), n, from, list)
		}
	}
}

// none checks that nothing has been heard.
func (e *ear) none(t testing.TB) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	require.Empty(t, e.from)
}

// journal is a log that a test can read.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(b)
}

func (j *journal) logger() *slog.Logger { return slog.New(slog.NewTextHandler(j, nil)) }

func (j *journal) has(text string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Contains(j.text.String(), text)
}

// job is how the ranks of a test are configured.
type job struct {
	folder folder
	size   int
	change func(*Config) // nil to leave the configuration as it is
	limit  time.Duration // of joining
}

func newJob(t testing.TB, size int, change func(*Config)) job {
	return job{folder(t.TempDir()), size, change, patience}
}

// errLate is the cause of the end of joining when time is up.
var errLate = errors.New("time is up")

// join makes one rank join. ear is the handler unless change sets one.
func (j job) join(ctx context.Context, rank int) (*Mesh, *ear, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, j.limit, errLate)
	defer cancel()
	e := newEar()
	cfg := Config{Rank: rank, Size: j.size, Store: j.folder, Job: "test/1", Secret: secret, Handler: e, Note: fmt.Sprint("note ", rank)}
	if j.change != nil {
		j.change(&cfg)
	}
	m, err := Join(ctx, cfg)
	return m, e, err
}

// joined is the outcome of a rank's Join.
type joined struct {
	*Mesh
	ear  *ear
	err  error
	took time.Duration
}

// try makes some ranks join at the same time, and waits for all. Their meshes are closed with the
// test.
func (j job) try(t testing.TB, ranks ...int) []joined {
	t.Helper()
	list := make([]joined, len(ranks))
	var all sync.WaitGroup
	for i, rank := range ranks {
		all.Go(func() {
			start := time.Now()
			m, e, err := j.join(context.Background(), rank)
			list[i] = joined{m, e, err, time.Since(start)}
		})
	}
	all.Wait()
	t.Cleanup(func() { closeAll(list) })
	return list
}

// open makes all ranks join.
func (j job) open(t testing.TB) []joined {
	t.Helper()
	ranks := make([]int, j.size)
	for r := range ranks {
		ranks[r] = r
	}
	list := j.try(t, ranks...)
	for _, l := range list {
		require.NoError(t, l.err)
	}
	return list
}

func closeAll(list []joined) {
	var all sync.WaitGroup
	for _, l := range list {
		if l.Mesh != nil {
			all.Go(func() { _ = l.Close() })
		}
	}
	all.Wait()
}

// apart gives every rank a host of its own.
func apart(c *Config) { c.Host = fmt.Sprint("host-", c.Rank) }

// encryptedApart is apart with TLS.
func encryptedApart(c *Config) { apart(c); c.TLS = true }

// ways are the kinds of control connections.
var ways = map[string]func(*Config){"host": nil, "tcp": apart, "tls": encryptedApart}

// eachWay runs a test over each of them.
func eachWay(t *testing.T, f func(t *testing.T, change func(*Config))) {
	for name, change := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, change)
		})
	}
}

func timeout(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// one is Connect to a rank that listens on one interface, as this one does.
func (m *Mesh) one(ctx context.Context, rank int, channel uint64) (net.Conn, error) {
	lanes, err := m.Connect(ctx, rank, channel)
	if err != nil {
		return nil, err
	}
	return lanes[0].Conn, nil
}
