package checkpoint

import (
	"fmt"
	"slices"
)

// Merge joins what the ranks have written: shards[r] is that of rank r, nil or zero if it wrote
// nothing. Tensors are in the order of their keys, files in that of the ranks. Ranks that disagree
// about a tensor are an error, as are elements of it that no rank has written, or more than one.
func Merge(shards []*Shard) (files []File, tensors []Tensor, err error) {
	var writers []int // rank of each file
	joined := make(map[Key]*Tensor)
	first := make(map[Key]int) // rank
	for rank, s := range shards {
		if s == nil {
			continue
		}
		for i := range s.Tensors {
			t := &s.Tensors[i]
			all, ok := joined[t.Key]
			if !ok {
				all = &Tensor{Key: t.Key, DType: t.DType, Shape: t.Shape, Steps: t.Steps}
				joined[t.Key], first[t.Key] = all, rank
			} else if !all.like(t) {
				return nil, nil, fmt.Errorf("%s is %s on rank %d and %s on rank %d",
					t.Name(), all.kind(), first[t.Key], t.kind(), rank)
			}
			for _, p := range t.Pieces {
				p.File = len(files)
				all.Pieces = append(all.Pieces, p)
			}
		}
		if list := s.files(); list != nil {
			if i := slices.IndexFunc(files, func(f File) bool { return f.Name == s.File.Name }); i >= 0 {
				return nil, nil, fmt.Errorf("ranks %d and %d have both written %s", writers[i], rank, s.File.Name)
			}
			files, writers = append(files, list...), append(writers, rank)
		}
	}
	tensors = sorted(joined)
	for i := range tensors {
		err := tensors[i].covered(func(file int) string { return fmt.Sprintf("the file of rank %d", writers[file]) })
		if err != nil {
			return nil, nil, err
		}
	}
	return files, tensors, nil
}
