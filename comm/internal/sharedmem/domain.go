// Package sharedmem is the transport between processes of one host. [New] maps the memory that they
// share; the groups of a [Domain] move data and sum in it.
package sharedmem

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"

	"github.com/gofsdp/gofsdp/comm/internal/session"
	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/internal/backoff"
	"github.com/gofsdp/gofsdp/internal/shm"
)

// Domain is the memory that the ranks of one host share: a segment of each,
// mapped by all. A process has one; all its groups use it.
type Domain struct {
	own      *shm.Segment
	segments map[int]*shm.Segment // by world rank, own among them
	waiting  backoff.Policy

	mu        sync.Mutex
	lingering []*shared // closed here, with memory that others may still read
}

const segmentTag = 1 // of the file in which a rank passes its segment

// MaxDomain bounds the addresses of all segments: an eighth of the least a process has. Tests lower
// it, because an emulator pays memory for each page of addresses.
var MaxDomain = min(16<<40, math.MaxInt/8)

// New creates this process's segment and exchanges it with the other ranks of the host, all of
// which call New. The error is a [session.NoMemory] if the ranks must do without.
func New(ctx context.Context, s *session.Session) (*Domain, error) {
	var ranks, peers []int
	for r := range s.Config.Size {
		if r == s.Config.Rank || s.Mesh.SameHost(r) {
			ranks = append(ranks, r)
		}
		if r != s.Config.Rank && s.Mesh.SameHost(r) {
			peers = append(peers, r)
		}
	}
	own, err := createSegment(len(ranks))
	d := &Domain{own: own, segments: map[int]*shm.Segment{s.Config.Rank: own}}
	d.waiting = waiting(len(ranks) > runtime.NumCPU())
	if err = s.Agree(ctx, session.StepCreate, ranks, err); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	unmapped, err := d.exchange(ctx, s.Mesh, peers)
	if err == nil {
		err = s.Agree(ctx, session.StepMap, ranks, unmapped)
	}
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// createSegment makes this process's segment. It can grow to the memory of the machine, because the
// demand of a program is unknown, and costs no more than addresses: one process has the addresses
// of all segments. If addresses are few, half stay free for everything else.
func createSegment(ranks int) (*shm.Segment, error) {
	limit := min(shm.Installed(), MaxDomain/ranks)
	if spare := shm.Spare(); limit > spare/(2*ranks) {
		return nil, fmt.Errorf("ulimit -v leaves this process %d MiB of address space, but shared memory of %d ranks needs %d MiB: "+
			"raise ulimit -v, or set FSDP_TRANSPORT=tcp", spare>>20, ranks, 2*ranks*(limit>>20))
	}
	return shm.Create(limit)
}

// exchange passes this process's segment to the peers and maps theirs. unmapped is the reason if it
// could not map segments that exist.
func (d *Domain) exchange(ctx context.Context, net session.Network, peers []int) (unmapped, err error) {
	for _, r := range peers {
		if err := net.SendFile(r, segmentTag, d.own.File()); err != nil {
			return nil, fmt.Errorf("passing shared memory to rank %d: %w", r, err)
		}
	}
	for _, r := range peers {
		file, err := net.File(ctx, r, segmentTag)
		if err != nil {
			return nil, fmt.Errorf("shared memory of rank %d: %w", r, err)
		}
		d.segments[r], err = shm.Open(file)
		if err = errors.Join(err, file.Close()); err != nil && unmapped == nil {
			unmapped = fmt.Errorf("mapping shared memory of rank %d: %w", r, err)
		}
	}
	return unmapped, nil
}

// Group implements [session.Memory].
func (d *Domain) Group(ctx context.Context, l *session.Link) (transport.Group, error) {
	return newShared(ctx, l, d)
}

// linger frees the shared memory of s, now or when no rank reads it any more.
func (d *Domain) linger(s *shared) {
	d.mu.Lock()
	d.lingering = append(d.lingering, s)
	d.mu.Unlock()
	d.sweep()
}

// sweep frees the memory that groups closed here could not free before.
func (d *Domain) sweep() {
	d.mu.Lock()
	defer d.mu.Unlock()
	kept := d.lingering[:0]
	for _, s := range d.lingering {
		if !s.release(false) {
			kept = append(kept, s)
		}
	}
	clear(d.lingering[len(kept):])
	d.lingering = kept
}

// Close unmaps all memory except memory that the user has not freed. No group may be in use.
func (d *Domain) Close() error {
	var errs []error
	for _, s := range d.lingering {
		s.release(true) // no new allocation can overwrite it
	}
	d.lingering = nil
	for _, s := range d.segments {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	return errors.Join(errs...)
}
