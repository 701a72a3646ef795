//go:build netns

package netns

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/commtest"
)

// order is what a rank is started with, in its environment.
type order struct {
	Config comm.Config
	Hosts  int
	// Program is trials, digest or forever, or survive for a rank of fsdprun.
	Program string
}

// said is what a rank says on its standard output, line by line.
type said struct {
	What   string // running, done
	At     time.Time
	Err    string `json:",omitempty"`
	Blamed bool   `json:",omitempty"` // Err is a RankError
	Digest string `json:",omitempty"` // of all results
}

// serve is the life of a rank's process.
func serve(o order, out io.Writer) error {
	say := json.NewEncoder(out)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if o.Program == "survive" {
		return survive(ctx, out)
	}
	g, err := comm.Connect(ctx, o.Config)
	if err != nil {
		return err
	}
	running := func() error { return say.Encode(said{What: "running", At: time.Now()}) }
	end := said{What: "done"}
	switch o.Program {
	case "trials":
		err = errors.Join(onHosts(ctx, g, o.Hosts), trials(ctx, g))
	case "digest":
		end.Digest, err = digest(ctx, g)
	case "forever":
		err = forever(ctx, g, running)
	}
	end.At = time.Now()
	var blame *comm.RankError
	if err != nil {
		end.Err, end.Blamed = err.Error(), errors.As(err, &blame)
	}
	if err := say.Encode(end); err != nil {
		return err
	}
	begin := time.Now()
	if err := g.Close(); err != nil {
		return err
	}
	if took := time.Since(begin); took > 2*time.Second {
		return fmt.Errorf("close took %v", took)
	}
	return nil
}

// onHosts requires that the ranks of a host share memory, and no others.
func onHosts(ctx context.Context, g comm.Group, hosts int) error {
	per := g.Size() / hosts
	neighbours, err := g.Split(ctx, g.Rank()/per, 0)
	if err != nil {
		return err
	}
	if _, ok := neighbours.(comm.Allocator); !ok {
		return fmt.Errorf("rank %d: the ranks of a host share no memory: %T", g.Rank(), neighbours)
	}
	rail, err := g.Split(ctx, g.Rank()%per, 0)
	if err != nil {
		return err
	}
	if _, ok := rail.(comm.Allocator); ok {
		return fmt.Errorf("rank %d: ranks of several hosts share memory", g.Rank())
	}
	return errors.Join(trials(ctx, neighbours), trials(ctx, rail))
}

// trials runs random collectives, several in flight, and checks every bit.
func trials(ctx context.Context, g comm.Group) error {
	rng := rand.New(rand.NewPCG(1, uint64(g.Size())))
	for range 30 {
		var works [5]comm.Work
		var checks [5]func() error
		for i := range works {
			works[i], checks[i] = commtest.RandomTrial(rng, g.Size(), 200_000).Issue(g)
		}
		for i, w := range works {
			if err := w.Wait(ctx); err != nil {
				return err
			}
			if err := checks[i](); err != nil {
				return err
			}
		}
	}
	return nil
}

// digest returns a hash of the results of sums that depend on the order of summation.
func digest(ctx context.Context, g comm.Group) (string, error) {
	rng := rand.New(rand.NewPCG(2, uint64(g.Rank())))
	hash := sha256.New()
	for _, shard := range []int{1, 1000, 16 << 10, 300_001} {
		full := make([]float32, shard*g.Size())
		for i := range full {
			full[i] = float32(rng.NormFloat64() * float64(int64(1)<<rng.IntN(40)))
		}
		part, all := make([]float32, shard), make([]float32, len(full))
		for _, w := range []comm.Work{
			g.ReduceScatter(comm.Of(part), comm.Of(full), comm.Avg),
			g.AllGather(comm.Of(all), comm.Of(part)),
			g.AllReduce(comm.Of(full), comm.Sum),
			g.Broadcast(comm.Of(all), g.Size()-1),
		} {
			if err := w.Wait(ctx); err != nil {
				return "", err
			}
		}
		hash.Write(comm.Of(full).Bytes())
		hash.Write(comm.Of(all).Bytes())
	}
	return fmt.Sprintf("%x", hash.Sum(nil)), g.Barrier(ctx)
}

// forever sums until that fails.
func forever(ctx context.Context, g comm.Group, running func() error) error {
	x := make([]float32, 1<<18)
	for i := 0; ; i++ {
		if i == 10 {
			if err := running(); err != nil {
				return err
			}
		}
		if err := g.AllReduce(comm.Of(x).Named(fmt.Sprint("sum ", i)), comm.Sum).Wait(ctx); err != nil {
			return err
		}
	}
}

// survive sums until this process is interrupted, and continues when ranks are lost.
func survive(ctx context.Context, out io.Writer) error {
	interrupt, stop := comm.Interrupt(ctx)
	defer stop()
	g, err := comm.FromEnv(ctx)
	for err == nil {
		_, err = fmt.Fprintf(out, "rank %d of %d\n", g.Rank(), g.Size())
		for x := make([]float32, 1<<16); err == nil && interrupt.Err() == nil; {
			err = g.AllReduce(comm.Of(x), comm.Sum).Wait(ctx)
		}
		if err == nil {
			return g.Close()
		}
		former := g
		if g, err = comm.Reconnect(ctx, former); err == nil {
			_ = former.Close() // it has failed
		}
	}
	return err
}

// orderFromEnv returns the order that this process was started with, if it is a rank.
func orderFromEnv() (o order, ok bool, err error) {
	text, ok := os.LookupEnv(orderVariable)
	if ok {
		err = json.Unmarshal([]byte(text), &o)
	}
	return o, ok, err
}

const orderVariable = "GOFSDP_NETNS_ORDER"
