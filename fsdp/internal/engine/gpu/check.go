package gpu

import "fmt"

// check proves that two operations of different streams never touch the same memory, one of them
// writing, unless one has ended before the other begins. The proof uses only the waits and events,
// not the code that chose them. Each stream has a clock: how far it can be sure that both streams
// have come.
func check(ops []operation, events int) error {
	var clocks [2][2]int // by lane, for each lane: the number of operations that have ended when the next one begins
	marks := make([]*[2]int, events)
	var given [2][]int // by lane: the operations so far
	for i := range ops {
		op := &ops[i]
		clock := &clocks[op.lane]
		if op.after >= 0 {
			e := ops[op.after].event
			if op.after >= i || e < 0 || e >= events || marks[e] == nil {
				return fmt.Errorf("%s waits for %s, which has not recorded its event yet", op.name, ops[op.after].name)
			}
			clock[0], clock[1] = max(clock[0], marks[e][0]), max(clock[1], marks[e][1])
		}
		other := 1 - op.lane
		for _, j := range given[other][clock[other]:] {
			if t := op.conflict(&ops[j]); t != nil {
				return fmt.Errorf("%s (%v) and %s (%v) both access %s, and neither waits for the other", ops[j].name, ops[j].lane, op.name, op.lane, t.what)
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
