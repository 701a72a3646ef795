package gpu

import "slices"

// A lane is one of the streams, from the least urgent to the most urgent.
type lane uint8

const (
	onWork lane = iota
	onReplicas
	onWire
	lanes
)

// String names the stream.
func (l lane) String() string { return [lanes]string{"work", "replicas", "wire"}[l] }

// A space is memory with offsets that can be compared: the slab of a pass, or a block of a group.
type space int

// slab is the memory of the buffers of a pass.
const slab space = 0

// These are the blocks of a group: its shards of parameters and gradients, and whole gradients that
// outlive a pass.
func values(group int) space { return space(3*group + 1) }
func grads(group int) space  { return space(3*group + 2) }
func wholes(group int) space { return space(3*group + 3) }

// A touch is a range of bytes that an operation reads or writes.
type touch struct {
	space    space
	from, to int
	write    bool
	what     string // for messages
}

// conflicts reports whether two operations that touch a and b must have an order.
func (a *touch) conflicts(b *touch) bool {
	return a.space == b.space && (a.write || b.write) && a.from < b.to && b.from < a.to
}

// An operation is the work that a step of a pass gives to one stream. A pass issues its operations
// in the order of the list.
type operation struct {
	lane    lane
	name    string // for messages
	touches []touch
	joins   bool  // it shares a launch with the next operation of its stream
	after   []int // operations of other streams that it waits for
	event   int   // recorded after it, or -1
}

// conflict returns the first touch of a that conflicts with b, or nil.
func (a *operation) conflict(b *operation) *touch {
	for i := range a.touches {
		for j := range b.touches {
			if a.touches[i].conflicts(&b.touches[j]) {
				return &a.touches[i]
			}
		}
	}
	return nil
}

// A clock has, by lane, the index of the last operation that has certainly ended, or -1.
type clock [lanes]int

// meet adds what another clock says.
func (c *clock) meet(o *clock) {
	for l := range c {
		c[l] = max(c[l], o[l])
	}
}

// order decides which operations wait. An operation waits for the last operation of each other
// stream that touches the same memory, unless that one has certainly ended: the stream may have
// waited for it, or for one behind it. It returns the number of events needed, and the lanes of
// collectives that together end last: no other lane has waited for their last operation.
func order(ops []operation) (events int, ends []lane) {
	now, ended := [lanes]clock{}, make([]clock, len(ops)) // before the next operation of a lane, and after each
	for l := range now {
		now[l] = clock{-1, -1, -1}
	}
	for i := range ops {
		op := &ops[i]
		op.after, op.event = nil, -1
		c := &now[op.lane]
		for _, j := range before(ops, i, c) {
			if c[ops[j].lane] >= j {
				continue
			}
			op.after = append(op.after, j)
			c.meet(&ended[j])
			if ops[j].event < 0 {
				ops[j].event = events
				events++
			}
		}
		c[op.lane] = i
		ended[i] = *c
	}
	for _, l := range collective {
		if last := now[l][l]; last >= 0 && !slices.ContainsFunc(collective[:], func(o lane) bool { return o != l && now[o][l] >= last }) {
			ends = append(ends, l)
		}
	}
	return events, ends
}

// before returns the operations of other lanes, at most one of each, that must end before operation
// i begins and are not on its clock, the last first. They are ends of launches.
func before(ops []operation, i int, c *clock) (list []int) {
	for l := range lanes {
		for j := i - 1; j > c[l] && l != ops[i].lane; j-- {
			if ops[j].lane != l || ops[i].conflict(&ops[j]) == nil {
				continue
			}
			for ops[j].joins {
				for j++; ops[j].lane != l; j++ {
				}
			}
			list = append(list, j)
			break
		}
	}
	slices.Sort(list)
	slices.Reverse(list)
	return list
}
