package monitor

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A stored row is what a reader of a file has found.
type stored struct {
	step   int
	time   time.Time
	values map[string]float64
}

// formats are the writers, each with a reader of what it writes, that shares no code with it.
var formats = map[string]struct {
	name  string // of the file in the directory
	make  func(dir string) Writer
	read  func(t require.TestingT, text []byte) []stored
	round func(float64) float64 // what a file keeps of a number
}{
	"JSON lines": {"log.jsonl", func(dir string) Writer { return JSONLines(filepath.Join(dir, "log.jsonl")) }, readJSON, func(v float64) float64 {
		if !finite(v) {
			return math.NaN() // null
		}
		return v
	}},
	"CSV": {"log.csv", func(dir string) Writer { return CSV(filepath.Join(dir, "log.csv")) }, readCSV, func(v float64) float64 { return v }},
	"TensorBoard": {"events.out.tfevents.gofsdp", TensorBoard, readEvents, func(v float64) float64 {
		return float64(float32(v))
	}},
}

func readJSON(t require.TestingT, text []byte) (rows []stored) {
	for line := range bytes.Lines(text) {
		var object map[string]any
		require.NoError(t, json.Unmarshal(line, &object))
		at, err := time.Parse(time.RFC3339, object["time"].(string))
		require.NoError(t, err)
		row := stored{int(object["step"].(float64)), at, make(map[string]float64)}
		delete(object, "step")
		delete(object, "time")
		for name, v := range object {
			row.values[name] = math.NaN()
			if v != nil {
				row.values[name] = v.(float64)
			}
		}
		rows = append(rows, row)
	}
	return rows
}

