package comm

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"unsafe"

	"github.com/gofsdp/gofsdp/comm"
)

// RankCommand as the first argument makes the program one of our ranks, or all ranks of an
// in-process group: it calls Serve.
const RankCommand = "comm-rank"

// ourRank is the driver's argument for one of our processes.
type ourRank struct {
	socket     string // of the driver
	size       int
	max        int // bytes of the largest tensor
	rank       int // or -1 for all ranks, as goroutines
	rendezvous string
	transport  string
	registered bool // tensors are in memory of the group
}

// Serve runs one of our processes: it opens its group and answers commands until the driver hangs
// up.
func Serve(args []string) error {
	var o ourRank
	flags := flag.NewFlagSet(RankCommand, flag.ContinueOnError)
	flags.StringVar(&o.socket, "socket", "", "Unix socket of the driver")
	flags.IntVar(&o.size, "size", 2, "number of ranks")
	flags.IntVar(&o.max, "max", smallest, "bytes of the largest tensor")
	flags.IntVar(&o.rank, "rank", -1, "this process's rank, or -1 for all")
	flags.StringVar(&o.rendezvous, "rendezvous", "", "where the ranks meet")
	flags.StringVar(&o.transport, "transport", "", "shm or tcp")
	flags.BoolVar(&o.registered, "registered", false, "keep tensors in memory that the peers read directly")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if o.rank < 0 {
		return o.serveLocal()
	}
	return o.serveProcess(context.Background())
}

// serveLocal runs all ranks in this process.
func (o ourRank) serveLocal() error {
	failures := make(chan error, o.size)
	for _, g := range comm.Local(o.size) {
		go func() {
			err := o.answer(g, tensor(o.max), tensor(o.max/o.size))
			if err != nil {
				g.Abort(err) // otherwise the others would wait for this rank
			}
			failures <- err
		}()
	}
	var err error
	for range o.size {
		err = errors.Join(err, <-failures)
	}
	return err
}

// serveProcess runs one rank of a group of processes.
func (o ourRank) serveProcess(ctx context.Context) (err error) {
	transport, err := comm.ParseTransport(o.transport)
	if err != nil {
		return err
	}
	g, err := comm.Connect(ctx, comm.Config{
		Rank: o.rank, Size: o.size, Rendezvous: o.rendezvous, Job: "bench", Transport: transport,
		Timeout: patience, JoinTimeout: patience,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	full, shard := tensor(o.max), tensor(o.max/o.size)
	if o.registered {
		if full, err = registered(g, o.max); err != nil {
			return err
		}
		if shard, err = registered(g, o.max/o.size); err != nil {
			return err
		}
	}
	return o.answer(g, full, shard)
}

// answer connects a rank to the driver.
func (o ourRank) answer(g comm.Group, full, shard []float32) error {
	conn, err := net.Dial("unix", o.socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	return serveRank(conn, g, full, shard)
}

// tensor returns memory whose pages are already mapped.
func tensor(bytes int) []float32 {
	s := make([]float32, bytes/elementSize)
	fill(s, 0, 1)
	return s
}

// registered returns a tensor in memory of the group, which the group frees when it closes.
func registered(g comm.Group, bytes int) ([]float32, error) {
	a, ok := g.(comm.Allocator)
	if !ok {
		return nil, fmt.Errorf("%T has no memory of its own to give", g)
	}
	b, err := a.Alloc(bytes)
	if err != nil {
		return nil, err
	}
	s := unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), bytes/elementSize)
	fill(s, 0, 1)
	return s, nil
}
