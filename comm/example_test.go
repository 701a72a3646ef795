package comm_test

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/transport"
)

// Every rank contributes its number and gets the sum of all.
func ExampleRun() {
	err := comm.Run(context.Background(), 4, func(ctx context.Context, g comm.Group) error {
		x := []float32{float32(g.Rank()), 1}
		if err := g.AllReduce(comm.Of(x), comm.Sum).Wait(ctx); err != nil {
			return err
		}
		if g.Rank() == 2 {
			fmt.Println("sum of ranks and of ones:", x)
		}
		return nil
	})
	fmt.Println("error:", err)
	// Output:
	// sum of ranks and of ones: [6 4]
	// error: <nil>
}

// The first failure ends the run on all ranks and says where it happened.
func ExampleRun_failure() {
	err := comm.Run(context.Background(), 3, func(ctx context.Context, g comm.Group) error {
		if g.Rank() == 2 {
			return fmt.Errorf("no such file")
		}
		return g.Barrier(ctx) // rank 2 never comes
	})
	fmt.Println(err)
	// Output:
	// rank 2: no such file
}

// Shards of a layer become the whole layer on every rank, in place, while the
// rank does something else.
func ExampleGroup_allGather() {
	err := comm.Run(context.Background(), 2, func(ctx context.Context, g comm.Group) error {
		layer := comm.Of(make([]int32, 4)).Named("h.3")
		shard := layer.Slice(2*g.Rank(), 2*g.Rank()+2) // this rank's half
		mine, err := comm.Slice[int32](shard)
		if err != nil {
			return err
		}
		for i := range mine {
			mine[i] = int32(10*g.Rank() + i)
		}
		gathered := g.AllGather(layer, shard)
		// ... compute with another layer ...
		if err := gathered.Wait(ctx); err != nil {
			return err
		}
		if g.Rank() == 0 {
			whole, err := comm.Slice[int32](layer)
			fmt.Println(whole, err)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// [0 1 10 11] <nil>
	// <nil>
}

// Two ranks find each other in a directory; it can also be the address of one,
// "tcp://host:port". Here they are goroutines; usually each is a process, and
// FromEnv fills in the configuration.
func ExampleConnect() {
	dir, err := os.MkdirTemp("", "rendezvous")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	var ranks sync.WaitGroup
	for rank := range 2 {
		ranks.Go(func() {
			g, err := comm.Connect(context.Background(), comm.Config{
				Rank: rank, Size: 2, Rendezvous: "file://" + dir,
				Job: "example", Secret: []byte("of at least 16 bytes"), Transport: comm.TCP,
			})
			if err != nil {
				panic(err)
			}
			defer g.Close()
			x := make([]comm.BF16, 1)
			comm.Narrow(x, []float32{1.5})
			if err := g.AllReduce(comm.Of(x), comm.Sum).Wait(context.Background()); err != nil {
				panic(err)
			}
			if rank == 1 {
				fmt.Println(x[0])
			}
		})
	}
	ranks.Wait()
	// Output:
	// 3
}

// Rank 1 asks what the ranks are doing, while rank 0 waits for it.
func ExampleReport() {
	gs := comm.Local(2)
	w := gs[0].AllReduce(comm.Of([]float32{1}).Named("h.3"), comm.Sum)
	status, err := comm.Report(context.Background(), gs[1])
	if err != nil {
		panic(err)
	}
	for _, s := range status {
		fmt.Println(s)
	}
	gs[1].Abort(fmt.Errorf("rank 1 has no gradient for h.3"))
	fmt.Println(w.Wait(context.Background()))
	// Output:
	// rank 0: 0 of 1 collectives complete, last all-reduce float32[1] sum "h.3" #1 issued
	// rank 1: 0 of 0 collectives complete
	// comm: rank 1 of group "world": rank 1 has no gradient for h.3
}

// A group that is watched tells of each collective when it is complete on the rank.
func ExampleWatcher() {
	err := comm.Run(context.Background(), 2, func(ctx context.Context, g comm.Group) error {
		stop := g.(transport.Watcher).Watch(func(f transport.Flight) {
			if f.Rank == 0 {
				fmt.Printf("#%d %s, %d bytes\n", f.Seq, f.Call, f.Bytes)
			}
		})
		defer stop()
		return g.AllReduce(comm.Of(make([]float32, 100)).Named("gradients"), comm.Sum).Wait(ctx)
	})
	fmt.Println("error:", err)
	// Output:
	// #1 all-reduce float32[100] sum "gradients", 400 bytes
	// error: <nil>
}
