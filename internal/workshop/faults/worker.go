package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"go.uber.org/goleak"

	"github.com/gofsdp/gofsdp/comm"
)

// workerVariable is set in the environment of workers.
const workerVariable = "GOFSDP_FAULTS_WORKER"

// order is a message of the parent to a worker: run these ranks of a case or, without ranks, let
// the running ones continue.
type order struct {
	Case   *Case  `json:",omitempty"`
	Ranks  []int  `json:",omitempty"` // one, or all of a local world
	Dir    string `json:",omitempty"`
	Struck bool   `json:",omitempty"` // only that the incident has happened
}

// work serves orders from in until it ends.
func work(in io.Reader, out io.Writer) {
	var mu sync.Mutex
	encoder := json.NewEncoder(out)
	say := func(r report) {
		mu.Lock()
		defer mu.Unlock()
		if err := encoder.Encode(r); err != nil {
			os.Exit(3) // no goroutine listens
		}
	}
	if l, err := net.Listen("tcp", "127.0.0.1:0"); err == nil {
		l.Close() // the files of the runtime's poller must not look like a leak of the first case
	}
	orders := make(chan order)
	go func() {
		decoder := json.NewDecoder(bufio.NewReader(in))
		for {
			var o order
			if err := decoder.Decode(&o); err != nil {
				os.Exit(0) // the parent has ended: nothing may outlive it
			}
			orders <- o
		}
	}()
	for o := range orders {
		serve(o, orders, say)
	}
}

// serve runs the ranks of one order, and checks for leftovers.
func serve(o order, more <-chan order, say func(report)) {
	st := stages{make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})}
	var ranks sync.WaitGroup
	before := usageNow()
	running := goleak.IgnoreCurrent()
	local := comm.Local(o.Case.Ranks)
	for _, id := range o.Ranks {
		r := &rank{c: *o.Case, id: id, dir: o.Dir, say: say, stages: st}
		ranks.Go(func() {
			r.play(func(ctx context.Context) (comm.Group, error) {
				if o.Case.Transport == "local" {
					return local[id], nil
				}
				return comm.Connect(ctx, r.config())
			})
		})
	}
	for next := []chan struct{}{st.begin, st.finish, st.end}; len(next) > 0; {
		if o := <-more; o.Struck {
			close(st.struck)
			continue
		}
		close(next[0])
		next = next[1:]
	}
	ranks.Wait()
	ended := report{What: "ended", Rank: o.Ranks[0], At: time.Now()}
	if err := goleak.Find(running); err != nil {
		ended.Wrong = append(ended.Wrong, fmt.Sprintf("rank %d: %v", o.Ranks[0], err))
	}
	ended.Usage = usageNow()
	if ended.Usage.Files > before.Files || ended.Usage.Shared > before.Shared {
		ended.Wrong = append(ended.Wrong, fmt.Sprintf("rank %d: left behind: %v, before: %v", o.Ranks[0], ended.Usage, before))
	}
	say(ended)
}

// config returns the configuration by which the rank finds the others.
func (r *rank) config() comm.Config {
	cfg := comm.Config{
		Rank: r.id, Size: r.c.Ranks, LocalRank: -1, Rendezvous: "file://" + r.dir,
		Job: fmt.Sprintf("faults/%d/%d", r.c.Seed, r.c.Number), Secret: []byte("known to this program only"),
		Timeout: r.c.limit(), JoinTimeout: 20*time.Second + spare,
	}
	switch r.c.Transport {
	case "shm":
		cfg.Transport = comm.SharedMemory
	case "tcp":
		cfg.Transport = comm.TCP
	default:
		cfg.Host = fmt.Sprintf("host-%d", 2*r.id/r.c.Ranks)
	}
	return cfg
}
