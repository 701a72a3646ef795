package mesh

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestFrames reads what was written, however the bytes arrive.
func TestFrames(t *testing.T) {
	type frame struct {
		kind frameKind
		body []byte
	}
	rapid.Check(t, func(t *rapid.T) {
		var want []frame
		var stream []byte
		for range rapid.IntRange(0, 10).Draw(t, "frames") {
			f := frame{kind: frameKind(rapid.IntRange(1, 5).Draw(t, "kind"))}
			switch f.kind {
			case frameMessage, frameAbort:
				n := rapid.OneOf(rapid.IntRange(0, 20), rapid.IntRange(MaxMessage-2, MaxMessage)).Draw(t, "length")
				f.body = bytes.Repeat([]byte{byte(n)}, n)
			case frameFile:
				f.body = make([]byte, 8)
			}
			want = append(want, f)
			stream = appendFrame(stream, f.kind, f.body)
		}
		in := newFrameReader(iotest.HalfReader(bytes.NewReader(stream)))
		for _, w := range want {
			kind, body, err := in.next()
			require.NoError(t, err)
			require.Equal(t, w.kind, kind)
			require.True(t, bytes.Equal(w.body, body))
		}
		_, _, err := in.next()
		require.Equal(t, io.EOF, err)
	})
}

// TestFrameCut ends the stream at every byte of a frame.
func TestFrameCut(t *testing.T) {
	whole := appendFrame(nil, frameMessage, []byte("message"))
	for n := 1; n < len(whole); n++ {
		_, _, err := newFrameReader(bytes.NewReader(whole[:n])).next()
		require.Equal(t, io.ErrUnexpectedEOF, err)
	}
}

// TestFrameDamaged flips every bit of a frame.
func TestFrameDamaged(t *testing.T) {
	for bit := range 8 * len(appendFrame(nil, frameMessage, []byte("message"))) {
		b := appendFrame(appendFrame(nil, frameMessage, []byte("message")), frameGoodbye, nil)
		b[bit/8] ^= 1 << (bit % 8)
		_, _, err := newFrameReader(bytes.NewReader(b)).next()
		require.Error(t, err, "bit %d", bit)
	}
}

// FuzzFrames reads anything: frames are taken as they are written, and nothing is allocated on the
// word of a stranger.
func FuzzFrames(f *testing.F) {
	f.Add(appendFrame(appendFrame(nil, frameReady, nil), frameMessage, []byte("hello")))
	f.Add(appendFrame(appendFrame(nil, frameFile, make([]byte, 8)), frameGoodbye, nil))
	f.Add(appendFrame(nil, frameAbort, encode(setback{1, "reason"})))
	f.Add(binary.BigEndian.AppendUint32([]byte{byte(frameMessage)}, 1<<31))
	f.Fuzz(func(t *testing.T, stream []byte) {
		in := newFrameReader(bytes.NewReader(stream))
		var again []byte
		for {
			kind, body, err := in.next()
			if cap(in.body) > MaxMessage {
				t.Fatalf("%d bytes allocated", cap(in.body))
			}
			if err != nil {
				break
			}
			again = appendFrame(again, kind, body)
		}
		if !bytes.HasPrefix(stream, again) {
			t.Fatalf("read %q from %q", again, stream)
		}
	})
}

// FuzzDecode reads anything as what ranks write to the store and say in hellos.
func FuzzDecode(f *testing.F) {
	r := record{process: process{"h", "n", 1, "now", "x", "note"}, Rank: 1, Size: 2, TCP: "127.0.0.1:1", Unix: "@u"}
	f.Add(encode(r))
	r.TCP = "eth0 127.0.0.1:1,eth1 127.0.0.2:1"
	f.Add(encode(r))
	f.Add(encode(visit{process: r.process, Channel: 1 << 63}))
	f.Add(encode(visit{process: r.process, Lane: 1, Lanes: 2, Over: "eth1"}))
	f.Add(encode(setback{1, "reason"}))
	f.Add([]byte(`{"Rank":-1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := decode[record](b); err == nil {
			again, err := decode[record](encode(r))
			require.NoError(t, err)
			require.Equal(t, r, again)
			require.True(t, 0 <= r.Rank && r.Rank < r.Size)
		}
		if v, err := decode[visit](b); err == nil {
			again, err := decode[visit](encode(v))
			require.NoError(t, err)
			require.Equal(t, v, again)
		}
		if s, err := decode[setback](b); err == nil {
			require.NotEmpty(t, s.Error())
		}
	})
}

// thing counts how often it is closed.
type thing int

func (c *thing) Close() error { *c++; return nil }

func TestMailbox(t *testing.T) {
	var b mailbox[*thing]
	ended, cancel := context.WithCancelCause(context.Background())
	cancel(errors.New("ended"))
	_, err := b.take(ended, label{rank: 1, id: 1})
	require.EqualError(t, err, "ended")

	b.release(label{rank: 1, id: 1}) // nobody waits now
	got := make(chan *thing)
	go func() { c, _ := b.take(context.Background(), label{rank: 1, id: 1}); got <- c }()
	require.Eventually(t, func() bool { b.mu.Lock(); defer b.mu.Unlock(); return b.change != nil }, patience, 1e6)
	other, mine := new(thing), new(thing)
	require.NoError(t, b.put(label{rank: 2, id: 1}, other))
	require.NoError(t, b.put(label{rank: 1, id: 1}, mine))
	require.Same(t, mine, <-got)

	for range maxWaiting {
		require.NoError(t, b.put(label{rank: 1, id: 7}, new(thing)))
	}
	require.EqualError(t, b.put(label{rank: 1, id: 8}, mine), "256 from rank 1 have not been used yet")
	require.EqualError(t, b.reserve(label{rank: 1, id: 8}), "256 from rank 1 have not been used yet")
	require.ErrorIs(t, b.reserve(label{rank: 1, id: 7}), errTaken)

	require.NoError(t, b.reserve(label{rank: 2, id: 7}))
	require.ErrorIs(t, b.reserve(label{rank: 2, id: 7}), errTaken)
	b.release(label{rank: 2, id: 7})
	b.release(label{rank: 2, id: 7})
	require.NoError(t, b.reserve(label{rank: 2, id: 7}))
	require.Equal(t, 2, b.count[2], "one waits, one has a place")
	require.NoError(t, b.put(label{rank: 2, id: 7}, other))
	require.Equal(t, 2, b.count[2])
	require.ErrorIs(t, b.reserve(label{rank: 2, id: 7}), errTaken)

	_, err = b.take(ended, label{rank: 1, id: 7})
	require.NoError(t, err, "it is there")
	require.NoError(t, b.put(label{rank: 1, id: 8}, mine), "there is room again")

	b.close()
	require.EqualValues(t, 1, *mine)
	require.EqualValues(t, 2, *other, "it was there twice")
	require.ErrorIs(t, b.put(label{rank: 1, id: 1}, mine), ErrClosed)
	require.ErrorIs(t, b.reserve(label{rank: 1, id: 1}), ErrClosed)
}
