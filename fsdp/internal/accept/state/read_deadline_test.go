package state_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
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

// TestReadsHaveADeadline stops a file system on rank 0 in every operation of a Load or Import, the first or
// the last of its name: of these, a read goes straight to parameters. The methods end with their context, or
// after the timeout of the group, and name the file and the time. Meanwhile the model refuses to be loaded
// again, and after Close the memory is there until the read ends. If the file system comes back before, a
// Load makes the model whole.
func TestReadsHaveADeadline(t *testing.T) {
	const timeout = 10 * time.Minute // of groups in a process
	for method, operations := range map[string][]string{
		"Load":   {"open", "read directory", "size of", "read"},
		"Import": {"open", "size of", "read"},
	} {
		for _, operation := range operations {
			for _, last := range []bool{false, true} {
				for _, n := range []int{1, 2} {
					for _, deadline := range []time.Duration{0, 3 * time.Second} {
						t.Run(fmt.Sprintf("%s/%s/last %t/%d ranks/deadline %v", method, operation, last, n, deadline), func(t *testing.T) {
							progress := kit.CaptureDefault(t)
							synctest.Test(t, func(t *testing.T) {
								disk := crashfs.New()
								stopped := &stoppedFS{FS: disk, operation: operation}
								var ranks sync.WaitGroup
								groups := comm.Local(n)
								models := make([]*fsdp.Sharded, n)
								for _, g := range groups {
									ranks.Go(func() {
										var log bytes.Buffer
										m := kit.Wrap(t, kit.Shapes["chain"], fsdp.Config{Group: g, VirtualRanks: 2, Logger: slog.New(slog.NewTextHandler(&log, nil))})
										models[g.Rank()] = m
										opt, err := optim.AdamW{}.New(m.Params())
										require.NoError(t, err)
										var use checkpoint.FS = disk
										if g.Rank() == 0 {
											use = stopped
										}
										call := func(ctx context.Context) error {
											ctx = kit.OnFS(ctx, use)
											if method == "Import" {
												return m.Import(ctx, kit.Ckpt+".safetensors", &fsdp.ImportOptions{Optimizer: opt})
											}
											_, err := m.Load(ctx, kit.Ckpt, opt, nil)
											return err
										}
										require.NoError(t, m.Save(kit.OnFS(t.Context(), disk), kit.Ckpt, opt, nil))
										require.NoError(t, m.Export(kit.OnFS(t.Context(), disk), kit.Ckpt+".safetensors", &fsdp.ExportOptions{Optimizer: opt}))
										good := ownNumbers(t, m, opt)
										if g.Rank() == 0 {
											stopped.seen = 0
										}
										require.NoError(t, call(t.Context()))
										if g.Rank() == 0 {
											if last {
												stopped.from = stopped.seen - 1
											}
											stopped.seen = 0
											stopped.stop()
										}
										require.NoError(t, g.Barrier(t.Context()))
										limit := timeout + time.Second
										if deadline > 0 {
											limit = deadline + 2*time.Second
										}
										ends := func() error {
											ctx, begin := t.Context(), time.Now()
											if deadline > 0 {
												var cancel func()
												ctx, cancel = context.WithTimeout(ctx, deadline)
												defer cancel()
											}
											err := call(ctx)
											require.Error(t, err)
											require.LessOrEqual(t, time.Since(begin), limit)
											return err
										}
										live := m.Memory().Live
										err = ends()
										if n == 1 || deadline == 0 { // else the groups may have failed first
											require.Contains(t, err.Error(), kit.Ckpt)
											require.Regexp(t, "has not (ended|answered) after (10m0s|[34]s)", err.Error())
										}
										if g.Rank() == 0 && deadline == 0 {
											require.Equal(t, 1, strings.Count(log.String(), "the file system does not answer"), log.String())
											require.Contains(t, log.String(), operation+" "+kit.Ckpt)
										}
										reads := operation == "read" && last
										if reads && (n == 1 || deadline == 0) {
											begin := time.Now()
											require.ErrorContains(t, call(t.Context()), "read "+kit.Ckpt)
											require.Zero(t, time.Since(begin))
										}
										if n == 1 {
											close(stopped.back)
											synctest.Wait()
											require.NoError(t, call(t.Context()))
											require.Equal(t, good, ownNumbers(t, m, opt))
											stopped.stop()
											stopped.seen = 0
											_ = ends()
										}
										begin := time.Now()
										err = m.Close()
										require.LessOrEqual(t, time.Since(begin), timeout+limit)
										if g.Rank() == 0 && reads {
											require.ErrorContains(t, err, "fsdp: rank 0: Close: read "+kit.Ckpt)
											require.ErrorContains(t, err, "its memory is freed when the file system answers")
											require.GreaterOrEqual(t, m.Memory().Live, live)
										}
									})
								}
								ranks.Wait()
								if deadline == 0 {
									require.Contains(t, progress(), map[string]string{"Load": "fsdp: loading ", "Import": "fsdp: importing "}[method]+kit.Ckpt)
								}
								close(stopped.back)
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
}
