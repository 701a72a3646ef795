// Package perfetto writes traces for https://ui.perfetto.dev and its trace processor.
//
// A trace is a protocol buffer: one packet after another, so that concatenated files are one trace.
// Few fields are needed (numbers from protos/perfetto/trace, Apache 2.0, of the Perfetto project):
//
//	Trace            packet 1
//	TracePacket      timestamp 8 (ns), trusted_packet_sequence_id 10, track_event 11, track_descriptor 60
//	TrackDescriptor  uuid 1, name 2, process 3 {pid 1, process_name 6}, parent_uuid 5, counter 8 {unit 3},
//	                 child_ordering 11 (3: by rank), sibling_order_rank 12
//	TrackEvent       debug_annotations 4 {int_value 4, string_value 6, name 10}, type 9 (1 begin, 2 end,
//	                 4 counter), track_uuid 11, name 23, counter_value 30
package perfetto

import (
	"bufio"
	"encoding/binary"
	"io"
	"time"
)

// A Track is a row of the picture, by number.
type Track uint64

// A Writer writes a trace to one file. It keeps the first error, and writes nothing after it. It is
// for one goroutine.
type Writer struct {
	w        *bufio.Writer
	err      error
	sequence uint64 // of packets: different for each file of a trace
	tracks   Track

	packet, part, inner []byte // reused
}

// NewWriter returns a Writer. Files that are joined to one trace have different sequences, at least
// 1.
func NewWriter(w io.Writer, sequence uint32) *Writer {
	return &Writer{w: bufio.NewWriter(w), sequence: uint64(sequence)}
}

// Flush writes the buffered data, and returns the first error.
func (w *Writer) Flush() error {
	if err := w.w.Flush(); w.err == nil {
		w.err = err
	}
	return w.err
}

// Process creates a group of tracks. pid is its number among all files of the trace.
func (w *Writer) Process(pid int, name string) Track {
	w.inner = number(w.inner[:0], 1, uint64(pid))
	w.inner = text(w.inner, 6, name)
	return w.track(func(b []byte) []byte { return message(number(b, 11, 3), 3, w.inner) })
}

// Row creates a track of a process for slices, below earlier tracks.
func (w *Writer) Row(process Track, name string) Track {
	return w.track(func(b []byte) []byte {
		return number(number(text(b, 2, name), 5, w.uuid(process)), 12, uint64(w.tracks))
	})
}

// Bytes creates a track of a process for a number of bytes that changes.
func (w *Writer) Bytes(process Track, name string) Track {
	const sizeBytes = 3
	w.inner = number(w.inner[:0], 3, sizeBytes)
	return w.track(func(b []byte) []byte {
		b = number(number(text(b, 2, name), 5, w.uuid(process)), 12, uint64(w.tracks))
		return message(b, 8, w.inner)
	})
}

// track writes the descriptor of a new track with the fields that fill adds.
func (w *Writer) track(fill func([]byte) []byte) Track {
	w.tracks++
	w.part = fill(number(w.part[:0], 1, w.uuid(w.tracks)))
	w.write(0, 60)
	return w.tracks
}

// uuid returns the number of a track among all files of the trace.
func (w *Writer) uuid(t Track) uint64 { return w.sequence<<32 | uint64(t) }

// An Arg is shown with a slice: a name with a text or a number.
type Arg struct {
	Name string
	Text string
	Int  int
}

// Slice writes an activity from begin to end. Slices of a track are disjoint or nested, and an
// outer slice must be written before its inner ones.
func (w *Writer) Slice(t Track, name string, begin, end time.Time, args ...Arg) {
	w.part = number(number(w.part[:0], 9, 1), 11, w.uuid(t))
	for _, a := range args {
		w.inner = text(w.inner[:0], 10, a.Name)
		if a.Text != "" {
			w.inner = text(w.inner, 6, a.Text)
		} else {
			w.inner = number(w.inner, 4, uint64(a.Int))
		}
		w.part = message(w.part, 4, w.inner)
	}
	w.part = text(w.part, 23, name)
	w.write(begin.UnixNano(), 11)
	w.part = number(number(w.part[:0], 9, 2), 11, w.uuid(t))
	w.write(end.UnixNano(), 11)
}

// Count writes a new value of a track's number, valid from a time on.
func (w *Writer) Count(t Track, at time.Time, n int) {
	w.part = number(number(number(w.part[:0], 9, 4), 11, w.uuid(t)), 30, uint64(n))
	w.write(at.UnixNano(), 11)
}

// write writes a packet with part as one field of it.
func (w *Writer) write(at int64, field int) {
	if w.err != nil {
		return
	}
	w.packet = w.packet[:0]
	if at > 0 {
		w.packet = number(w.packet, 8, uint64(at))
	}
	w.packet = message(number(w.packet, 10, w.sequence), field, w.part)
	var head [16]byte
	if _, w.err = w.w.Write(length(head[:0], 1, len(w.packet))); w.err == nil {
		_, w.err = w.w.Write(w.packet)
	}
}

// These are fields of protocol buffers (https://protobuf.dev/programming-guides/encoding).
const (
	varint    = 0
	delimited = 2
)

func number(b []byte, field int, v uint64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(b, uint64(field<<3|varint)), v)
}

func text(b []byte, field int, s string) []byte {
	return append(length(b, field, len(s)), s...)
}

func message(b []byte, field int, m []byte) []byte {
	return append(length(b, field, len(m)), m...)
}

func length(b []byte, field, n int) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(b, uint64(field<<3|delimited)), uint64(n))
}
