package perfetto_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/perfetto"
	"github.com/gofsdp/gofsdp/internal/perfetto/perfettotest"
)

// TestWriter writes two files, and reads both back as one.
func TestWriter(t *testing.T) {
	at := func(n int) time.Time { return time.Unix(1_700_000_000, int64(n)) }
	path := filepath.Join(t.TempDir(), "trace")
	file, err := os.Create(path)
	require.NoError(t, err)
	for i, name := range []string{"rank 0", "rank 1"} {
		w := perfetto.NewWriter(file, uint32(i+1))
		rank := w.Process(i+1, name)
		row, memory := w.Row(rank, "calls"), w.Bytes(rank, "memory")
		w.Slice(row, "late", at(50), at(50))
		w.Slice(row, "outer", at(10), at(40), perfetto.Arg{Name: "bytes", Int: 1 << 40}, perfetto.Arg{Name: "group", Text: "world"})
		w.Slice(row, "inner", at(10), at(40))
		w.Slice(row, "next", at(40), at(45), perfetto.Arg{Name: "below", Int: -3})
		w.Count(memory, at(30), 300)
		w.Count(memory, at(20), 0)
		require.NoError(t, w.Flush())
	}
	require.NoError(t, file.Close())

	rows := perfettotest.Read(t, path)
	require.Len(t, rows, 4)
	for i, name := range []string{"rank 0", "rank 1"} {
		ns := func(n int) int64 { return at(n).UnixNano() }
		none := map[string]any{}
		require.Equal(t, &perfettotest.Row{Process: name, Name: "calls", Slices: []perfettotest.Slice{
			{Name: "outer", Begin: ns(10), End: ns(40), Args: map[string]any{"bytes": 1 << 40, "group": "world"}},
			{Name: "inner", Begin: ns(10), End: ns(40), Depth: 1, Args: none},
			{Name: "next", Begin: ns(40), End: ns(45), Args: map[string]any{"below": -3}},
			{Name: "late", Begin: ns(50), End: ns(50), Args: none},
		}}, rows[2*i])
		require.Equal(t, &perfettotest.Row{Process: name, Name: "memory", Counts: []perfettotest.Count{{At: ns(20)}, {At: ns(30), N: 300}}}, rows[2*i+1])
	}
}

// TestJoin leaves out what is cut short, wherever, and refuses what is no trace.
func TestJoin(t *testing.T) {
	var file, joined bytes.Buffer
	w := perfetto.NewWriter(&file, 1)
	row := w.Row(w.Process(1, "rank 0"), "calls")
	require.NoError(t, w.Flush())
	before := file.Len()
	w.Slice(row, strings.Repeat("long", 100), time.Unix(1, 0), time.Unix(2, 0))
	require.NoError(t, w.Flush())
	first := before + 1 + 2 + int(file.Bytes()[before+1]&0x7f) + int(file.Bytes()[before+2])<<7 // begins and ends
	for n := before; n <= file.Len(); n++ {
		joined.Reset()
		require.NoError(t, perfetto.Join(&joined, bytes.NewReader(file.Bytes()[:n])))
		want := before
		if n >= first {
			want = first
		}
		if n == file.Len() {
			want = n
		}
		require.Equal(t, file.Bytes()[:want], joined.Bytes(), "of %d bytes", n)
	}
	require.ErrorContains(t, perfetto.Join(&joined, strings.NewReader("no trace")), "not a trace")
	require.ErrorContains(t, perfetto.Join(&joined, strings.NewReader("\n\xff\xff\xff\xff\xff\x01")), "not a trace")
	require.ErrorIs(t, perfetto.Join(&full{}, bytes.NewReader(file.Bytes())), errFull)
}

type full struct{ room int }

var errFull = errors.New("full")

func (f *full) Write(b []byte) (int, error) {
	if f.room -= len(b); f.room < 0 {
		return 0, errFull
	}
	return len(b), nil
}

// TestFull writes to what has no room.
func TestFull(t *testing.T) {
	w := perfetto.NewWriter(&full{room: 10_000}, 1)
	row := w.Row(w.Process(1, "rank 0"), "calls")
	for i := range 1000 {
		w.Slice(row, "call", time.Unix(int64(i), 0), time.Unix(int64(i), 1))
	}
	require.ErrorIs(t, w.Flush(), errFull)
	require.ErrorIs(t, w.Flush(), errFull)
}

// FuzzJoin has files of any contents: what is joined is a beginning of the file.
func FuzzJoin(f *testing.F) {
	f.Add([]byte("\n\x03abc\n\x00\n\x05ab"))
	f.Add([]byte("\n\x83\x00abc"))
	f.Fuzz(func(t *testing.T, file []byte) {
		var joined bytes.Buffer
		err := perfetto.Join(&joined, bytes.NewReader(file))
		var again bytes.Buffer
		require.NoError(t, perfetto.Join(&again, bytes.NewReader(joined.Bytes())))
		require.Equal(t, joined.Bytes(), again.Bytes(), "whole packets only")
		if err == nil {
			require.LessOrEqual(t, joined.Len(), len(file))
		}
	})
}
