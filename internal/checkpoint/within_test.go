package checkpoint

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/safetensors"
)

// A silent file system does not answer when a path is opened or listed, until it is back.
type silent struct {
	FS
	path string
	back chan struct{}
}

func (s *silent) wait(path string) {
	if path == s.path {
		<-s.back
	}
}

func (s *silent) Open(path string) (Handle, error) {
	s.wait(path)
	return s.FS.Open(path)
}

func (s *silent) ReadDir(dir string) ([]fs.DirEntry, error) {
	s.wait(dir)
	return s.FS.ReadDir(dir)
}

// TestSilentFileSystem has no answer to one operation after the other. All that reads ends with its
// context, and what is opened too late is closed.
func TestSilentFileSystem(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "000001-step-1")
	require.NoError(t, OS().Mkdir(path))
	list := smallCheckpoint(t, OS(), path)
	file := filepath.Join(path, fileOf(0, 2))
	opened := func(do func(ctx context.Context, r *Reader) error) func(context.Context, *silent) error {
		return func(ctx context.Context, s *silent) error {
			silence := s.path
			s.path = ""
			r, err := OpenReader(ctx, s, path)
			s.path = silence
			return errors.Join(err, do(ctx, r), r.Close())
		}
	}
	latest := func(ctx context.Context, s *silent) error { _, err := Latest(ctx, s, dir); return err }
	open := func(ctx context.Context, s *silent) error { _, err := OpenReader(ctx, s, path); return err }
	all := func(ctx context.Context, s *silent) error { _, err := List(ctx, s, dir); return err }
	for name, c := range map[string]struct {
		path string
		do   func(context.Context, *silent) error
	}{
		"latest, manifest of a job": {filepath.Join(dir, ManifestName), latest},
		"latest, directory":         {dir, latest},
		"latest, manifest":          {filepath.Join(path, ManifestName), latest},
		"latest, file":              {file, latest},
		"list, directory":           {dir, all},
		"open, manifest":            {filepath.Join(path, ManifestName), open},
		"open, file":                {file, open},
		"list, file":                {file, all},
		"hold":                      {file, opened(func(ctx context.Context, r *Reader) error { return r.Hold(ctx, list[0].Key, 0, 1) })},
		"read": {file, opened(func(ctx context.Context, r *Reader) error {
			return r.Read(ctx, list[0].Key, 0, make([]byte, 4), safetensors.F32)
		})},
		"verify": {file, opened(func(ctx context.Context, r *Reader) error { return r.Verify(ctx, nil) })},
	} {
		t.Run(name, func(t *testing.T) {
			counts := &counting{FS: OS()}
			synctest.Test(t, func(t *testing.T) {
				s := &silent{FS: counts, path: c.path, back: make(chan struct{})}
				stop := errors.New("enough")
				ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, stop)
				defer cancel()
				begin := time.Now()
				err := c.do(ctx, s)
				require.ErrorIs(t, err, stop)
				require.NotContains(t, err.Error(), path+": "+path)
				require.Equal(t, time.Minute, time.Since(begin))
				close(s.back)
			})
			require.Zero(t, counts.open)
		})
	}
}