func readCSV(t require.TestingT, text []byte) (rows []stored) {
	records, err := csv.NewReader(bytes.NewReader(text)).ReadAll() // refuses lines of other numbers of cells
	require.NoError(t, err)
	for i, record := range records {
		if i == 0 {
			continue
		}
		row := stored{values: make(map[string]float64)}
		_, err := fmt.Sscan(record[0], &row.step)
		require.NoError(t, err)
		row.time, err = time.Parse(time.RFC3339, record[1])
		require.NoError(t, err)
		for c := 2; c < len(record); c++ {
			if record[c] != "" {
				var v float64
				_, err := fmt.Sscan(record[c], &v)
				require.NoError(t, err)
				row.values[records[0][c]] = v
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// eachEvent reads TFRecords, and calls f with the fields of each event but the first.
func eachEvent(t require.TestingT, text []byte, f func(event map[uint64][][]byte)) {
	checksum := func(b []byte) uint32 { // bit by bit, of the reversed polynomial of CRC-32C
		crc := ^uint32(0)
		for _, c := range b {
			crc ^= uint32(c)
			for range 8 {
				crc = crc>>1 ^ 0x82f63b78&-(crc&1)
			}
		}
		crc = ^crc
		return (crc>>15 | crc<<17) + 0xa282ead8
	}
	for first := true; len(text) > 0; first = false {
		require.Greater(t, len(text), 16)
		n := binary.LittleEndian.Uint64(text)
		require.Equal(t, checksum(text[:8]), binary.LittleEndian.Uint32(text[8:]))
		require.LessOrEqual(t, n, uint64(len(text)-16))
		data := text[12 : 12+n]
		require.Equal(t, checksum(data), binary.LittleEndian.Uint32(text[12+n:]))
		text = text[16+n:]
		event := fields(t, data)
		if !first {
			f(event)
			continue
		}
		require.Equal(t, "brain.Event:2", string(event[3][0]))
		require.NotContains(t, event, uint64(2))
	}
}

func readEvents(t require.TestingT, text []byte) (rows []stored) {
	eachEvent(t, text, func(event map[uint64][][]byte) {
		seconds := math.Float64frombits(binary.LittleEndian.Uint64(event[1][0]))
		row := stored{time: time.UnixMilli(int64(math.Round(seconds * 1000))), values: make(map[string]float64)}
		step, _ := binary.Uvarint(event[2][0])
		row.step = int(step)
		for _, value := range fields(t, event[5][0])[1] {
			v := fields(t, value)
			row.values[string(v[1][0])] = float64(math.Float32frombits(binary.LittleEndian.Uint32(v[2][0])))
		}
		rows = append(rows, row)
	})
	return rows
}

// fields cuts a message of protocol buffers into its fields, by number.
func fields(t require.TestingT, data []byte) map[uint64][][]byte {
	found := make(map[uint64][][]byte)
	varint := func() uint64 {
		v, n := binary.Uvarint(data)
		require.Positive(t, n)
		data = data[n:]
		return v
	}
	for len(data) > 0 {
		tag := varint()
		size := map[uint64]uint64{1: 8, 5: 4}[tag&7]
		switch tag & 7 {
		case 0:
			_, n := binary.Uvarint(data)
			size = uint64(n)
		case 2:
			size = varint()
		}
		require.LessOrEqual(t, size, uint64(len(data)))
		found[tag>>3] = append(found[tag>>3], data[:size])
		data = data[size:]
	}
	return found
}

// text returns what a file holds.
func text(t require.TestingT, path string) []byte {
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return b
}

// TestWriters writes rows at random and reads them back; the run is interrupted at random, its
// files torn, and goes on from a step that was saved.
func TestWriters(t *testing.T) {
	for name, f := range formats {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			rapid.Check(t, func(t *rapid.T) {
				dir, err := os.MkdirTemp(root, "")
				require.NoError(t, err)
				path := filepath.Join(dir, "run", f.name)
				names := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-zé,"\\ </]{1,8}`), 1, 6, rapid.ID[string]).Draw(t, "names")
				var want []stored
				saved := 0
				for range rapid.IntRange(1, 4).Draw(t, "parts") {
					w := f.make(filepath.Join(dir, "run"))
					require.NoError(t, w.Open(saved))
					want = slices.DeleteFunc(want, func(r stored) bool { return r.step > saved })
					for step := saved + 1; step <= saved+rapid.IntRange(0, 8).Draw(t, "steps"); step++ {
						r := Row{Step: step, Time: time.UnixMilli(1e12 + rapid.Int64Range(0, 1e12).Draw(t, "time"))}
						keep := stored{step, r.Time, make(map[string]float64)}
						for _, n := range names {
							if rapid.Bool().Draw(t, "has") {
								v := rapid.OneOf(rapid.Float64(), rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), math.Inf(-1), 0, 1e21})).Draw(t, "value")
								r.Values = append(r.Values, Value{n, v})
								keep.values[n] = f.round(v)
							}
						}
						require.NoError(t, w.Write(&r))
						want = append(want, keep)
					}
					require.NoError(t, w.Close())
					if len(want) > 0 {
						saved = rapid.IntRange(0, want[len(want)-1].step).Draw(t, "saved")
					}
					got := f.read(t, text(t, path))
					require.Equal(t, len(want), len(got))
					for i := range want {
						requireRow(t, want[i], got[i])
					}
					tear(t, path, saved, len(got) > 0 && got[len(got)-1].step > saved)
				}
			})
		})
	}
}

// tear takes bytes from the end of a file, as a kill in the middle of a row does, if that row is of
// a step that was not saved.
func tear(t *rapid.T, path string, saved int, last bool) {
	if info, err := os.Stat(path); err == nil && last {
		require.NoError(t, os.Truncate(path, info.Size()-rapid.Int64Range(0, 15).Draw(t, "torn")))
	}
}

func requireRow(t require.TestingT, want, got stored) {
	require.Equal(t, want.step, got.step)
	require.True(t, want.time.Equal(got.time), "%v %v", want.time, got.time)
	require.Equal(t, len(want.values), len(got.values))
	for n, v := range want.values {
		require.Contains(t, got.values, n)
		require.True(t, v == got.values[n] || math.IsNaN(v) && math.IsNaN(got.values[n]), "%s: %v %v", n, v, got.values[n])
	}
}

