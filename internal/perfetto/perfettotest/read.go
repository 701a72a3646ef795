// Package perfettotest reads the traces of package perfetto.
package perfettotest

import (
	"cmp"
	"encoding/binary"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// A Row is a track of a trace.
type Row struct {
	Process, Name string
	Slices        []Slice // by begin, outer ones first
	Counts        []Count // by time
}

// A Slice is an activity from Begin to End, in nanoseconds.
type Slice struct {
	Name       string
	Begin, End int64
	Depth      int
	Args       map[string]any // int or string
}

// A Count is a value of a number from a time on.
type Count struct {
	At int64
	N  int
}

// Read returns the rows of a file, in the order of their creation. Unknown tracks, ends without a
// beginning and beginnings without an end fail the test.
func Read(t testing.TB, path string) []*Row {
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	r := reader{t: t, rows: make(map[uint64]*Row), processes: make(map[uint64]string)}
	for _, packet := range fields(t, b) {
		require.EqualValues(t, 1, packet.number)
		r.packet(packet.bytes)
	}
	slices.SortStableFunc(r.events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	open := make(map[*Row][]int)
	for _, e := range r.events {
		r.event(e, open)
	}
	for row, left := range open {
		require.Empty(t, left, "slices of %s, %s do not end", row.Process, row.Name)
	}
	return r.order
}

type reader struct {
	t         testing.TB
	rows      map[uint64]*Row
	processes map[uint64]string
	order     []*Row
	events    []event
}

type event struct {
	at    int64
	track uint64
	kind  uint64
	Slice
	count int
}

func (r *reader) packet(b []byte) {
	var at, sequence uint64
	for _, f := range fields(r.t, b) {
		switch f.number {
		case 8:
			at = f.value
		case 10:
			sequence = f.value
		case 11:
			r.events = append(r.events, r.track(f.bytes, int64(at)))
		case 60:
			r.descriptor(f.bytes)
		}
	}
	require.Positive(r.t, sequence)
}

func (r *reader) descriptor(b []byte) {
	var uuid, parent uint64
	row := &Row{}
	for _, f := range fields(r.t, b) {
		switch f.number {
		case 1:
			uuid = f.value
		case 2:
			row.Name = string(f.bytes)
		case 3:
			for _, p := range fields(r.t, f.bytes) {
				if p.number == 6 {
					r.processes[uuid] = string(p.bytes)
				}
			}
		case 5:
			parent = f.value
		}
	}
	require.NotContains(r.t, r.rows, uuid, "two tracks have this number")
	r.rows[uuid] = row
	if parent == 0 {
		return
	}
	require.Contains(r.t, r.processes, parent)
	row.Process = r.processes[parent]
	r.order = append(r.order, row)
}

func (r *reader) track(b []byte, at int64) event {
	e := event{at: at, Slice: Slice{Args: make(map[string]any)}}
	for _, f := range fields(r.t, b) {
		switch f.number {
		case 4:
			var name string
			var value any
			for _, a := range fields(r.t, f.bytes) {
				switch a.number {
				case 4:
					value = int(a.value)
				case 6:
					value = string(a.bytes)
				case 10:
					name = string(a.bytes)
				}
			}
			e.Args[name] = value
		case 9:
			e.kind = f.value
		case 11:
			e.track = f.value
		case 23:
			e.Name = string(f.bytes)
		case 30:
			e.count = int(f.value)
		}
	}
	return e
}

func (r *reader) event(e event, open map[*Row][]int) {
	row := r.rows[e.track]
	require.NotNil(r.t, row, "track %d is not known", e.track)
	switch e.kind {
	case 1:
		e.Begin, e.Depth = e.at, len(open[row])
		open[row] = append(open[row], len(row.Slices))
		row.Slices = append(row.Slices, e.Slice)
	case 2:
		left := open[row]
		require.NotEmpty(r.t, left, "%s, %s: an end without a beginning at %d", row.Process, row.Name, e.at)
		row.Slices[left[len(left)-1]].End = e.at
		open[row] = left[:len(left)-1]
	case 4:
		row.Counts = append(row.Counts, Count{e.at, e.count})
	default:
		require.Fail(r.t, "event of an unknown kind", "%+v", e)
	}
}

type field struct {
	number int
	value  uint64
	bytes  []byte
}

func fields(t testing.TB, b []byte) (list []field) {
	for len(b) > 0 {
		key, n := binary.Uvarint(b)
		require.Positive(t, n)
		b = b[n:]
		value, n := binary.Uvarint(b)
		require.Positive(t, n)
		b = b[n:]
		f := field{number: int(key >> 3), value: value}
		if key&7 == 2 {
			require.LessOrEqual(t, value, uint64(len(b)))
			f.bytes, b = b[:value], b[value:]
		}
		list = append(list, f)
	}
	return list
}
