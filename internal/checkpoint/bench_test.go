package checkpoint

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/internal/safetensors"
)

// BenchmarkFiles writes and reads a shard of 256 MiB, each time next to a plain file of the same
// bytes that is synced too, and reports how many times as long it takes. Reads are of what the
// system still has in memory.
func BenchmarkFiles(b *testing.B) {
	const size = 256 << 20
	dir := b.TempDir()
	w := &whole{Key: Key{"w", "", Shared}, dtype: safetensors.F32, shape: []int{size / 4}, data: make([]byte, size)}
	r := rand.New(rand.NewPCG(1, 2))
	for i := 0; i < size; i += 64 {
		w.data[i] = byte(r.Uint32())
	}
	got, plain := make([]byte, size), filepath.Join(dir, "plain")
	var write, read, plainWrite, plainRead time.Duration
	timed := func(total *time.Duration, f func() error) {
		start := time.Now()
		if err := f(); err != nil {
			b.Fatal(err)
		}
		*total += time.Since(start)
	}
	n := 0
	for b.Loop() {
		c := filepath.Join(dir, fmt.Sprint(n))
		must(0, os.Mkdir(c, 0o755))
		writes := []func(){
			func() { timed(&plainWrite, func() error { return writePlain(plain, w.data) }) },
			func() {
				timed(&write, func() error { _, err := save(OS(), c, [][]Part{{w.part(0, w.len())}}); return err })
			},
		}
		writes[n%2]() // a disk may be slower after a write
		writes[1-n%2]()
		must(0, readPlain(plain, got)) // the first of all reads also makes the memory
		timed(&plainRead, func() error { return readPlain(plain, got) })
		timed(&read, func() error {
			r, err := OpenReader(context.Background(), OS(), c)
			if err != nil {
				return err
			}
			defer r.Close()
			return r.Read(context.Background(), w.Key, 0, got, w.dtype)
		})
		must(0, os.RemoveAll(c))
		must(0, os.Remove(plain))
		n++
	}
	rate := func(d time.Duration) float64 { return float64(n) * size / 1e6 / d.Seconds() }
	b.ReportMetric(rate(write), "write-MB/s")
	b.ReportMetric(rate(read), "read-MB/s")
	b.ReportMetric(write.Seconds()/plainWrite.Seconds(), "write/plain")
	b.ReportMetric(read.Seconds()/plainRead.Seconds(), "read/plain")
}

func writePlain(path string, data []byte) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		return err
	}
	return f.Sync()
}

func readPlain(path string, data []byte) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.ReadAt(data, 0)
	return err
}

// BenchmarkManifest encodes and decodes a manifest of 100,000 pieces.
func BenchmarkManifest(b *testing.B) {
	const ranks, tensors = 64, 100_000 / 64
	m := &Manifest{World: ranks}
	for rank := range ranks {
		m.Files = append(m.Files, File{Name: fileOf(rank, ranks), Size: tensors << 12})
	}
	for i := range tensors {
		t := Tensor{Key: Key{fmt.Sprintf("blocks.%04d.fc.weight", i), "exp_avg", Shared}, DType: safetensors.F32, Shape: []int{ranks, 1024}}
		for rank := range ranks {
			t.Pieces = append(t.Pieces, Piece{rank << 10, 1 << 10, rank, int64(i) << 12, Sums{uint32(i * rank)}})
		}
		m.Tensors = append(m.Tensors, t)
	}
	text, shards := must(m.Encode()), perRank(m)
	run := func(name string, f func() error) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if err := f(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	run("encode", func() error { _, err := m.Encode(); return err })
	run("decode", func() error { _, err := Decode(text); return err })
	run("merge", func() error { _, _, err := Merge(shards); return err })
}

// perRank returns the shards of which m was made.
func perRank(m *Manifest) []*Shard {
	shards := make([]*Shard, len(m.Files))
	for rank, f := range m.Files {
		shards[rank] = &Shard{File: f}
	}
	for _, t := range m.Tensors {
		for _, p := range t.Pieces {
			s := shards[p.File]
			own := t
			own.Pieces = []Piece{p}
			s.Tensors = append(s.Tensors, own)
		}
	}
	return shards
}
