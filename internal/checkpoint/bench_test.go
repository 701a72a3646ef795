package checkpoint

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/internal/safetensors"
	"github.com/stretchr/testify/require"
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

// BenchmarkManifest merges, encodes and decodes what 10,000 ranks have saved of a GPT of 175e9
// parameters, with the state of Adam. It reports the size of the file, and the memory that the list
// takes while it is in use.
func BenchmarkManifest(b *testing.B) {
	const ranks = 10_000
	defer func(n int64) { maxManifest = n }(maxManifest)
	maxManifest = math.MaxInt64
	shards := shardsOfGPT(ranks)
	m := &Manifest{World: ranks}
	var text []byte
	var err error
	b.Run("merge", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if m.Files, m.Tensors, err = Merge(shards); err != nil {
				b.Fatal(err)
			}
		}
	})
	shards = nil
	pieces := 0
	for i := range m.Tensors {
		for range m.Tensors[i].All() {
			pieces++
		}
	}
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if text, err = m.Encode(); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(pieces), "pieces")
		b.ReportMetric(float64(len(text)), "bytes")
		b.ReportMetric(float64(len(text))/float64(pieces), "bytes/piece")
	})
	m = nil
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		before := heap()
		for b.Loop() {
			m = nil
			if m, err = Decode(text); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(heap()-before), "live-bytes")
	})
	b.Run("search", func(b *testing.B) { // for an element of the tensor with the most pieces
		t, _ := m.Lookup(Key{"wte.weight", "exp_avg", Shared})
		n := 0
		for b.Loop() {
			for range t.within(t.Len()-1, 1) {
				n++
			}
		}
		require.Equal(b, b.N, n)
	})
}

// heap returns the bytes of memory in use.
func heap() int64 {
	var s runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc)
}

// shardsOfGPT returns what ranks have written of a GPT of 96 blocks, each a unit that is cut over
// all of them.
func shardsOfGPT(ranks int) []*Shard {
	const vocabulary, context, d = 50257, 2048, 12288
	type param struct {
		name  string
		shape []int
	}
	units := [][]param{{{"ln.bias", []int{d}}, {"ln.weight", []int{d}}, {"wpe.weight", []int{context, d}}, {"wte.weight", []int{vocabulary, d}}}}
	for i := range 96 {
		var unit []param
		for _, p := range []param{
			{"attn.out.bias", []int{d}}, {"attn.out.weight", []int{d, d}}, {"attn.qkv.bias", []int{3 * d}}, {"attn.qkv.weight", []int{3 * d, d}},
			{"fc.bias", []int{4 * d}}, {"fc.weight", []int{4 * d, d}}, {"ln1.bias", []int{d}}, {"ln1.weight", []int{d}},
			{"ln2.bias", []int{d}}, {"ln2.weight", []int{d}}, {"proj.bias", []int{d}}, {"proj.weight", []int{d, 4 * d}},
		} {
			unit = append(unit, param{fmt.Sprintf("blocks.%02d.%s", i, p.name), p.shape})
		}
		units = append(units, unit)
	}
	shards := make([]*Shard, ranks)
	for rank := range shards {
		var list []Tensor
		var pieces []Piece
		names := 0
		for _, unit := range units {
			n, at := 0, 0
			for _, p := range unit {
				n += (&Tensor{Shape: p.shape}).Len()
			}
			per := (n + ranks - 1) / ranks
			for _, p := range unit {
				size := (&Tensor{Shape: p.shape}).Len()
				from, to := max(at, rank*per), min(at+size, (rank+1)*per)
				for _, entry := range []string{"", "exp_avg", "exp_avg_sq"} {
					if from >= to {
						continue
					}
					t := Tensor{Key: Key{p.name, entry, Shared}, DType: safetensors.F32, Shape: p.shape}
					sums := make(Sums, sumBytes*chunks(to-from, 4))
					for i := range sums {
						sums[i] = byte(rank*31 + len(list)*17 + i)
					}
					list, pieces = append(list, t), append(pieces, Piece{Offset: from - at, Len: to - from, Sums: sums})
					names += len(pieceName(t.Key, from-at, to-at)) + len(fmt.Sprint(to-from)) + 64 // in the header
				}
				at += size
			}
		}
		end := int64(names+63) / 64 * 64
		for _, entry := range []bool{false, true} { // values come first
			for i := range pieces {
				if (list[i].Entry != "") == entry {
					pieces[i].At = end
					end += 4 * int64(pieces[i].Len)
				}
			}
		}
		for i := range list {
			list[i].Pieces = pack(pieces[i : i+1])
		}
		slices.SortFunc(list, func(t, u Tensor) int { return t.Compare(u.Key) })
		shards[rank] = &Shard{File: File{Name: fileOf(rank, ranks), Size: end}, Tensors: list}
	}
	return shards
}
