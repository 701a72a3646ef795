package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/gofsdp/gofsdp/comm/commtest"
)

// soaker runs one random job after the other, in the same processes as long as these survive:
// leftovers of jobs add up.
type soaker struct {
	run       *runner
	seed      uint64
	out       io.Writer
	transport string // only this one, "" for all

	rounds, incidents, ops int
	bytes                  int64
	detect                 time.Duration // the slowest detection without a timeout
	first, most            usage         // of workers: after warming up, and the largest
	files                  []string      // of jobs, at the beginning
}

// warm is the number of rounds after which a process should hold everything that it will ever need.
const warm = 30

// growth is the memory that may come and go, in bytes: the garbage of a few rounds.
const growth = 192 << 20

// soak runs rounds for the given time and returns the number of failures.
func (s *soaker) soak(ctx context.Context, length time.Duration) (failed int) {
	begin, last := time.Now(), time.Now()
	s.files = s.leftovers()
	for time.Since(begin) < length && ctx.Err() == nil {
		s.rounds++
		c := roundOf(s.seed, s.rounds, s.transport)
		v := s.run.run(ctx, c)
		if ctx.Err() != nil {
			break
		}
		s.note(&v)
		if len(v.Wrong) > 0 {
			failed++
			v.print(s.out, true)
		}
		if time.Since(last) > 10*time.Second {
			last = time.Now()
			s.print(failed)
		}
	}
	s.print(failed)
	return failed
}

// roundOf returns a job of the soak by its number, on a random transport if none is given.
func roundOf(seed uint64, number int, transport string) Case {
	rng := rand.New(rand.NewPCG(seed, uint64(number)))
	c := Case{
		Seed: seed, Number: number, Transport: cmp.Or(transport, transports[1+rng.IntN(len(transports)-1)]),
		Ranks: 2 + rng.IntN(5), Sub: rng.IntN(3) == 0, Steps: 1 + rng.IntN(60), Bytes: 1 << rng.IntN(20),
	}
	if rng.IntN(4) == 0 {
		return c // nothing goes wrong
	}
	c.Incident = commtest.Plan(rng.Uint64(), c.members(), uint64(c.Steps), sorts...)
	if c.Incident.What == commtest.Garble || c.Transport == "local" && endsProcess(c.Incident.What) {
		c.Incident.What = commtest.Abort // noise in a payload in transit is not noticed
	}
	if c.Sub && endsProcess(c.Incident.What) && c.Incident.When == commtest.Waiting {
		// The rank outside of the group waits for the end of the process: it must come.
		c.Incident.When, c.Incident.After = commtest.Issued, 0
	}
	return c
}

// note adds v to the results. It reports a failure if a process holds too much.
func (s *soaker) note(v *verdict) {
	s.ops += v.Ops
	s.bytes += v.Bytes
	if v.Struck {
		s.incidents++
	}
	if !silent(v.Case.Incident.What) {
		s.detect = max(s.detect, v.Detect)
	}
	for _, u := range v.Usage {
		s.most = larger(s.most, u)
		if s.rounds <= warm {
			s.first = larger(s.first, u)
		} else if u.Files > s.first.Files || u.Goroutines > s.first.Goroutines || u.Resident > s.first.Resident+growth || u.Maps > 2*s.first.Maps+100 {
			v.Wrong = append(v.Wrong, fmt.Sprintf("a process has grown: %v, at first: %v", u, s.first))
		}
	}
	if now := s.leftovers(); len(now) > len(s.files) {
		v.Wrong = append(v.Wrong, fmt.Sprintf("files left behind: %q, at first: %q", now, s.files))
		s.files = now
	}
}

func larger(a, b usage) usage {
	return usage{
		Files: max(a.Files, b.Files), Goroutines: max(a.Goroutines, b.Goroutines), Maps: max(a.Maps, b.Maps),
		Shared: max(a.Shared, b.Shared), Resident: max(a.Resident, b.Resident),
	}
}

// leftovers lists files that dead processes may have left. Shared memory has no files.
func (s *soaker) leftovers() []string {
	files, err := filepath.Glob(filepath.Join(s.run.pool.dir, "*"))
	if err != nil {
		panic(err) // the pattern is valid
	}
	return files
}

func (s *soaker) print(failed int) {
	fmt.Fprintf(s.out, "%d rounds, %d failed, %d incidents, %d operations, %.1f GB checked, worst detection %v, a process holds at most %v\n",
		s.rounds, failed, s.incidents, s.ops, float64(s.bytes)/1e9, s.detect.Round(time.Microsecond), s.most)
}
