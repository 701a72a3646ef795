package monitor

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"path/filepath"
	"time"
)

// TensorBoard returns a writer of an event file in a directory. TensorBoard shows the directory as
// a run:
//
//	tensorboard --logdir run
//
// Each value is a scalar with its name as the tag, in single precision. Each row is written
// immediately. A resumed run cuts the file at its saved step, so it has each step once. The rest
// becomes a run earlier-1 next to it. A running TensorBoard that has read the rest keeps it until
// it is restarted.
//
// The file is a sequence of TFRecords, each with an Event of protocol buffers (all little-endian):
//
//	uint64 length of data | uint32 masked CRC-32C of the length | data | uint32 masked CRC-32C of data
//	masked = (crc>>15 | crc<<17) + 0xa282ead8
//
//	Event           1 wall_time double | 2 step int64 | 3 file_version string, of the first event | 5 summary Summary
//	Summary         1 value Value, repeated
//	Value           1 tag string | 2 simple_value float | 5 histo HistogramProto
//	HistogramProto  1 min double | 2 max double | 3 num double | 6 bucket_limit double, packed | 7 bucket double, packed
//
// See https://www.tensorflow.org/tutorials/load_data/tfrecord and
// https://github.com/tensorflow/tensorboard/tree/2.21.0/tensorboard/compat/proto: event.proto and
// summary.proto.
func TensorBoard(dir string) Writer {
	return &events{file: file{path: filepath.Join(dir, "events.out.tfevents.gofsdp")}}
}

type events struct {
	file
	numbers, histo, value, summary, event, record []byte
}

func (w *events) Open(step int) error {
	err := w.open(step, func(r *bufio.Reader) (int64, int64, error) { return keptEvents(r, step) })
	if err != nil || w.size > 0 {
		return err
	}
	version := appendField(appendWallTime(nil, time.Now()), 3, []byte("brain.Event:2"))
	if err := w.append(appendRecord(nil, version)); err != nil {
		return errors.Join(err, w.Close())
	}
	return nil
}

func (w *events) Write(r *Row) error {
	w.summary = w.summary[:0]
	for _, v := range r.Values {
		w.value = appendField(w.value[:0], 1, v.Name)
		w.value = binary.LittleEndian.AppendUint32(append(w.value, 2<<3|5), math.Float32bits(float32(v.Value)))
		w.summary = appendField(w.summary, 1, w.value)
	}
	for i := range r.Histograms {
		w.value = appendField(w.value[:0], 1, r.Histograms[i].Name)
		w.value = appendField(w.value, 5, w.histogram(&r.Histograms[i]))
		w.summary = appendField(w.summary, 1, w.value)
	}
	w.event = appendWallTime(w.event[:0], r.Time)
	w.event = binary.AppendUvarint(append(w.event, 2<<3), uint64(r.Step))
	w.event = appendField(w.event, 5, w.summary)
	w.record = appendRecord(w.record[:0], w.event)
	return w.append(w.record)
}

// histogram returns h as a HistogramProto. Intervals without an end get the width of their
// neighbors.
func (w *events) histogram(h *Histogram) []byte {
	n := len(h.Edges)
	first, last := 1., 1.
	if n > 1 {
		first, last = h.Edges[1]-h.Edges[0], h.Edges[n-1]-h.Edges[n-2]
	}
	num := 0
	for _, c := range h.Counts {
		num += c
	}
	w.histo = w.histo[:0]
	for i, v := range []float64{h.Edges[0] - first, h.Edges[n-1] + last, float64(num)} {
		w.histo = appendDouble(append(w.histo, byte(i+1)<<3|1), v)
	}
	w.numbers = w.numbers[:0]
	for _, e := range h.Edges {
		w.numbers = appendDouble(w.numbers, e)
	}
	w.histo = appendField(w.histo, 6, appendDouble(w.numbers, h.Edges[n-1]+last))
	w.numbers = w.numbers[:0]
	for _, c := range h.Counts {
		w.numbers = appendDouble(w.numbers, float64(c))
	}
	w.histo = appendField(w.histo, 7, w.numbers)
	return w.histo
}

func appendDouble(b []byte, v float64) []byte {
	return binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
}

func appendWallTime(b []byte, t time.Time) []byte {
	return appendDouble(append(b, 1<<3|1), float64(t.UnixMicro())/1e6)
}

// appendField appends a field of protocol buffers of the wire type LEN: a string or a message
// (https://protobuf.dev/programming-guides/encoding).
func appendField[B string | []byte](b []byte, number byte, data B) []byte {
	b = binary.AppendUvarint(append(b, number<<3|2), uint64(len(data)))
	return append(b, data...)
}

// The number of bytes before and after the data of a record.
const (
	recordHead = 12
	recordTail = 4
)

func appendRecord(b, data []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(len(data)))
	b = binary.LittleEndian.AppendUint32(b, masked(b[len(b)-8:]))
	b = append(b, data...)
	return binary.LittleEndian.AppendUint32(b, masked(data))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// masked returns the checksum of b in the form that records have.
func masked(b []byte) uint32 {
	crc := crc32.Checksum(b, castagnoli)
	return (crc>>15 | crc<<17) + 0xa282ead8
}

// maxRecord limits the data of a record that is read. The event of a row is far smaller.
const maxRecord = 1 << 28

// keptEvents returns the end of the version record, and the end of the records before the first one
// of a later step. It drops an incomplete last record, whose writer was killed.
func keptEvents(r *bufio.Reader, step int) (head, end int64, err error) {
	for {
		data, err := readRecord(r)
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return head, end, nil
		}
		if err != nil {
			return 0, 0, fmt.Errorf("the record at byte %d: %w", end, err)
		}
		if stepOfEvent(data) > uint64(step) {
			return head, end, nil
		}
		end += int64(recordHead + len(data) + recordTail)
		if head == 0 {
			head = end
		}
	}
}

// readRecord returns the data of the next record.
func readRecord(r io.Reader) ([]byte, error) {
	var head [recordHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(head[:])
	if binary.LittleEndian.Uint32(head[8:]) != masked(head[:8]) || n > maxRecord {
		return nil, errors.New("its head is damaged")
	}
	data := make([]byte, n+recordTail)
	if _, err := io.ReadFull(r, data); err == io.EOF {
		return nil, io.ErrUnexpectedEOF
	} else if err != nil {
		return nil, err
	}
	if binary.LittleEndian.Uint32(data[n:]) != masked(data[:n]) {
		return nil, errors.New("its data is damaged")
	}
	return data[:n], nil
}

// stepOfEvent returns the step of an event, or 0 if it has none. The step follows the time.
func stepOfEvent(data []byte) uint64 {
	const at = 9
	if len(data) <= at || data[at] != 2<<3 {
		return 0
	}
	step, _ := binary.Uvarint(data[at+1:])
	return step
}
