package checkpoint_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"log"
	"math"
	"os"
	"path/filepath"

	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/safetensors"
)

// Two ranks save a matrix of which each has half. Who loads it later reads any part of it, and need
// not know of the ranks.
func Example() {
	root, err := os.MkdirTemp("", "example")
	check(err)
	defer os.RemoveAll(root)
	ctx, fsys := context.Background(), checkpoint.OS()
	w := checkpoint.Key{Param: "w", Owner: checkpoint.Shared}

	store, err := checkpoint.Open(fsys, filepath.Join(root, "ckpt"))
	check(err)
	defer store.Close()
	check(store.Lock(ctx))
	draft, err := store.Begin(1200)
	check(err)

	shards := make([]*checkpoint.Shard, 2)
	for rank := range shards { // each in its own process
		part := checkpoint.Part{Key: w, DType: safetensors.F32, Shape: []int{6, 4}, Offset: 12 * rank}
		for i := range 12 {
			part.Data = binary.LittleEndian.AppendUint32(part.Data, math.Float32bits(float32(12*rank+i)))
		}
		name := checkpoint.FileName("rank", rank, len(shards))
		shards[rank], err = checkpoint.WriteShard(ctx, fsys, draft.Dir(), name, []checkpoint.Part{part}, nil)
		check(err)
	}

	m := checkpoint.Manifest{Step: 1200, World: 2}
	m.Files, m.Tensors, err = checkpoint.Merge(shards)
	check(err)
	path, err := store.Commit(draft, &m)
	check(err)
	fmt.Println(filepath.Base(path))

	r, err := checkpoint.OpenReader(ctx, fsys, path)
	check(err)
	defer r.Close()
	row := make([]byte, 4*8)
	for _, offset := range []int{0, 10, 20} {
		check(r.Read(ctx, w, offset, row, safetensors.F64))
		for ; len(row) > 0; row = row[8:] {
			fmt.Print(math.Float64frombits(binary.LittleEndian.Uint64(row)), " ")
		}
		row = make([]byte, 4*8)
	}
	fmt.Println()
	// Output:
	// 000001-step-1200
	// 0 1 2 3 10 11 12 13 20 21 22 23
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
