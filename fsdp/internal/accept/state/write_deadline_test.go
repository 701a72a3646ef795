package state_test

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/checkpoint/crashfs"
	"github.com/gofsdp/gofsdp/optim"
)

// A stoppedFS is a file system whose operations of one name do not end until it is back, once it is
// stopped: as a network's whose server is gone.
type stoppedFS struct {
	checkpoint.FS
	operation string
	mu        sync.Mutex
	seen      int           // operations of the name
	from      int           // how many must have been seen
	back      chan struct{} // nil unless it is stopped
}

func (f *stoppedFS) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.back = make(chan struct{})
}

// wait waits, if it is stopped and the operation is the one.
func (f *stoppedFS) wait(operation string) {
	if operation != f.operation {
		return
	}
	f.mu.Lock()
	f.seen++
	back, late := f.back, f.seen > f.from
	f.mu.Unlock()
	if back != nil && late {
		<-back
	}
}

func (f *stoppedFS) Open(path string) (checkpoint.Handle, error) {
	f.wait("open")
	h, err := f.FS.Open(path)
	if err != nil {
		return nil, err
	}
	return &stoppedFile{h, f}, nil
}

func (f *stoppedFS) ReadDir(dir string) ([]fs.DirEntry, error) {
	f.wait("read directory")
	return f.FS.ReadDir(dir)
}

func (f *stoppedFS) Create(path string) (checkpoint.Handle, error) {
	f.wait("create")
	h, err := f.FS.Create(path)
	if err != nil {
		return nil, err
	}
	return &stoppedFile{h, f}, nil
}

func (f *stoppedFS) Mkdir(dir string) error { f.wait("mkdir"); return f.FS.Mkdir(dir) }

func (f *stoppedFS) Rename(from, to string) error { f.wait("rename"); return f.FS.Rename(from, to) }

func (f *stoppedFS) SyncDir(dir string) error { f.wait("sync directory"); return f.FS.SyncDir(dir) }

type stoppedFile struct {
	checkpoint.Handle
	f *stoppedFS
}

func (s *stoppedFile) Write(p []byte) (int, error) { s.f.wait("write"); return s.Handle.Write(p) }

func (s *stoppedFile) ReadAt(p []byte, at int64) (int, error) {
	s.f.wait("read")
	return s.Handle.ReadAt(p, at)
}

func (s *stoppedFile) Size() (int64, error) { s.f.wait("size of"); return s.Handle.Size() }

func (s *stoppedFile) Close() error { s.f.wait("close"); return s.Handle.Close() }

func (s *stoppedFile) Sync() error { s.f.wait("sync"); return s.Handle.Sync() }

// TestWritesHaveADeadline stops a file system in every operation of a Save, SaveAsync or Export. The
// methods end with their context, or after the timeout of the group, and name the file. One warning comes
// before. The next Save and Close do not wait for longer either. The memory is there until the write ends.
func TestWritesHaveADeadline(t *testing.T) {
	const timeout = 10 * time.Minute // of groups in a process
	for method, operations := range map[string][]string{
		"Save":      {"mkdir", "create", "write", "sync", "rename", "sync directory"},
		"SaveAsync": {"create", "write", "sync", "rename"},
		"Export":    {"create", "write", "sync", "rename"},
	} {
		for _, operation := range operations {
			for _, n := range []int{1, 2} {
				for _, deadline := range []time.Duration{0, 3 * time.Second} {
					if deadline > 0 && method == "SaveAsync" { // its context ends the copy
						continue
					}
					t.Run(fmt.Sprintf("%s/%s/%d ranks/deadline %v", method, operation, n, deadline), func(t *testing.T) {
						progress := kit.CaptureDefault(t)
						synctest.Test(t, func(t *testing.T) {
							disk := &stoppedFS{FS: crashfs.New(), operation: operation}
							path := filepath.Join(string(filepath.Separator), "x")
							var ranks sync.WaitGroup
							groups := comm.Local(n)
							models := make([]*fsdp.Sharded, n)
							for _, g := range groups {
								ranks.Go(func() {
									var log bytes.Buffer
									m := kit.Wrap(t, kit.Shapes["chain"], fsdp.Config{Group: g, Logger: slog.New(slog.NewTextHandler(&log, nil))})
									models[g.Rank()] = m
									opt, err := optim.AdamW{}.New(m.Params())
									require.NoError(t, err)
									call := func(ctx context.Context) error {
										switch method {
										case "Save":
											return m.Save(kit.OnFS(ctx, disk), path, opt, nil)
										case "Export":
											return m.Export(kit.OnFS(ctx, disk), path, nil)
										}
										v, err := m.SaveAsync(kit.OnFS(ctx, disk), path, opt, nil)
										if err != nil {
											return err
										}
										return v.Wait(ctx)
									}
									require.NoError(t, m.Save(kit.OnFS(t.Context(), disk), path+"before", opt, nil))
									if g.Rank() == 0 {
										disk.stop()
									}
									require.NoError(t, g.Barrier(t.Context()))
									ctx, limit := t.Context(), timeout+time.Second
									if deadline > 0 {
										var cancel func()
										ctx, cancel = context.WithTimeout(ctx, deadline)
										defer cancel()
										limit = deadline + 2*time.Second
									}
									live, begin := m.Memory().Live, time.Now()
									err = call(ctx)
									require.Error(t, err)
									require.LessOrEqual(t, time.Since(begin), limit)
									mine := strings.Contains(err.Error(), operation+" ") && strings.Contains(err.Error(), "the file system does not answer")
									if n == 1 || deadline == 0 { // else the groups may have failed first
										require.Contains(t, err.Error(), operation+" "+string(filepath.Separator))
										require.True(t, mine, err.Error())
									}
									begin = time.Now()
									require.Error(t, call(t.Context()))
									require.LessOrEqual(t, time.Since(begin), limit)
									if g.Rank() == 0 {
										require.Equal(t, deadline == 0, strings.Contains(log.String(), "the file system does not answer"))
										require.LessOrEqual(t, strings.Count(log.String(), "does not answer"), 2)
										err = m.Close()
										require.ErrorContains(t, err, "fsdp: rank 0: Close: "+operation+" ")
										require.ErrorContains(t, err, "its memory is freed when the file system answers")
										require.LessOrEqual(t, time.Since(begin), timeout+limit)
										require.GreaterOrEqual(t, m.Memory().Live, live)
									} else {
										_ = m.Close() // its own write may have ended or not
									}
								})
							}
							ranks.Wait()
							if deadline == 0 && method != "SaveAsync" {
								require.Contains(t, progress(), map[string]string{"Save": "fsdp: saving in ", "Export": "fsdp: exporting to "}[method]+path)
							}
							close(disk.back)
							synctest.Wait()
							for _, m := range models {
								require.Zero(t, m.Memory().Live)
							}
							for _, g := range groups {
								require.NoError(t, g.Close())
							}
						})
					})
				}
			}
		}
	}
}
