package store_test

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/gofsdp/gofsdp/internal/store"
)

// Three ranks tell each other where they are. Rank 0 hosts the store.
func Example() {
	ctx := context.Background()
	cfg := store.Config{Job: "gpt", Size: 3, Secret: []byte("openssl rand -hex 32")}
	server, err := store.Listen(ctx, "127.0.0.1:0", cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	var ranks sync.WaitGroup
	for rank := range 3 {
		ranks.Go(func() {
			s, err := store.Dial(ctx, server.Addr().String(), cfg)
			if err != nil {
				fmt.Println(err)
				return
			}
			defer s.Close()
			mine := fmt.Appendf(nil, "host%d:4000", rank)
			holder, err := s.Claim(ctx, fmt.Sprint("rank/", rank), mine)
			if err != nil || string(holder) != string(mine) {
				fmt.Println("rank", rank, "is taken:", string(holder), err)
			}
			next, err := s.Get(ctx, fmt.Sprint("rank/", (rank+1)%3)) // waits for it
			if err != nil {
				fmt.Println(err)
			}
			fmt.Printf("rank %d sends to %s\n", rank, next)
		})
	}
	ranks.Wait()
	// Unordered output:
	// rank 0 sends to host1:4000
	// rank 1 sends to host2:4000
	// rank 2 sends to host0:4000
}

// The first to claim a key holds it.
func ExampleDir() {
	ctx := context.Background()
	path, err := os.MkdirTemp("", "store")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(path)
	s, err := store.Dir(path, store.Config{Job: "gpt", Secret: []byte("openssl rand -hex 32")})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	for _, who := range []string{"host0:4000", "host1:4000"} {
		holder, err := s.Claim(ctx, "rank/0", []byte(who))
		fmt.Printf("%s claims: held by %s, %v\n", who, holder, err)
	}
	// Output:
	// host0:4000 claims: held by host0:4000, <nil>
	// host1:4000 claims: held by host0:4000, <nil>
}