// TestWritersBeginAnew: without a saved step a file begins anew, and the file of an earlier run,
// whatever it is, is put aside.
func TestWritersBeginAnew(t *testing.T) {
	for _, f := range formats {
		dir := t.TempDir()
		path := filepath.Join(dir, f.name)
		require.NoError(t, os.WriteFile(path, []byte("something else"), 0o600))
		w := f.make(dir)
		for range 2 {
			require.NoError(t, w.Open(0))
			require.NoError(t, w.Write(&Row{Step: 1, Values: []Value{{"loss", 2}}}))
			require.NoError(t, w.Close())
			require.Len(t, f.read(t, text(t, path)), 1)
		}
		require.Equal(t, "something else", string(text(t, filepath.Join(dir, "earlier-1", f.name))))
		require.Len(t, f.read(t, text(t, filepath.Join(dir, "earlier-2", f.name))), 1)
	}
}

// TestResumeKeepsRows goes on twice from an earlier step: rows of later steps, and a row that a
// kill has cut, are in a file of their own that can be read.
func TestResumeKeepsRows(t *testing.T) {
	for _, f := range formats {
		dir := t.TempDir()
		path := filepath.Join(dir, f.name)
		w := f.make(dir)
		part := func(from, to int) {
			require.NoError(t, w.Open(from))
			for step := from + 1; step <= to; step++ {
				require.NoError(t, w.Write(&Row{Step: step, Values: []Value{{"loss", 2}}}))
			}
			require.NoError(t, w.Close())
		}
		steps := func(path string) (list []int) {
			for _, row := range f.read(t, text(t, path)) {
				list = append(list, row.step)
			}
			return list
		}
		part(0, 6)
		part(4, 5)
		part(5, 7)
		part(2, 3)
		require.Equal(t, []int{1, 2, 3}, steps(path))
		require.Equal(t, []int{5, 6}, steps(filepath.Join(dir, "earlier-1", f.name)))
		require.Equal(t, []int{3, 4, 5, 6, 7}, steps(filepath.Join(dir, "earlier-2", f.name)))
		require.NoDirExists(t, filepath.Join(dir, "earlier-3"), "nothing was cut")

		whole := text(t, path)
		require.NoError(t, os.Truncate(path, int64(len(whole)-3)))
		part(3, 4)
		kept := text(t, filepath.Join(dir, "earlier-3", f.name))
		require.Equal(t, whole[len(whole)-13:len(whole)-3], kept[len(kept)-10:])
	}
}

// TestWritersRefuse what is not theirs, where a run goes on, and what they cannot write.
func TestWritersRefuse(t *testing.T) {
	for name, want := range map[string]string{
		"JSON lines":  "line 1 is not a row of a monitor: invalid character",
		"CSV":         `line 1 is not a row of a monitor: the first columns must be step and time, the columns are ["something else"]`,
		"TensorBoard": "the record at byte 0: its head is damaged",
	} {
		f, dir := formats[name], t.TempDir()
		path := filepath.Join(dir, f.name)
		other := []byte("something else\nof two lines\n")
		require.NoError(t, os.WriteFile(path, other, 0o600))
		err := f.make(dir).Open(7)
		require.ErrorContains(t, err, path+": "+want)
		require.Equal(t, other, text(t, path), "as it was")

		_, err = New(Config{Writers: []Writer{f.make(path)}}) // a directory in place of a file, or the other way round
		require.ErrorContains(t, err, path)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "log.jsonl")
	require.NoError(t, os.WriteFile(path, []byte("{\"step\":1}\n{}\n"), 0o600))
	require.ErrorContains(t, JSONLines(path).Open(7), "line 2 is not a row of a monitor: the step is missing")
	w := TensorBoard(dir)
	require.NoError(t, w.Open(0))
	require.NoError(t, w.Write(&Row{Step: 1, Values: []Value{{"loss", 2}}}))
	require.NoError(t, w.Close())
	path = filepath.Join(dir, "events.out.tfevents.gofsdp")
	damaged := text(t, path)
	damaged[len(damaged)-6] ^= 1
	require.NoError(t, os.WriteFile(path, damaged, 0o600))
	require.ErrorContains(t, w.Open(7), "its data is damaged")
}

