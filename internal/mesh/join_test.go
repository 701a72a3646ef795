package mesh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/auth"
)

// soon is less than any timeout of a test: what fails sooner did not wait for one.
const soon = patience / 2

func TestConfig(t *testing.T) {
	good := Config{Size: 1, Store: folder(t.TempDir()), Secret: secret, Handler: newEar()}
	for want, change := range map[string]func(*Config){
		"rank 1 is not one of 1 ranks":             func(c *Config) { c.Rank = 1 },
		"rank -1 is not one of 1 ranks":            func(c *Config) { c.Rank = -1 },
		"rank 0 is not one of 0 ranks":             func(c *Config) { c.Size = 0 },
		"a Store and a Handler":                    func(c *Config) { c.Store = nil },
		"Store and a Handler are needed":           func(c *Config) { c.Handler = nil },
		"at most 128 bytes, not 129":               func(c *Config) { c.Job = string(make([]byte, 129)) },
		`host "\xff" is not valid UTF-8`:           func(c *Config) { c.Host = "\xff" },
		"at most 1024 are allowed":                 func(c *Config) { c.Host = string(make([]byte, 500)) },
		"0 bytes, at least 16 are needed":          func(c *Config) { c.Secret = nil },
		"5 bytes, at least 16 are needed":          func(c *Config) { c.Secret = []byte("short") },
		"name an interface":                        func(c *Config) { c.Listen = "0.0.0.0" },
		"not an address or interface of this host": func(c *Config) { c.Listen = "nosuch0" },
		"bind: ": func(c *Config) { c.Listen = "192.0.2.1" }, // RFC 5737: no host has it
	} {
		cfg := good
		cfg.Job = want[:5] // the one before has given up
		change(&cfg)
		_, err := Join(timeout(t, patience), cfg)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, fmt.Sprintf("mesh: rank %d", cfg.Rank))
	}
	m, err := Join(timeout(t, patience), good)
	require.NoError(t, err)
	require.NoError(t, m.Close())
}

// TestListen listens on all addresses of this host, by address and by name of the interface.
func TestListen(t *testing.T) {
	faces, err := net.Interfaces()
	require.NoError(t, err)
	for _, face := range faces {
		ip, err := resolve(face.Name)
		if err != nil {
			require.ErrorContains(t, err, "has no address")
			continue
		}
		for _, listen := range []string{face.Name, ip} {
			ranks := newJob(t, 2, func(c *Config) { apart(c); c.Listen = listen }).open(t)
			host, _, err := net.SplitHostPort(ranks[1].self.TCP)
			require.NoError(t, err)
			require.Equal(t, ip, host)
			var low net.Conn
			var other sync.WaitGroup
			other.Go(func() { low, _ = ranks[0].one(timeout(t, patience), 1, 1) })
			high, err := ranks[1].one(timeout(t, patience), 0, 1)
			other.Wait()
			require.NoError(t, err)
			require.NotNil(t, low)
			require.NoError(t, errors.Join(low.Close(), high.Close()))
			closeAll(ranks)
		}
	}
}

// TestLateRank starts ranks one after the other.
func TestLateRank(t *testing.T) {
	eachWay(t, func(t *testing.T, change func(*Config)) {
		j := newJob(t, 3, change)
		var all sync.WaitGroup
		for _, rank := range []int{2, 0, 1} {
			all.Go(func() {
				m, _, err := j.join(context.Background(), rank)
				if err != nil {
					t.Error(err)
					return
				}
				_ = m.Close()
			})
			if rank != 1 {
				_, err := j.folder.Get(timeout(t, patience), fmt.Sprint("mesh/test/1/rank-", rank))
				require.NoError(t, err)
			}
		}
		all.Wait()
	})
}

// TestTimeout leaves ranks out. All others name them, and so do those that come when the others
// have given up.
func TestTimeout(t *testing.T) {
	present := []int{0, 1, 3}
	met := make(chan bool, len(present)) // who lacks nobody but 2 and 4
	j := newJob(t, 5, nil)
	ctx, cancel := context.WithCancelCause(context.Background())
	hasty := j
	hasty.change = func(c *Config) {
		c.Joining = func(missing func() []int) {
			go func() {
				met <- assert.Eventually(t, func() bool { return slices.Equal(missing(), []int{2, 4}) }, patience, time.Millisecond)
			}()
		}
	}
	var all sync.WaitGroup
	errs := make([]error, len(present))
	for i, rank := range present {
		all.Go(func() { _, _, errs[i] = hasty.join(ctx, rank) })
	}
	for range present {
		require.True(t, <-met)
	}
	cancel(errLate)
	all.Wait()
	for _, err := range errs {
		require.ErrorContains(t, err, "ranks [2 4] of 5 have not joined: time is up")
	}
	for _, l := range j.try(t, 2) {
		require.ErrorContains(t, l.err, "ranks [2 4] of 5 have not joined: time is up")
		require.ErrorContains(t, l.err, "gave up")
		require.Less(t, l.took, soon)
	}
}

