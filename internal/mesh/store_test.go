package mesh

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/store"
)

// TestStores joins over the stores that jobs use. Each rank has a store of its own, and closes it
// as soon as it has joined; rank 0 takes the server with it.
func TestStores(t *testing.T) {
	const size = 4
	cfg := store.Config{Job: "test/1", Secret: secret}
	server, err := store.Listen(context.Background(), "127.0.0.1:0", cfg)
	require.NoError(t, err)
	defer server.Close()
	folder := t.TempDir()
	for name, open := range map[string]func() (store.Store, error){
		"server":    func() (store.Store, error) { return store.Dial(timeout(t, patience), server.Addr().String(), cfg) },
		"directory": func() (store.Store, error) { return store.Dir(folder, cfg) },
	} {
		t.Run(name, func(t *testing.T) {
			var ranks [size]joined
			var all sync.WaitGroup
			for rank := range size {
				all.Go(func() {
					s, err := open()
					if err != nil {
						t.Error(err)
						return
					}
					j := job{"", size, func(c *Config) { c.Store = s }, patience}
					ranks[rank].Mesh, ranks[rank].ear, ranks[rank].err = j.join(context.Background(), rank)
					if err := s.Close(); err != nil {
						t.Error(err)
					}
					if rank == 0 && name == "server" {
						_ = server.Close()
					}
				})
			}
			all.Wait()
			for rank, l := range ranks {
				require.NoError(t, l.err)
				require.NoError(t, l.Send((rank+1)%size, []byte("hello")))
			}
			for rank, l := range ranks {
				l.ear.first(t, (rank+size-1)%size, 1)
			}
			closeAll(ranks[:])
		})
	}
}
