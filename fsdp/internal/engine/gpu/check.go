package gpu

import "fmt"

// check proves that two operations of different streams never touch the same memory, one of them
// writing, unless one has ended before the other begins. The proof uses only the waits and events,
// not the code that chose them. Each stream has a clock: how far it can be sure that all streams
// have come.
func check(ops []operation, events int) error {
	var clocks [lanes][lanes]int // by lane, for each lane: the number of operations that have ended when the next one begins
	marks := make([]*[lanes]int, events)
	var given [lanes][]int // by lane: the operations so far
	for i := range ops {
		op := &ops[i]
		clock := &clocks[op.lane]
		for _, after := range op.after {
			e := ops[after].event
			if after >= i || e < 0 || e >= events || marks[e] == nil {
				return fmt.Errorf("%s waits for %s, which has not recorded its event yet", op.name, ops[after].name)
			}
			for l := range clock {
				clock[l] = max(clock[l], marks[e][l])
			}
		}
		for other := range lanes {
			if other == op.lane {
				continue
			}
			for _, j := range given[other][clock[other]:] {
				if t := op.conflict(&ops[j]); t != nil {
					return fmt.Errorf("%s (%v) and %s (%v) both access %s, and neither waits for the other", ops[j].name, ops[j].lane, op.name, op.lane, t.what)
				}
			}
		}
		given[op.lane] = append(given[op.lane], i)
		clock[op.lane]++
		if op.event >= 0 {
			if op.event >= events || marks[op.event] != nil {
				return fmt.Errorf("%s records event %d of %d, which another operation records", op.name, op.event, events)
			}
			if op.joins {
				return fmt.Errorf("%s records event %d before it is launched", op.name, op.event)
			}
			mark := *clock
			marks[op.event] = &mark
		}
	}
	return nil
}
