package program

import "github.com/gofsdp/gofsdp/internal/arena"

// MostLive returns the largest number of bytes of the given classes that are live at once.
func (p *Plan) MostLive(counts func(arena.Class) bool) int {
	live, most := 0, 0
	add := func(ids []int, sign int) {
		for _, id := range ids {
			if b := p.Buffers[id]; counts(b.Class) {
				live += sign * b.Bytes
			}
		}
	}
	add(p.Inherited, 1)
	for _, step := range p.Steps {
		add(step.Alloc, 1)
		work := 0
		if counts(arena.Work) {
			work = step.Work
		}
		most = max(most, live+work)
		add(step.Free, -1)
	}
	return most
}
