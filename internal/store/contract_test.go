package store

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/gofsdp/gofsdp/internal/auth"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var secret = []byte("sixteen bytes or more")

// kinds are the ways to have a store. Each returns a function that opens one more handle on the
// same store.
var kinds = map[string]func(t *testing.T) (open func() Store){
	"tcp": func(t *testing.T) func() Store { return overTCP(t, nil, nil) },
	"tls": func(t *testing.T) func() Store {
		server, client, err := auth.TLS()
		require.NoError(t, err)
		return overTCP(t, server, client)
	},
	"dir": func(t *testing.T) func() Store { return inDir(t, nil) },
	"dir without links": func(t *testing.T) func() Store {
		return inDir(t, func(string, string) error { return errors.ErrUnsupported })
	},
}

func overTCP(t *testing.T, server, client *tls.Config) func() Store {
	complain := func(err error) {
		if !errors.Is(err, os.ErrDeadlineExceeded) { // of a handshake, on a machine that was stopped: the client tries again
			t.Error(err)
		}
	}
	s, err := Listen(t.Context(), "127.0.0.1:0", Config{Job: "gpt", Secret: secret, TLS: server, Log: complain})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return func() Store {
		c, err := Dial(t.Context(), s.Addr().String(), Config{Job: "gpt", Secret: secret, TLS: client})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, c.Close()) })
		return c
	}
}

func inDir(t *testing.T, link func(string, string) error) func() Store {
	path := t.TempDir() + "/a/b"
	return func() Store {
		s, err := Dir(path, Config{Job: "gpt", Secret: secret})
		require.NoError(t, err)
		if link != nil {
			s.(*dir).link = link
		}
		return s
	}
}

// set stores a value that is not there yet.
func set(ctx context.Context, s Store, key string, value []byte) error {
	holder, err := s.Claim(ctx, key, value)
	if err == nil && string(holder) != string(value) {
		err = fmt.Errorf("%q is held by %q", key, holder)
	}
	return err
}

// TestContract holds every kind of store to what Store promises.
func TestContract(t *testing.T) {
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) { contract(t, kind) })
	}
}

func contract(t *testing.T, kind func(t *testing.T) (open func() Store)) {
	for name, test := range map[string]func(t *testing.T, open func() Store){
		"values":      testValues,
		"keys":        testKeys,
		"limits":      testLimits,
		"get waits":   testGetWaits,
		"claim":       testClaim,
		"context":     testContext,
		"close":       testClose,
		"model":       testModel,
		"concurrency": testConcurrency,
	} {
		t.Run(name, func(t *testing.T) { test(t, kind(t)) })
	}
}

func testValues(t *testing.T, open func() Store) {
	a, b := open(), open()
	whole := []byte(strings.Repeat("\x00\xff", MaxValue/2))
	for i, v := range [][]byte{[]byte("one"), nil, {}, {0}, whole, []byte("two")} {
		key := fmt.Sprint("key", i)
		require.NoError(t, set(t.Context(), a, key, v))
		got, err := b.Get(t.Context(), key)
		require.NoError(t, err)
		require.Equal(t, string(v), string(got))
		if len(got) > 0 {
			got[0]++ // the caller's own
			again, err := b.Get(t.Context(), key)
			require.NoError(t, err)
			require.Equal(t, string(v), string(again))
		}
	}
}

func testKeys(t *testing.T, open func() Store) {
	a, b := open(), open()
	keys := []string{"a", "A", "a/b", "a_b", "a b", ".", "..", "../../etc/passwd", "/", "NUL", "con.txt", "x\x00y", "\xff\xfe", "é", "a\\b", "C:", strings.Repeat("k", 250)}
	for _, k := range keys {
		require.NoError(t, set(t.Context(), a, k, []byte("value of "+k)), "%q", k)
	}
	for _, k := range keys {
		v, err := b.Get(t.Context(), k)
		require.NoError(t, err)
		require.Equal(t, "value of "+k, string(v))
	}
}

func testLimits(t *testing.T, open func() Store) {
	s := open()
	ctx := t.Context()
	long, large := strings.Repeat("k", MaxKey+1), make([]byte, MaxValue+1)
	for _, k := range []string{"", long} {
		_, get := s.Get(ctx, k)
		_, claim := s.Claim(ctx, k, nil)
		for _, err := range []error{get, claim} {
			require.ErrorIs(t, err, ErrLimit)
			require.ErrorContains(t, err, "a key has 1 to 256 bytes")
		}
	}
	_, err := s.Claim(ctx, "k", large)
	require.ErrorIs(t, err, ErrLimit)
	require.ErrorContains(t, err, "a value has at most 65536 bytes, not 65537")
}

