package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// A training is a run with its kills.
type training struct {
	number int
	spares int  // processes that wait from the beginning
	uneven bool // ranks that do not divide the virtual ranks train, else the next lower number does
	mode
	kills []kill
}

// A mode is how the ranks of a training run. Trainings of one mode have the same bits.
type mode struct {
	Ranks   int
	Virtual int  // virtual ranks, or 0
	Fresh   bool // a new process takes a killed one's place
	Shared  bool // memory
	Apart   bool // the ranks are on hosts without a directory in common: a majority continues
	Passes  string
}

// These are the passes of a step. The others make one pass for each virtual rank.
const (
	passesHeld   = "held"
	passesJoined = "joined"
)

// A kill ends a process.
type kill struct {
	victim int // among the processes that may be killed
	part   string
	step   int // of the part, or a later one
	after  time.Duration
}

// These are the parts of a training, in order.
const (
	partConnect   = "connect" // also of a process that waits to join
	partReconnect = "reconnect"
	partWrap      = "wrap"
	partLoad      = "load"
	partReady     = "ready" // also of a rank that waits
	partForward   = "forward"
	partBackward  = "backward"
	partSums      = "sums"
	partUpdate    = "update"
	partSave      = "save"
	partEnd       = "end"
	partEnded     = "ended"
	partGone      = "gone"
)

var (
	stepParts     = []string{partForward, partBackward, partSums, partUpdate, partSave}
	recoveryParts = []string{partReconnect, partWrap, partLoad}
)

// recovery reports whether the kill is in the recovery from the kill before.
func (k *kill) recovery() bool { return slices.Contains(recoveryParts, k.part) }

// These define the trainings.
const (
	steps     = 10
	patience  = time.Minute
	mostRanks = 8
	mostKills = 3
)

// trainingOf returns a training by its number.
func trainingOf(seed uint64, number int) training {
	rng := rand.New(rand.NewPCG(seed, uint64(number)))
	t := training{number: number}
	t.Ranks, t.Shared = 2+rng.IntN(mostRanks-1), rng.IntN(2) == 0
	t.Virtual = []int{t.Ranks, 8, 12}[rng.IntN(3)]
	switch rng.IntN(6) {
	case 0:
		t.Fresh = true
	case 1:
		t.Fresh, t.Virtual, t.Passes = true, 0, []string{passesHeld, passesJoined}[rng.IntN(2)]
	case 2, 3:
		t.spares = 2
	}
	t.Apart = t.Ranks > 2 && rng.IntN(3) == 0
	for i := range 1 + rng.IntN(mostKills) {
		k := kill{victim: rng.IntN(1e6), part: stepParts[rng.IntN(len(stepParts))], step: 2*i + rng.IntN(3)}
		most := 4 * time.Millisecond
		if k.part == partSums || k.part == partUpdate { // they are short
			most = 200 * time.Microsecond
		}
		if i > 0 && rng.IntN(2) == 0 {
			k.part, most = recoveryParts[rng.IntN(len(recoveryParts))], 20*time.Millisecond
		}
		k.after = time.Duration(rng.Int64N(int64(most)))
		t.kills = append(t.kills, k)
	}
	t.uneven = rng.IntN(2) == 0
	return t
}

func (t training) String() string {
	return fmt.Sprintf("training %d: %d ranks, %d virtual (uneven %t), shared memory %t, apart %t, spares %d, fresh %t, passes %q, kills %v",
		t.number, t.Ranks, t.Virtual, t.uneven, t.Shared, t.Apart, t.spares, t.Fresh, t.Passes, t.kills)
}

// sorts names the sorts of a training.
func (t *training) sorts() (list []string) {
	list = append(list, map[bool]string{false: "over TCP", true: "over shared memory"}[t.Shared])
	switch {
	case t.Fresh:
		list = append(list, "replaced by new processes")
	case t.spares > 0:
		list = append(list, "replaced by processes that wait")
	default:
		list = append(list, "not replaced")
	}
	if t.Apart {
		list = append(list, "without a directory in common")
	}
	if t.Passes != "" {
		list = append(list, "with passes "+t.Passes)
	}
	return list
}
