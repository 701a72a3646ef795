package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gofsdp/gofsdp/internal/auth"
	"github.com/stretchr/testify/require"
)

func openDir(t *testing.T, path string, cfg Config) *dir {
	s, err := Dir(path, cfg)
	require.NoError(t, err)
	return s.(*dir)
}

func TestDirLeavesNothingBehind(t *testing.T) {
	for _, link := range []func(string, string) error{os.Link, func(string, string) error { return errors.ErrUnsupported }} {
		path := t.TempDir()
		d := openDir(t, path, config)
		d.link = link
		for range 3 {
			_, err := d.Claim(t.Context(), "k", nil)
			require.NoError(t, err)
			_, err = d.Claim(t.Context(), "l", nil)
			require.NoError(t, err)
		}
		files, err := os.ReadDir(path)
		require.NoError(t, err)
		require.Len(t, files, 2)
	}
}

// TestTornFiles shows a Get a file of every length up to the whole one.
func TestTornFiles(t *testing.T) {
	path := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		d := openDir(t, path, config)
		whole := d.seal.encode("key", []byte("value"))
		name := filepath.Join(path, d.seal.fileName("key"))
		for n := range whole {
			require.NoError(t, os.WriteFile(name, whole[:n], 0o600))
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := d.Get(ctx, "key")
			_, claim := d.Claim(ctx, "key", nil)
			cancel()
			require.ErrorContains(t, err, `get "key": key.`)
			require.ErrorContains(t, err, "is incomplete")
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorIs(t, claim, context.DeadlineExceeded)
		}
		got := make(chan string)
		go func() {
			v, _ := d.Get(t.Context(), "key")
			got <- string(v)
		}()
		synctest.Wait()
		require.NoError(t, os.WriteFile(name, whole, 0o600))
		require.Equal(t, "value", <-got)
		for i := range whole {
			flipped := append([]byte(nil), whole...)
			flipped[i] ^= 0x40
			_, err := d.seal.decode("key", flipped)
			require.ErrorIs(t, err, errTorn)
		}
	})
}

func TestGetLooksAgain(t *testing.T) {
	path := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		d := openDir(t, path, config)
		for _, late := range []time.Duration{15 * time.Millisecond, time.Hour} {
			start := time.Now()
			time.AfterFunc(late, func() { require.NoError(t, set(t.Context(), d, late.String(), nil)) })
			_, err := d.Get(t.Context(), late.String())
			require.NoError(t, err)
			require.Less(t, time.Since(start), late+500*time.Millisecond)
		}
	})
}

func TestForeignFiles(t *testing.T) {
	ctx := t.Context()
	path := t.TempDir()
	d := openDir(t, path, config)
	file := func(key string) string { return filepath.Join(path, d.seal.fileName(key)) }

	cfg := config
	cfg.Secret = []byte("another sixteen bytes")
	stranger := openDir(t, path, cfg)
	require.NoError(t, set(ctx, stranger, "forged", nil))
	_, get := d.Get(ctx, "forged")
	_, claim := d.Claim(ctx, "forged", nil)
	for _, err := range []error{get, claim} {
		require.ErrorIs(t, err, auth.ErrSecret)
		require.ErrorContains(t, err, "was not written by a rank of this job")
		require.ErrorContains(t, err, "store in "+path)
	}

	require.NoError(t, set(ctx, d, "rank/0", []byte("host0")))
	b, err := os.ReadFile(file("rank/0"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file("rank/1"), b, 0o600))
	_, err = d.Get(ctx, "rank/1")
	require.ErrorIs(t, err, errOther, "rank 0 may not be passed off as rank 1")

	require.NoError(t, os.WriteFile(file("large"), make([]byte, maxFile+1), 0o600))
	_, err = d.Get(ctx, "large")
	require.ErrorContains(t, err, "is not a file of this store")
	require.NoError(t, os.Mkdir(file("directory"), 0o700))
	_, err = d.Get(ctx, "directory")
	require.ErrorContains(t, err, "is not a file of this store")
}

func TestJobsShareADirectory(t *testing.T) {
	ctx := t.Context()
	path := t.TempDir()
	first := openDir(t, path, config)
	cfg := config
	cfg.Job = "gpt/2"
	second := openDir(t, path, cfg)
	require.NoError(t, set(ctx, first, "rank/0", []byte("of the first")))
	holder, err := second.Claim(ctx, "rank/0", []byte("of the second"))
	require.NoError(t, err)
	require.Equal(t, "of the second", string(holder))
}

func TestDirFailures(t *testing.T) {
	_, err := Dir(t.TempDir(), Config{Secret: []byte("short")})
	require.ErrorIs(t, err, auth.ErrWeak)
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err = Dir(file, config)
	require.ErrorContains(t, err, file)
}

func FuzzDecodeFile(f *testing.F) {
	s := seal{key: secret, job: "gpt"}
	f.Add("key", []byte("value"), uint(0), byte(0))
	f.Add("", []byte{}, uint(9), byte(1))
	f.Fuzz(func(t *testing.T, key string, value []byte, at uint, flip byte) {
		// Raw bytes first, then a file of ours with one byte changed.
		_, err := s.decode(key, value)
		require.Error(t, err)
		if len(key) > MaxKey || len(value) > MaxValue {
			return
		}
		b := s.encode(key, value)
		b[at%uint(len(b))] ^= flip
		got, err := s.decode(key, b)
		if flip != 0 {
			require.Error(t, err)
			return
		}
		require.NoError(t, err)
		require.Equal(t, string(value), string(got))
	})
}