// TestWriteFails: a row that cannot be written is an error, and the others stay.
func TestWriteFails(t *testing.T) {
	for _, f := range formats {
		dir := t.TempDir()
		w := f.make(dir)
		require.NoError(t, w.Open(0))
		require.NoError(t, w.Write(&Row{Step: 1, Values: []Value{{"loss", 2}}}))
		require.NoError(t, w.Close())
		require.ErrorIs(t, w.Write(&Row{Step: 2, Values: []Value{{"loss", 2}}}), os.ErrClosed)
		require.Len(t, f.read(t, text(t, filepath.Join(dir, f.name))), 1)
	}
}

// TestCSVColumns shows a table whose columns come one after the other.
func TestCSVColumns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log.csv")
	w := CSV(path)
	require.NoError(t, w.Open(0))
	at := time.Date(2026, 11, 23, 5, 10, 30, 123e6, time.UTC)
	for step, values := range [][]Value{{{"loss", 2.5}, {"lr", 1e-3}}, {{"validation/loss", 3}}, {{"loss", 2.25}, {"lr", 1e-7}}} {
		require.NoError(t, w.Write(&Row{Step: step + 1, Time: at, Values: values}))
	}
	require.NoError(t, w.Close())
	const when = "2026-11-23T05:10:30.123Z"
	require.Equal(t, "step,time,loss,lr,validation/loss\n"+
		"1,"+when+",2.5,0.001,\n"+
		"2,"+when+",,,3\n"+
		"3,"+when+",2.25,1e-07,\n", string(text(t, path)))
	left, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, left, 1)
}

// TestFilesOfARun has one file of each kind for a job of several ranks, that goes on after two of
// its steps were lost.
func TestFilesOfARun(t *testing.T) {
	dir := t.TempDir()
	var saved State
	for _, part := range []struct{ ranks, from, to int }{{3, 1, 7}, {2, 6, 10}} {
		var writers []Writer
		for _, f := range formats {
			writers = append(writers, f.make(dir))
		}
		require.NoError(t, onRanks(t, part.ranks, Config{Writers: writers, State: saved}, func(ctx context.Context, mon *Monitor, rank int) error {
			for step := part.from; step <= part.to; step++ {
				if err := mon.Step(ctx, 1, Values{"loss": float64(step)}); err != nil {
					return err
				}
				if step == 5 && rank == 0 {
					saved = mon.State()
				}
			}
			return nil
		}))
	}
	for name, f := range formats {
		var steps []int
		var losses []float64
		for _, row := range f.read(t, text(t, filepath.Join(dir, f.name))) {
			steps, losses = append(steps, row.step), append(losses, row.values["loss"])
		}
		require.Equal(t, []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, steps, name)
		require.Equal(t, []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, losses, name)
	}
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 4, "the files, and a directory of the rows that were cut")
}

// TestWritersDoNotAllocate once they know the names.
func TestWritersDoNotAllocate(t *testing.T) {
	for name, f := range formats {
		w := f.make(t.TempDir())
		require.NoError(t, w.Open(0))
		row := Row{Step: 1, Time: time.Now(), Values: []Value{{"loss", math.Pi}, {"lr", 1e-3}, {"run/units", 1e6}}}
		require.NoError(t, w.Write(&row))
		require.Zero(t, testing.AllocsPerRun(100, func() {
			if err := w.Write(&row); err != nil {
				panic(err)
			}
		}), name)
		require.NoError(t, w.Close())
	}
}

func FuzzKept(f *testing.F) {
	f.Add([]byte("{\"step\":1}\n{\"step\":9}\n"), 3)
	f.Add([]byte("step,time,loss\n1,x,2\n9,x,2\n"), 3)
	f.Add(appendRecord(appendRecord(nil, []byte("\x09timetime\x10\x01")), []byte("\x09timetime\x10\x09")), 3)
	f.Fuzz(func(t *testing.T, text []byte, step int) {
		for _, kept := range []func(r *bufio.Reader) (int64, int64, error){
			func(r *bufio.Reader) (int64, int64, error) { return keptEvents(r, max(step, 0)) },
			func(r *bufio.Reader) (int64, int64, error) { return keptLines(r, step, 0, new(jsonLines).stepOf) },
			func(r *bufio.Reader) (int64, int64, error) {
				return keptLines(r, step, 1, (&csvFile{columns: make(map[string]int)}).stepOf)
			},
		} {
			head, end, err := kept(bufio.NewReader(bytes.NewReader(text)))
			require.LessOrEqual(t, head, end)
			require.LessOrEqual(t, end, int64(len(text)))
			if err == nil { // what is kept is kept the next time
				_, again, err := kept(bufio.NewReader(io.LimitReader(strings.NewReader(string(text)), end)))
				require.NoError(t, err)
				require.Equal(t, end, again)
			}
		}
	})
}

