package hashes

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/gofsdp/gofsdp/internal/checksum"
)

// A Run reads the records of all ranks of a run, step by step.
type Run struct {
	Name  string
	Ranks int

	files []*os.File
	ranks []*Reader
	ahead []*Pass // by rank: a pass of a later step, already read; nil at the end
	last  []int   // by rank: the last step that was read, -1 for none
}

// Suffix is the suffix of the files of a run.
const Suffix = ".hashes"

// Runs lists the directories with records, relative to dir: dir itself is ".", and the others are
// below it.
func Runs(dir string) (list []string, err error) {
	err = fs.WalkDir(os.DirFS(dir), ".", func(name string, e fs.DirEntry, err error) error {
		if at := path.Dir(name); err == nil && path.Ext(name) == Suffix && !slices.Contains(list, at) {
			list = append(list, at)
		}
		return err
	})
	slices.Sort(list)
	return list, err
}

// Open opens the records in a directory. The caller closes the run, even after an error.
func Open(dir string) (r *Run, err error) {
	r = &Run{Name: dir}
	names, err := fs.Glob(os.DirFS(dir), "*"+Suffix)
	if err != nil || len(names) == 0 {
		return r, errors.Join(err, fmt.Errorf("%s has no records of hashes (files *%s)", dir, Suffix))
	}
	for _, name := range names {
		file, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			return r, err
		}
		r.files = append(r.files, file)
		rank, err := NewReader(file)
		if err != nil {
			return r, fmt.Errorf("%s: %w", file.Name(), err)
		}
		r.ranks = append(r.ranks, rank)
	}
	slices.SortFunc(r.ranks, func(a, b *Reader) int { return cmp.Compare(a.Rank, b.Rank) })
	r.Ranks = r.ranks[0].Ranks
	for i, rank := range r.ranks {
		if rank.Rank != i || rank.Ranks != r.Ranks || len(r.ranks) != r.Ranks {
			return r, fmt.Errorf("%s has %d records, but the job has %d ranks: want one record for each rank, of one model and one start", dir, len(r.ranks), r.Ranks)
		}
	}
	r.ahead, r.last = make([]*Pass, r.Ranks), slices.Repeat([]int{-1}, r.Ranks)
	for i := range r.ranks {
		if err := r.advance(i); err != nil {
			return r, err
		}
	}
	return r, nil
}

// Close closes the files.
func (r *Run) Close() (err error) {
	for _, f := range r.files {
		err = errors.Join(err, f.Close())
	}
	return err
}

// advance reads the next pass of a rank.
func (r *Run) advance(rank int) (err error) {
	if r.ahead[rank], err = r.ranks[rank].Next(); err != nil && err != io.EOF {
		return fmt.Errorf("%s: rank %d: %w", r.Name, rank, err)
	}
	if p := r.ahead[rank]; p != nil {
		r.last[rank] = max(r.last[rank], p.Step)
	}
	return nil
}

// An ending describes the end of a run. The run ends with the step that all ranks have, unless one
// of them was cut off, or others have later steps.
type ending struct {
	step, rank int // of the rank that ends first
	longest    int // step of the rank that ends last
	cut        bool
}

// finish reads all records to their ends.
func (r *Run) finish() (e ending, err error) {
	for i := range r.ranks {
		for r.ahead[i] != nil {
			if err := r.advance(i); err != nil {
				return e, err
			}
		}
	}
	e.step, e.longest = slices.Min(r.last), slices.Max(r.last)
	e.rank = slices.Index(r.last, e.step)
	for i, rank := range r.ranks {
		if rank.Cut && !e.cut {
			e.cut, e.rank, e.step = true, i, r.last[i]
		}
	}
	return e, nil
}

// String describes the end of the run.
func (e ending) String() string {
	switch {
	case e.cut:
		return fmt.Sprintf("ends after step %d, rank %d in the middle of a pass", e.step, e.rank)
	case e.step != e.longest:
		return fmt.Sprintf("ends with step %d on rank %d, with step %d on others", e.step, e.rank, e.longest)
	}
	return fmt.Sprintf("ends with step %d", e.step)
}

// A Step is the records of all ranks between two updates.
type Step struct {
	Number int
	Passes [][]*Pass // by rank
	Last   bool      // a rank has recorded nothing after this step
}

// Next returns the next step in which each rank has a pass, or io.EOF.
func (r *Run) Next() (*Step, error) {
	s := &Step{Passes: make([][]*Pass, r.Ranks)}
	for _, p := range r.ahead {
		if p == nil {
			return nil, io.EOF
		}
		s.Number = max(s.Number, p.Step)
	}
	for i := range r.ranks {
		for r.ahead[i] != nil && r.ahead[i].Step <= s.Number {
			if r.ahead[i].Step == s.Number {
				s.Passes[i] = append(s.Passes[i], r.ahead[i])
			}
			if err := r.advance(i); err != nil {
				return nil, err
			}
		}
		if len(s.Passes[i]) == 0 {
			return nil, fmt.Errorf("%s: rank %d has no pass in step %d", r.Name, i, s.Number)
		}
		s.Last = s.Last || r.ahead[i] == nil
		slices.SortFunc(s.Passes[i], func(a, b *Pass) int { return a.Number - b.Number })
	}
	return s, nil
}

// A piece is the hash of some elements of a parameter.
type piece struct {
	Entry
	rank int
}

// pieces returns the ranks' pieces of each parameter in the step, by name and in the order of
// elements. For each piece it keeps the last hash.
func (s *Step) pieces(k Kind) map[string][]piece {
	all := make(map[string][]piece)
	for rank, passes := range s.Passes {
		last := make(map[Entry]piece) // an Entry without its sum
		for _, p := range passes {
			for _, e := range p.Entries {
				if e.Kind == k {
					key := e
					key.Sum = 0
					if _, again := last[key]; !again || k == Grad {
						last[key] = piece{e, rank}
					}
				}
			}
		}
		for _, p := range last {
			all[p.Name] = append(all[p.Name], p)
		}
	}
	for _, list := range all {
		slices.SortFunc(list, func(a, b piece) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.rank, b.rank)) })
	}
	return all
}

// whole joins the pieces of a parameter, where replicas have the same pieces, and returns the
// number of elements. It stops at missing pieces and at differing replicas.
func whole(list []piece) (sum uint32, n int) {
	prior := Entry{}
	for _, p := range list {
		switch {
		case p.From == n:
			sum, n, prior = checksum.Join(sum, p.Sum, p.Bytes), p.To, p.Entry
		case p.Entry != prior:
			return 0, n
		}
	}
	return sum, n
}
