package comm

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm/internal/grouptest"
	"github.com/gofsdp/gofsdp/internal/auth"
)

// meet connects two ranks, each with a configuration of its own, and leaves again. When one cannot
// join, the other gives up as soon as refused has returned.
func meet(t *testing.T, change func(*Config), refused ...func()) (errs [2]error) {
	addr := grouptest.FreeAddr(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var ranks sync.WaitGroup
	for r := range errs {
		cfg := Config{Rank: r, Size: 2, Rendezvous: "tcp://" + addr, Job: t.Name()}
		change(&cfg)
		ranks.Go(func() {
			g, err := Connect(ctx, cfg)
			if err != nil {
				defer cancel()
				for _, f := range refused {
					f()
				}
			} else {
				err = errors.Join(g.Barrier(ctx), g.Close())
			}
			errs[r] = err
		})
	}
	ranks.Wait()
	return errs
}

// ownKeyDir keeps a test off the key of whoever runs it.
func ownKeyDir(t *testing.T) {
	dir, before := filepath.Join(t.TempDir(), "keys"), keyDir
	keyDir = func() string { return dir }
	t.Cleanup(func() { keyDir = before })
}

// captureDefault makes slog.Default write to a buffer until the test ends.
func captureDefault(t *testing.T) (written func() string) {
	var mu sync.Mutex
	var out bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(writerFunc(func(b []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return out.Write(b)
	}), nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		return out.String()
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// TestNoSecret: without one, ranks of this user on this host join, over any transport, and those
// who do not know this user's key do not.
func TestNoSecret(t *testing.T) {
	ownKeyDir(t)
	for _, change := range []func(*Config){
		func(*Config) {},
		func(c *Config) { c.Transport = TCP },
		func(c *Config) { c.Transport, c.TLS = TCP, true },
	} {
		require.Equal(t, [2]error{}, meet(t, change))
	}
	// Before, "" was the secret, which every user of the host knew.
	for _, theirs := range []string{auth.Public, "another user's key"} {
		errs := meet(t, func(c *Config) {
			if c.Rank == 1 {
				c.Secret = Secret(theirs)
			}
		})
		require.ErrorContains(t, errs[1], "the other side has a different secret")
		require.ErrorContains(t, errs[0], "context canceled")
	}
	errs := meet(t, func(c *Config) {
		if c.Rank == 0 {
			c.Secret = Secret("another user's key")
		}
	})
	require.Regexp(t, `the other side has a different secret \(without FSDP_SECRET only ranks of user \d+ that can read \S+/keys/key can join\)`, errs[1].Error())
}

// TestTrustNetwork joins ranks that listen for other hosts and have no secret.
func TestTrustNetwork(t *testing.T) {
	far := func(trust bool) func(*Config) {
		return func(c *Config) { c.Listen, c.TrustNetwork, c.Transport = "127.0.0.1", trust, TCP }
	}
	require.Equal(t, [2]error{}, meet(t, far(true)))
	for _, err := range meet(t, far(false)) {
		require.ErrorContains(t, err, makeSecret)
	}
}

// TestStrangersAreShown: rank 0 tells of whom it has refused, and of a secret that is none, without
// any Logger.
func TestStrangersAreShown(t *testing.T) {
	for _, c := range []struct {
		change func(*Config) // of rank 1
		want   string
	}{
		{func(c *Config) { c.Secret = Secret("quite another secret 3451") }, "the other side has a different secret"},
		{func(c *Config) { c.Job = "other" }, "this is the store of job"},
		{func(c *Config) { c.TLS = true }, "it uses TLS, this side does not: set FSDP_TLS to the same value on all ranks"},
	} {
		log := captureDefault(t)
		errs := meet(t, func(cfg *Config) {
			cfg.Secret = Secret("known to all ranks: 8-29,31")
			if cfg.Rank == 1 {
				cfg.JoinTimeout = 2 * time.Second // for one that is never told
				c.change(cfg)
			}
		}, func() {
			require.Eventually(t, func() bool { return strings.Contains(log(), c.want) }, time.Minute, time.Millisecond)
		})
		require.Error(t, errs[0])
		require.Error(t, errs[1])
		require.Contains(t, log(), "level=WARN")
	}
	for secret, shown := range map[string]bool{"passwordpassword": true, "known to all ranks: 8-29,31": false} {
		log := captureDefault(t)
		require.Equal(t, [2]error{}, meet(t, func(cfg *Config) { cfg.Secret = Secret(secret) }))
		require.Equal(t, shown, strings.Count(log(), "the secret of this job can be guessed") == 1, log())
	}
}

// TestSparing shows the first warnings, and later ones with the number of those left out.
func TestSparing(t *testing.T) {
	var out bytes.Buffer
	h := sparing{slog.NewTextHandler(&out, nil), &spared{}}
	begin := time.Unix(0, 0)
	warn := func(h slog.Handler, after time.Duration) string {
		out.Reset()
		require.NoError(t, h.Handle(t.Context(), slog.NewRecord(begin.Add(after), slog.LevelWarn, "stranger", 0)))
		return out.String()
	}
	for range warnings {
		require.Contains(t, warn(h, 0), "msg=stranger\n")
	}
	for range 500 {
		require.Empty(t, warn(h.WithAttrs([]slog.Attr{slog.Int("rank", 1)}), time.Second))
	}
	require.Contains(t, warn(h, warningEvery), `"not shown before"=500`)
	require.Empty(t, warn(h.WithGroup("g"), warningEvery+time.Second))
	require.Contains(t, warn(h, 3*warningEvery), `"not shown before"=1`)
	require.NotContains(t, warn(h, 5*warningEvery), "not shown")
}