func BenchmarkWrite(b *testing.B) {
	for name, f := range formats {
		b.Run(name, func(b *testing.B) {
			w := f.make(b.TempDir())
			require.NoError(b, w.Open(0))
			row := Row{Time: time.Now(), Values: []Value{{"loss", math.Pi}, {"lr", 1e-3}, {"run/units", 1e6}}}
			b.ReportAllocs()
			for b.Loop() {
				row.Step++
				if err := w.Write(&row); err != nil {
					b.Fatal(err)
				}
			}
			require.NoError(b, w.Close())
		})
	}
}

// TestHistograms writes one in the formats that have them, beside a row that the CSV keeps.
func TestHistograms(t *testing.T) {
	dir := t.TempDir()
	var writers []Writer
	for _, f := range formats {
		writers = append(writers, f.make(dir))
	}
	mon, err := New(Config{Writers: writers})
	require.NoError(t, err)
	h := Histogram{Name: "lengths", Edges: []float64{0, 0.5, 2}, Counts: []int{1, 0, 30, 4}}
	require.NoError(t, mon.AddHistogram(h))
	for range 2 { // the second row has none
		require.NoError(t, mon.Step(t.Context(), 1, Values{"loss": 1}))
	}
	require.NoError(t, mon.Close())

	rows := bytes.Split(text(t, filepath.Join(dir, "log.jsonl")), []byte("\n"))
	require.Contains(t, string(rows[0]), `"lengths":{"edges":[0,0.5,2],"counts":[1,0,30,4]}}`)
	require.NotContains(t, string(rows[1]), "lengths")
	require.NotContains(t, string(text(t, filepath.Join(dir, "log.csv"))), "lengths")

	var histograms [][]byte
	eachEvent(t, text(t, filepath.Join(dir, "events.out.tfevents.gofsdp")), func(event map[uint64][][]byte) {
		for _, value := range fields(t, event[5][0])[1] {
			if v := fields(t, value); string(v[1][0]) == "lengths" {
				histograms = append(histograms, v[5]...)
			}
		}
	})
	require.Len(t, histograms, 1)
	doubles := func(b []byte) (list []float64) {
		for ; len(b) > 0; b = b[8:] {
			list = append(list, math.Float64frombits(binary.LittleEndian.Uint64(b)))
		}
		return list
	}
	got := fields(t, histograms[0])
	for number, want := range map[uint64][]float64{1: {-0.5}, 2: {3.5}, 3: {35}, 6: {0, 0.5, 2, 3.5}, 7: {1, 0, 30, 4}} {
		require.Equal(t, want, doubles(got[number][0]))
	}

	for _, bad := range []struct {
		h    Histogram
		want string
	}{
		{Histogram{"", []float64{0}, []int{1, 2}}, `"" is not a valid name`},
		{Histogram{"x", nil, []int{1}}, "x: 0 edges and 1 counts"},
		{Histogram{"x", []float64{0}, []int{1}}, "x: 1 edges and 1 counts"},
		{Histogram{"x", []float64{1, 1}, []int{1, 2, 3}}, "x: edge 1 is 1"},
		{Histogram{"x", []float64{math.NaN()}, []int{1, 2}}, "x: edge 0 is NaN"},
		{Histogram{"x", []float64{1}, []int{1, -2}}, "x: count 1 is -2"},
	} {
		require.ErrorContains(t, mon.AddHistogram(bad.h), "monitor: AddHistogram: "+bad.want)
	}
}
