// The kills command kills ranks of trainings at random moments. The others connect again
// (comm.Reconnect) and continue from the last step in memory (fsdp.MemoryCheckpoint), as in
// examples/survive. Each training must end with the bits of a training that nothing happened to.
//
//	go -C internal/workshop run ./kills               100 trainings
//	go -C internal/workshop run ./kills -count 1000   more
//	go -C internal/workshop run ./kills -only 17      one training again
//
// Ranks are processes, 2 to 8, over TCP or shared memory. A training has up to three kills, each in
// a part of a step or in the recovery from the kill before. A rank and the rank that has the copy
// of its share are not killed together. A new process takes the place of a killed one, or two
// processes wait for that, or none: then a smaller group continues. If its number does not divide
// the virtual ranks, some of its ranks run one micro-batch more. In every second training a lower
// number of ranks trains instead, and the others wait. In some trainings the processes have no
// directory in common, as on several hosts, and are a majority after each kill. In some trainings
// with new processes, passes are held or ranks have different numbers of batches.
//
// The time without progress begins when a rank is killed. It ends when all ranks of the next group
// have the state of the last step. Some trainings run once more with a checkpoint in files, from
// which all ranks restart after a kill.
//
//	parent                                   rank
//	  | -- order: rank, directory, … ------->  |
//	  | <-- connect, wrap, load -------------- |
//	  | <-- ready: processes of the group ---- |
//	  | <-- forward, backward, sums, … ------- | for each step
//	  | <-- reconnect ------------------------ | a rank is lost
//	  | <-- ended: hash of the state --------- |
//	  | -- it is over ---------------------->  | when no rank is in a step
package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/gofsdp/gofsdp/comm"
)

func main() {
	if serves() {
		return
	}
	seed := flag.Uint64("seed", 0, "of all that is random; 0: a `seed` that is drawn and printed")
	count := flag.Int("count", 100, "number of `trainings`")
	only := flag.Int("only", -1, "run this `training` only")
	every := flag.Int("restart", 10, "each `n`-th training runs once more, and restarts from files")
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
	c := newCampaign()
	wrong := 0
	for i := first; i < last && ctx.Err() == nil; i++ {
		t := trainingOf(*seed, i)
		err := c.run(ctx, t, false)
		if err == nil && *every > 0 && i%*every == 0 {
			err = c.run(ctx, t, true)
		}
		if err != nil && ctx.Err() == nil {
			wrong++
			fmt.Printf("%v: %v\n", t, err)
		} else if *only >= 0 {
			fmt.Printf("%v: ok, without progress %v\n", t, c.survived.pauses)
		}
		if *only < 0 && i%25 == 24 {
			fmt.Printf("%d trainings, %d kills, %d wrong\n", i+1-first, c.survived.kills(), wrong)
		}
	}
	c.survived.print("survived")
	c.restarted.print("restarted from files")
	if fmt.Printf("%d trainings wrong\n", wrong); wrong > 0 {
		os.Exit(1)
	}
}

// serves reports whether this process was one of a training.
func serves() bool {
	if os.Getenv(workerVariable) == "" {
		return false
	}
	if err := work(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

// A campaign is many trainings.
type campaign struct {
	wants               map[mode]string // the hash of an undisturbed training
	survived, restarted *result
}

func newCampaign() *campaign {
	return &campaign{wants: make(map[mode]string), survived: newResult(), restarted: newResult()}
}

// run runs a training, with kills and, if there is no such training yet, without.
func (c *campaign) run(ctx context.Context, t training, restart bool) (err error) {
	key := t.mode
	key.Shared, key.Apart = false, false // bits do not depend on them
	if c.wants[key] == "" {
		quiet := job{training: t, result: newResult()}
		quiet.kills = nil
		if c.wants[key], err = quiet.run(ctx); err != nil {
			return fmt.Errorf("without kills: %w", err)
		}
	}
	j := job{training: t, restart: restart, result: newResult()}
	got, err := j.run(ctx)
	total := c.survived
	if restart {
		total = c.restarted
	}
	total.add(&t, j.result)
	if err == nil && got != c.wants[key] {
		err = fmt.Errorf("the state is %s, want %s", got, c.wants[key])
	}
	return err
}

// A result has the numbers of one training or of many.
type result struct {
	moments map[string]int // kills, by the part in which the process was
	sorts   map[string]int // kills, by sorts of trainings
	pauses  []time.Duration
	longest time.Duration // of pauses
	slowest int           // the training with it
}

func newResult() *result { return &result{moments: make(map[string]int), sorts: make(map[string]int)} }

// add adds the result of a training.
func (r *result) add(t *training, o *result) {
	for part, n := range o.moments {
		r.moments[part] += n
	}
	for _, sort := range t.sorts() {
		if n := o.kills(); n > 0 {
			r.sorts[sort] += n
		}
	}
	for _, pause := range o.pauses {
		r.pauses = append(r.pauses, pause)
		if pause > r.longest {
			r.longest, r.slowest = pause, t.number
		}
	}
}

func (r *result) kills() (n int) {
	for _, k := range r.moments {
		n += k
	}
	return n
}

// print prints the numbers.
func (r *result) print(what string) {
	fmt.Printf("%s: %d kills\n", what, r.kills())
	for _, counts := range []map[string]int{r.moments, r.sorts} {
		for _, name := range slices.Sorted(maps.Keys(counts)) {
			fmt.Printf("  %5d  %s\n", counts[name], name)
		}
	}
	if n := len(r.pauses); n > 0 {
		slices.Sort(r.pauses)
		fmt.Printf("  time without progress: %d times, median %v, largest %v in training %d\n",
			n, r.pauses[n/2].Round(time.Millisecond), r.longest.Round(time.Millisecond), r.slowest)
	}
}
