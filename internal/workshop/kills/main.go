// The kills command kills ranks of trainings at random moments. Each training continues from its
// checkpoint in memory (fsdp.MemoryCheckpoint) and must end with the bits of a training that
// nothing happened to.
//
//	go -C internal/workshop run ./kills               100 trainings
//	go -C internal/workshop run ./kills -count 1000   more
//	go -C internal/workshop run ./kills -only 17      one training again
//	go -C internal/workshop run ./kills -restart      all ranks restart, and load a checkpoint from files
//
// Ranks are processes, 2 to 8, over TCP or shared memory. One of them is killed in a step, in the
// copy of a step or in a recovery. In every third training of four ranks and more a second one is
// killed up to 100 ms later, which is no neighbour of the first. A new process takes the place of a
// killed one, or a process that has waited, or none: then a smaller group continues.
//
// The time without progress begins when a rank is killed. It ends when all ranks of the next group
// have the state of the last step.
//
//	parent                                  worker
//	  | -- order: group, rank, directory -->  |
//	  |                                       | connects, wraps, loads
//	  | <-- ready --------------------------- |
//	  | <-- step ---------------------------- | for each step
//	  | <-- lost ---------------------------- | a rank is lost: waits for the next order
//	  | <-- end: hash of the state ---------- |
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/gofsdp/gofsdp/comm"
)

func main() {
	if os.Getenv(workerVariable) != "" {
		work(os.Stdin, os.Stdout)
		return
	}
	seed := flag.Uint64("seed", 0, "of all that is random; 0: a `seed` that is drawn and printed")
	count := flag.Int("count", 100, "number of `trainings`")
	only := flag.Int("only", -1, "run this `training` only")
	restart := flag.Bool("restart", false, "restart all ranks from a checkpoint in files")
	flag.Parse()
	ctx, stop := comm.Interrupt(context.Background())
	defer stop()
	if *seed == 0 {
		*seed = rand.Uint64N(1e6) + 1
	}
	fmt.Printf("seed %d\n", *seed)
	first, last := 0, *count
	if *only >= 0 {
		first, last = *only, *only+1
	}
	var pauses []time.Duration
	wrong, killed := 0, 0
	for i := first; i < last && ctx.Err() == nil; i++ {
		t := trainingOf(*seed, i)
		t.restart = *restart
		err := t.run(ctx)
		pauses, killed = append(pauses, t.pauses...), killed+t.killed
		if *only < 0 && i%25 == 24 {
			fmt.Printf("%d trainings, %d kills, %d wrong\n", i+1-first, killed, wrong)
		}
		if err != nil && ctx.Err() == nil {
			wrong++
			fmt.Printf("%v: %v\n", t, err)
		} else if *only >= 0 {
			fmt.Printf("%v: ok, without progress %v\n", t, t.pauses)
		}
	}
	slices.Sort(pauses)
	if n := len(pauses); n > 0 {
		fmt.Printf("%d kills, %d recoveries, time without progress: median %v, largest %v\n", killed, n, pauses[n/2], pauses[n-1])
	}
	if fmt.Printf("%d trainings wrong\n", wrong); wrong > 0 {
		os.Exit(1)
	}
}

// A training is a run with its kills.
type training struct {
	number  int
	ranks   int
	virtual int
	shared  bool // memory
	spares  int  // processes that wait
	fresh   bool // a new process takes a killed one's place
	restart bool
	kills   []kill

	job
}

// A kill ends a rank.
type kill struct {
	rank  int // of the first group
	step  int // that the rank has made, or -1: after the kill before
	after time.Duration
}

// These define the trainings.
const (
	steps     = 10
	stepTime  = 4 * time.Millisecond // about, on an idle machine
	patience  = time.Minute
	mostRanks = 8
)

// trainingOf returns a training by its number.
func trainingOf(seed uint64, number int) *training {
	rng := rand.New(rand.NewPCG(seed, uint64(number)))
	t := &training{number: number, ranks: 2 + rng.IntN(mostRanks-1), shared: rng.IntN(2) == 0}
	switch rng.IntN(3) {
	case 0:
		t.fresh = true
	case 1:
		t.spares = 2
	}
	first := kill{rng.IntN(t.ranks), rng.IntN(steps - 2), time.Duration(rng.Int64N(int64(2 * stepTime)))}
	t.kills = []kill{first}
	if t.ranks >= 4 && rng.IntN(3) == 0 {
		other := (first.rank + 2 + rng.IntN(t.ranks-3)) % t.ranks
		t.kills = append(t.kills, kill{other, -1, time.Duration(rng.Int64N(int64(100 * time.Millisecond)))})
	}
	t.virtual = t.ranks
	if !t.fresh && t.spares == 0 { // the group gets smaller
		t.ranks = 2 + (t.ranks-2)%3
		t.virtual = map[int]int{2: 2, 3: 6, 4: 12}[t.ranks]
		t.kills = t.kills[:1]
		t.kills[0].rank %= t.ranks
	}
	return t
}

func (t *training) String() string {
	return fmt.Sprintf("training %d: %d of %d virtual ranks, shared memory %t, spares %d, fresh %t, kills %v",
		t.number, t.ranks, t.virtual, t.shared, t.spares, t.fresh, t.kills)
}

// run runs the training and a second one without kills, and compares them.
func (t *training) run(ctx context.Context) error {
	kills, restart := t.kills, t.restart
	t.kills, t.restart = nil, false
	want, err := t.train(ctx)
	t.kills, t.restart = kills, restart
	if err != nil {
		return fmt.Errorf("without kills: %w", err)
	}
	got, err := t.train(ctx)
	if err == nil && got != want {
		err = fmt.Errorf("the state is %s, want %s", got, want)
	}
	return err
}
