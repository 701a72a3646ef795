package crashfs

import (
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"time"
)

// sector is the number of bytes that a disk writes whole or not at all. It is small, so that the
// small files of tests have several.
const sector = 64

// The results of Crash for some seeds; all others give a mixture.
const (
	Nothing    uint64 = 0 // only synced changes
	Everything uint64 = 1 // all changes
)

// odds are the odds that a change survives. Any 16 seeds in a row, of those that are mixtures,
// cover each pair for names and data.
var odds = [4]float64{0, 0.5, 0.9, 1}

// Crash returns the file system after a power failure now. f is not changed: a power failure has
// many outcomes.
func (f *FS) Crash(seed uint64) *FS {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := &disaster{rng: rand.New(rand.NewPCG(seed, uint64(len(f.ops)))), copies: make(map[*node]*node)}
	switch seed {
	case Nothing:
	case Everything:
		d.names, d.data = 1, 1
	default:
		d.names, d.data = odds[seed%4], odds[seed/4%4]
	}
	return &FS{root: d.survivor(f.root), locks: make(map[*node]string)}
}

// A disaster decides which writes survive.
type disaster struct {
	rng         *rand.Rand
	names, data float64 // the odds of a change of names, and of data, that was not synced
	copies      map[*node]*node
}

func (d *disaster) keeps(odds float64) bool { return d.rng.Float64() < odds }

// survivor returns the remains of n, all of it on disk.
func (d *disaster) survivor(n *node) *node {
	if c, ok := d.copies[n]; ok { // a node may have a new name and an old one
		return c
	}
	c := new(node)
	d.copies[n] = c
	if n.names == nil {
		c.disk = d.contents(n)
		c.data = slices.Clone(c.disk)
		return c
	}
	left := maps.Clone(n.synced)
	for _, change := range n.changes {
		if d.keeps(d.names) {
			change.to(left)
		}
	}
	c.names = make(map[string]*node)
	for _, name := range slices.Sorted(maps.Keys(left)) { // in order: the dice are the same every time
		c.names[name] = d.survivor(left[name])
	}
	c.synced = maps.Clone(c.names)
	return c
}

// contents returns the remains of a file. Its length and its data reach the disk independently.
func (d *disaster) contents(n *node) []byte {
	data := slices.Clone(n.data)
	if fresh := len(data) - len(n.disk); fresh > 0 && !d.keeps(d.data) {
		data = data[:len(n.disk)+int(d.data*float64(d.rng.IntN(fresh+1)))]
	}
	for at := len(n.disk); at < len(data); at += sector {
		if d.keeps(d.data) {
			continue
		}
		garbage := d.keeps(0.5)
		for i := at; i < min(at+sector, len(data)); i++ {
			data[i] = 0
			if garbage {
				data[i] = byte(d.rng.Uint32())
			}
		}
	}
	return data
}

// info describes a file or directory.
type info struct {
	name string
	dir  bool
	size int64
}

func (i info) Name() string     { return i.name }
func (i info) Size() int64      { return i.size }
func (i info) IsDir() bool      { return i.dir }
func (info) ModTime() time.Time { return time.Time{} }
func (info) Sys() any           { return nil }

func (i info) Mode() fs.FileMode {
	if i.dir {
		return fs.ModeDir | 0o755
	}
	return 0o644
}
