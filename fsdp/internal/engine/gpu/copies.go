package gpu

import "math"

// A group that is layout.Group.Copied has a copy of its parameter shard in bfloat16, which calls
// read. No pass gathers or rounds such parameters:
//
//	access to the shard                      what happens to the copy
//	an update of parameters                  the kernel writes it, too
//	any other that may write                 it is stale
//	the beginning of a pass                  if it is stale, the whole shard is rounded
//
// An update leaves a stale copy stale: it may write a part of it. All accesses go through vectors,
// except the average over ranks. The lock of vectors guards all of this.

// copySize is the size of an element of a copy in bytes.
const copySize = 2

// outdate makes the copy of a block stale.
func (d *Device) outdate(b *block) {
	d.vectors.Lock()
	defer d.vectors.Unlock()
	b.stale = true
}

// refresh rounds the shards whose copies are stale, in work.
func (s *shards) refresh() error {
	s.d.vectors.Lock()
	defer s.d.vectors.Unlock()
	for _, g := range s.groups {
		if g.copied == nil || !g.value.stale {
			continue
		}
		g.value.stale = false
		if err := s.d.flush(); err != nil {
			return err
		}
		n := g.Flat.ShardLen()
		if n == 0 {
			continue
		}
		err := g.launchIn(s.d.work, g.kernels.narrowParams, (n+alone-1)/alone,
			uint64(g.copied.Addr()), uint64(g.value.Addr()), 0, uint64(n), uint64(math.Float32bits(1)))
		if err != nil {
			return err
		}
	}
	return s.d.err()
}