func testGetWaits(t *testing.T, open func() Store) {
	a, b := open(), open()
	got := make(chan string)
	for _, s := range []Store{a, a, b} {
		go func() {
			v, err := s.Get(t.Context(), "late")
			got <- fmt.Sprint(string(v), err)
		}()
	}
	require.NoError(t, set(t.Context(), a, "early", []byte("not this one")), "a Get that waits is in nobody's way")
	require.NoError(t, set(t.Context(), a, "late", []byte("here")))
	for range 3 {
		require.Equal(t, "here<nil>", <-got)
	}
}

func testClaim(t *testing.T, open func() Store) {
	ctx := t.Context()
	const n = 8
	holders := make([]string, n)
	var wg sync.WaitGroup
	for i := range n {
		s := open()
		wg.Go(func() {
			holder, err := s.Claim(ctx, "rank/3", fmt.Appendf(nil, "claimant %d", i))
			if err != nil {
				holder = []byte(err.Error())
			}
			holders[i] = string(holder)
		})
	}
	wg.Wait()
	require.Contains(t, holders[0], "claimant")
	for _, h := range holders {
		require.Equal(t, holders[0], h)
	}
	s := open()
	v, err := s.Get(ctx, "rank/3")
	require.NoError(t, err)
	require.Equal(t, holders[0], string(v))
	v, err = s.Claim(ctx, "empty", nil)
	require.NoError(t, err)
	require.Empty(t, v)
	v, err = s.Claim(ctx, "empty", []byte("held by nothing"))
	require.NoError(t, err)
	require.Empty(t, v)
}

func testContext(t *testing.T, open func() Store) {
	s := open()
	why := errors.New("changed my mind")
	ctx, cancel := context.WithCancelCause(t.Context())
	failed := make(chan error)
	go func() {
		_, err := s.Get(ctx, "never")
		failed <- err
	}()
	cancel(why)
	err := <-failed
	require.ErrorIs(t, err, why)
	require.ErrorContains(t, err, `never"`, "the error names the key")
	_, get := s.Get(ctx, "never")
	_, claim := s.Claim(ctx, "k", nil)
	for _, err := range []error{get, claim} {
		require.ErrorIs(t, err, why)
	}
	require.NoError(t, set(t.Context(), s, "k", nil), "the store is as good as before")
}

func testClose(t *testing.T, open func() Store) {
	a, b := open(), open()
	failed := make(chan error)
	go func() {
		_, err := a.Get(t.Context(), "never")
		failed <- err
	}()
	require.NoError(t, set(t.Context(), b, "stays", []byte("here")))
	require.NoError(t, a.Close())
	require.NoError(t, a.Close(), "twice")
	require.ErrorIs(t, <-failed, ErrClosed)
	_, err := a.Get(t.Context(), "stays")
	require.ErrorIs(t, err, ErrClosed)
	v, err := b.Get(t.Context(), "stays")
	require.NoError(t, err)
	require.Equal(t, "here", string(v))
}

// testModel compares random operations with a map.
func testModel(t *testing.T, open func() Store) {
	stores := []Store{open(), open()}
	ctx := t.Context()
	round := 0
	rapid.Check(t, func(r *rapid.T) {
		round++
		model := make(map[string]string)
		key := rapid.Map(rapid.SampledFrom([]string{"a", "b", "ab", "a/b"}), func(k string) string { return fmt.Sprint(k, round) })
		value := rapid.StringN(0, 3, -1)
		for range rapid.IntRange(1, 8).Draw(r, "operations") {
			s := rapid.SampledFrom(stores).Draw(r, "store")
			k, v := key.Draw(r, "key"), value.Draw(r, "value")
			switch rapid.SampledFrom([]string{"get", "claim"}).Draw(r, "operation") {
			case "get":
				if want, ok := model[k]; ok {
					got, err := s.Get(ctx, k)
					require.NoError(r, err)
					require.Equal(r, want, string(got))
				}
			case "claim":
				got, err := s.Claim(ctx, k, []byte(v))
				require.NoError(r, err)
				if _, held := model[k]; !held {
					model[k] = v
				}
				require.Equal(r, model[k], string(got))
			}
		}
	})
}

// testConcurrency has ranks find each other all at once.
func testConcurrency(t *testing.T, open func() Store) {
	const n = 6
	errs := make(chan error)
	for i := range n {
		s := open()
		go func() {
			errs <- func() error {
				if err := set(t.Context(), s, fmt.Sprint("rank/", i), fmt.Append(nil, i)); err != nil {
					return err
				}
				var gets sync.WaitGroup
				found := make([]error, n)
				for j := range n {
					gets.Go(func() {
						v, err := s.Get(t.Context(), fmt.Sprint("rank/", j))
						if err == nil && string(v) != fmt.Sprint(j) {
							err = fmt.Errorf("rank %d is %q", j, v)
						}
						found[j] = err
					})
				}
				gets.Wait()
				return errors.Join(found...)
			}()
		}()
	}
	for range n {
		require.NoError(t, <-errs)
	}
}