// TestTimeoutSaysWhy lets a rank publish an address where nobody is.
func TestTimeoutSaysWhy(t *testing.T) {
	t.Parallel()
	j := newJob(t, 2, nil)
	j.limit = 5 * time.Second
	nobody := "127.0.0.1:1"
	far := record{process: process{"far", "far", 1, "", "x", ""}, Size: 2, TCP: nobody}
	require.NoError(t, j.folder.Set(context.Background(), "mesh/test/1/rank-0", encode(far)))
	_, _, err := j.join(context.Background(), 1)
	require.ErrorContains(t, err, "ranks [0] of 2 have not joined: time is up; dialing rank 0: dial tcp "+nobody)
	require.ErrorContains(t, err, "(rank 0 listens on loopback, on another host than rank 1: set Listen on all ranks)")
}

func TestCancel(t *testing.T) {
	j := newJob(t, 3, nil)
	ctx, cancel := context.WithCancelCause(context.Background())
	var other joined
	var all sync.WaitGroup
	all.Go(func() { other = j.try(t, 1)[0] })
	all.Go(func() {
		_, err := j.folder.Get(timeout(t, patience), "mesh/test/1/rank-1")
		require.NoError(t, err)
		cancel(errors.New("no longer needed"))
	})
	start := time.Now()
	_, e, err := j.join(ctx, 0)
	all.Wait()
	require.ErrorContains(t, err, "2] of 3 have not joined: no longer needed")
	require.ErrorContains(t, other.err, "rank 0 gave up: ranks [")
	require.ErrorContains(t, other.err, "no longer needed")
	require.Less(t, time.Since(start), soon)
	e.none(t)
	other.ear.none(t)
}

// TestDuplicateRank starts a rank twice, before and after all have joined.
func TestDuplicateRank(t *testing.T) {
	j := newJob(t, 3, nil)
	var all sync.WaitGroup
	all.Go(func() {
		_, err := j.folder.Get(timeout(t, patience), "mesh/test/1/rank-1")
		require.NoError(t, err)
		_, _, err = j.join(context.Background(), 1)
		require.ErrorIs(t, err, errTwice)
		all.Go(func() { j.open1(t, 2) })
	})
	ranks := j.try(t, 0, 1)
	all.Wait()
	for _, l := range ranks {
		require.NoError(t, l.err, "the first is not affected")
	}
	_, _, err := j.join(context.Background(), 1)
	require.Regexp(t, `rank 1 has already joined from host \S+ pid \d+ \(started 20\S+\), this is host \S+ pid \d+ \(started 20\S+\): .*FSDP_JOB`, err.Error())
	require.NoError(t, ranks[0].Send(1, []byte("unaffected")))
	require.Equal(t, "unaffected", ranks[1].ear.first(t, 0, 1)[0].text)
}

// open1 makes one rank join and closes it with the test.
func (j job) open1(t *testing.T, rank int) {
	for _, l := range j.try(t, rank) {
		if l.err != nil {
			t.Error(l.err)
		}
	}
}

// TestWorldSize starts one rank with another world size: everybody fails at once and says who.
func TestWorldSize(t *testing.T) {
	for _, odd := range []int{0, 1, 2} {
		j := newJob(t, 4, func(c *Config) {
			if c.Rank == odd {
				c.Size = 3
			}
		})
		for _, l := range j.try(t, 0, 1, 2) {
			require.ErrorContains(t, l.err, "was started with a world size of")
			require.ErrorContains(t, l.err, fmt.Sprintf("rank %d on host", odd))
			require.Less(t, l.took, soon)
		}
	}
}

// TestWorldSizeHandshake has the store hide the difference.
func TestWorldSizeHandshake(t *testing.T) {
	j := newJob(t, 4, nil)
	odd := newJob(t, 3, nil)
	var all sync.WaitGroup
	all.Go(func() {
		value, err := j.folder.Get(timeout(t, patience), "mesh/test/1/rank-0")
		require.NoError(t, err)
		require.NoError(t, odd.folder.Set(context.Background(), "mesh/test/1/rank-0", value))
		_, _, err = odd.join(context.Background(), 1)
		require.ErrorContains(t, err, "refused by the other side: rank 1 was started with a world size of 3, rank 0 with 4")
		all.Go(func() { j.try(t, 1, 2, 3) })
	})
	for _, l := range j.try(t, 0) {
		require.NoError(t, l.err)
	}
	all.Wait()
}

// TestSecret starts one rank with another secret.
func TestSecret(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, change func(*Config)) {
		j := newJob(t, 3, func(c *Config) {
			if change != nil {
				change(c)
			}
			if c.Rank == 1 {
				c.Secret = []byte("quite another secret")
			}
		})
		for r, l := range j.try(t, 0, 1, 2) {
			require.Error(t, l.err)
			require.Contains(t, l.err.Error(), "secret", "rank %d", r)
			require.Less(t, l.took, soon)
		}
	})
}

