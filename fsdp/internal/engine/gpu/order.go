package gpu

// A lane is one of the two streams.
type lane uint8

const (
	onWork lane = iota
	onWire
)

// String names the stream.
func (l lane) String() string {
	if l == onWire {
		return "wire"
	}
	return "work"
}

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
	joins   bool // it shares a launch with the next operation of its stream
	after   int  // the operation of the other stream that it waits for, or -1
	event   int  // recorded after it, or -1
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

// order decides which operations wait. An operation waits for the last operation of the other
// stream that touches the same memory, unless its stream has already waited for that one or for a
// later one. It returns the number of events needed.
func order(ops []operation) (events int) {
	known := [2]int{-1, -1} // by lane: the last operation of the other lane that has certainly ended
	for i := range ops {
		op := &ops[i]
		op.after, op.event = -1, -1
		for j := i - 1; j > known[op.lane]; j-- {
			if o := &ops[j]; o.lane == op.lane || op.conflict(o) == nil {
				continue
			}
			for ops[j].joins {
				for j++; ops[j].lane == op.lane; j++ {
				}
			}
			op.after, known[op.lane] = j, j
			ops[j].event = events
			events++
			break
		}
	}
	return events
}
