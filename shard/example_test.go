package shard_test

import (
	"fmt"

	"github.com/gofsdp/gofsdp/shard"
)

// Two parameters over two ranks, with shards at multiples of four elements.
func Example() {
	params := []shard.Param{
		{Name: "fc.weight", Shape: []int{3, 3}},
		{Name: "fc.bias", Shape: []int{2}},
	}
	l, err := shard.New(params, 2, 4)
	if err != nil {
		panic(err)
	}
	for rank := range l.World() {
		for _, s := range l.Segments(rank) {
			fmt.Printf("rank %d of 2 holds %v at %d\n", rank, s.Interval, s.At)
		}
	}
	// Output:
	// rank 0 of 2 holds fc.weight[0:8] at 0
	// rank 1 of 2 holds fc.weight[8:9] at 0
	// rank 1 of 2 holds fc.bias[0:2] at 4
}

// Two parameters over two ranks, cut between rows only.
func ExampleRows() {
	params := []shard.Param{
		{Name: "fc.weight", Shape: []int{3, 4}},
		{Name: "fc.bias", Shape: []int{2}},
	}
	l, err := shard.Cut{Block: shard.Rows(1)}.New(params, 2, 4)
	if err != nil {
		panic(err)
	}
	for rank := range l.World() {
		for _, s := range l.Segments(rank) {
			fmt.Printf("rank %d of 2 holds %v at %d\n", rank, s.Interval, s.At)
		}
	}
	// Output:
	// rank 0 of 2 holds fc.weight[0:8] at 0
	// rank 1 of 2 holds fc.weight[8:12] at 0
	// rank 1 of 2 holds fc.bias[0:2] at 4
}