// TestOtherJob leads a rank to a rank of another job.
func TestOtherJob(t *testing.T) {
	j := newJob(t, 2, nil)
	j.open(t)
	value, err := j.folder.Get(timeout(t, patience), "mesh/test/1/rank-0")
	require.NoError(t, err)
	require.NoError(t, j.folder.Set(context.Background(), "mesh/test/2/rank-0", value))
	j.change = func(c *Config) { c.Job = "test/2" }
	_, _, err = j.join(context.Background(), 1)
	require.ErrorContains(t, err, `refused by the other side: this is rank 0 of job "test/1", not of job "test/2"`)
}

// TestImpostor leads a rank to another than it wants.
func TestImpostor(t *testing.T) {
	j := newJob(t, 3, nil)
	j.change = func(c *Config) {
		if c.Rank == 2 {
			c.Store = misleading{j.folder}
		}
	}
	for _, l := range j.try(t, 1, 2) {
		require.ErrorContains(t, l.err, "dialing rank 0: another rank answers at its address: rank 1")
	}
}

// misleading takes rank 1 for rank 0, and knows nothing else of rank 1.
type misleading struct{ folder }

func (m misleading) Get(ctx context.Context, key string) ([]byte, error) {
	if strings.HasSuffix(key, "rank-1") {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return m.folder.Get(ctx, strings.Replace(key, "rank-0", "rank-1", 1))
}

// TestGivingUp lets one rank fail for a reason of its own, which the others hear.
func TestGivingUp(t *testing.T) {
	j := newJob(t, 3, func(c *Config) {
		if c.Rank == 2 {
			c.Listen = "nosuch0"
		}
	})
	for r, l := range j.try(t, 0, 1, 2) {
		require.ErrorContains(t, l.err, `listen on "nosuch0"`)
		if r != 2 {
			require.ErrorContains(t, l.err, "rank 2 gave up: ")
		}
		require.Less(t, l.took, soon)
		l.ear.none(t)
	}
}

// TestDeathWhileJoining cuts the connection of two ranks while a third is missing.
func TestDeathWhileJoining(t *testing.T) {
	t.Parallel()
	j := newJob(t, 3, nil)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	m := newMesh(mustCheck(t, Config{Rank: 1, Size: 3, Store: j.folder, Job: "test/1", Secret: secret, Handler: newEar()}))
	require.NoError(t, m.prepare())
	var all sync.WaitGroup
	all.Go(func() {
		if err := m.find(ctx, 0); err != nil {
			t.Error(err)
			return
		}
		p, err := m.peer(0)
		require.NoError(t, err)
		_ = p.conn.Close()
		m.end(frameAbort, nil)
	})
	for _, l := range j.try(t, 0) {
		require.ErrorContains(t, l.err, "rank 1 on host")
		require.ErrorContains(t, l.err, "has the process died?")
		require.Less(t, l.took, soon)
	}
	all.Wait()
}

func mustCheck(t *testing.T, c Config) Config {
	c, err := c.check()
	require.NoError(t, err)
	return c
}

// TestStrangers connects those who do not belong here while ranks join: more silent ones than are
// checked at a time must not be noticed, but on a busy machine.
func TestStrangers(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, change func(*Config)) {
		best := patience
		for attempt := 0; attempt < 5 && best >= checkTime; attempt++ {
			best = min(best, joinAmongStrangers(t, change))
		}
		require.Less(t, best, checkTime)
	})
}

// joinAmongStrangers returns how long the first two of three ranks take to join.
func joinAmongStrangers(t *testing.T, change func(*Config)) (took time.Duration) {
	var log journal
	j := newJob(t, 3, func(c *Config) {
		if change != nil {
			change(c)
		}
		c.Log = log.logger()
	})
	var strangers []net.Conn
	var all sync.WaitGroup
	all.Go(func() {
		for rank := range 2 {
			value, err := j.folder.Get(timeout(t, patience), fmt.Sprint("mesh/test/1/rank-", rank))
			require.NoError(t, err)
			where, err := decode[record](value)
			require.NoError(t, err)
			for i := range auth.MaxUnproven + 8 {
				network, address := "tcp", where.TCP
				if i%2 == 1 && runtime.GOOS == "linux" {
					network, address = "unix", where.Unix
				}
				conn, err := net.Dial(network, address)
				require.NoError(t, err)
				strangers = append(strangers, conn)
				switch i {
				case 2, 3:
					_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: a stranger who is lost\r\n\r\n")
				case 4, 5:
					_ = conn.Close()
				}
			}
		}
		all.Go(func() { j.open1(t, 2) })
	})
	for _, l := range j.try(t, 0, 1) {
		require.NoError(t, l.err)
		took = max(took, l.took)
	}
	all.Wait()
	require.Eventually(t, func() bool { return log.has("connection refused") && log.has("does not speak this protocol") }, patience, time.Millisecond)
	for _, conn := range strangers {
		_ = conn.Close()
	}
	return took
}

// TestSingle is a job of one.
func TestSingle(t *testing.T) {
	ranks := newJob(t, 1, nil).open(t)
	require.True(t, ranks[0].SameHost(0))
	require.NoError(t, ranks[0].Close())
}
