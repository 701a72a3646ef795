package checkpoint

import (
	"fmt"
	"slices"
)

// A Merger joins the shards of the ranks, one after the other. The zero Merger is empty.
type Merger struct {
	files   []File
	writers []int          // rank of each file
	named   map[string]int // the writer, by name
	tensors map[Key]*joining
}

// Add adds the shard of a rank, nil or zero if it is empty. Ranks that disagree about a tensor are
// an error.
func (m *Merger) Add(rank int, s *Shard) error {
	if s == nil {
		return nil
	}
	if m.tensors == nil {
		m.named, m.tensors = make(map[string]int), make(map[Key]*joining)
	}
	for i := range s.Tensors {
		t := &s.Tensors[i]
		all, ok := m.tensors[t.Key]
		if !ok {
			all = &joining{Tensor: Tensor{Key: t.Key, DType: t.DType, Shape: t.Shape, Steps: t.Steps}, rank: rank}
			m.tensors[t.Key] = all
		} else if !all.like(t) {
			return fmt.Errorf("%s is %s on rank %d but %s on rank %d", t.Name(), all.kind(), all.rank, t.kind(), rank)
		}
		for p := range t.All() {
			p.File = len(m.files)
			all.add(p)
		}
	}
	if list := s.files(); list != nil {
		if first, ok := m.named[s.File.Name]; ok {
			return fmt.Errorf("ranks %d and %d have both written %s", first, rank, s.File.Name)
		}
		m.named[s.File.Name] = rank
		m.files, m.writers = append(m.files, list...), append(m.writers, rank)
	}
	return nil
}

// Merged returns the files in the order in which they were added and the tensors in the order of
// their keys. Elements that no rank has written, or more than one, are an error.
func (m *Merger) Merged() ([]File, []Tensor, error) {
	tensors := sorted(m.tensors)
	for i := range tensors {
		err := tensors[i].covered(func(file int) string { return fmt.Sprintf("the file of rank %d", m.writers[file]) })
		if err != nil {
			return nil, nil, err
		}
	}
	return m.files, tensors, nil
}

// Merge joins the shards of the ranks: shards[r] is the shard of rank r. It fails as a Merger does.
func Merge(shards []*Shard) ([]File, []Tensor, error) {
	var m Merger
	for rank, s := range shards {
		if err := m.Add(rank, s); err != nil {
			return nil, nil, err
		}
	}
	return m.Merged()
}

// sorted returns tensors in the order of their keys, with their pieces by Offset.
func sorted(tensors map[Key]*joining) []Tensor {
	list := make([]Tensor, 0, len(tensors))
	for _, t := range tensors {
		list = append(list, t.tensor())
	}
	slices.SortFunc(list, func(t, u Tensor) int { return t.Compare(u.Key) })
	return list
}
