package shard_test

import (
	"fmt"

	"github.com/gofsdp/gofsdp/shard"
)

// A training job saved by two ranks continues on three: each new rank fetches the intervals it now owns.
func Example() {
	params := []shard.Param{
		{Name: "fc.weight", Shape: []int{3, 3}},
		{Name: "fc.bias", Shape: []int{2}},
	}
	two, err := shard.New(params, 2, 4)
	if err != nil {
		panic(err)
	}
	for rank := range two.World() {
		for _, s := range two.Segments(rank) {
			fmt.Printf("rank %d of 2 holds %v at %d\n", rank, s.Interval, s.At)
		}
	}

	three, err := shard.New(params, 3, 4)
	if err != nil {
		panic(err)
	}
	moves, err := shard.Remap([]*shard.Layout{two}, []*shard.Layout{three})
	if err != nil {
		panic(err)
	}
	for _, m := range moves {
		fmt.Printf("rank %d of 3 takes %v from rank %d\n", m.To.Rank, m.Interval, m.From.Rank)
	}
	// Output:
	// rank 0 of 2 holds fc.weight[0:8] at 0
	// rank 1 of 2 holds fc.weight[8:9] at 0
	// rank 1 of 2 holds fc.bias[0:2] at 4
	// rank 0 of 3 takes fc.weight[0:8] from rank 0
	// rank 1 of 3 takes fc.weight[8:9] from rank 1
	// rank 1 of 3 takes fc.bias[0:2] from rank 1
}
