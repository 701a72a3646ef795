package auth

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	secret = []byte("sixteen bytes or more")
	other  = []byte("another sixteen bytes")

	alice = Hello{Job: "gpt", Purpose: "store", Rank: 3, Size: 8, Extra: []byte("from the client")}
	bob   = Hello{Job: "gpt", Purpose: "store", Rank: 0, Size: 8, Extra: []byte("from the server")}
)

func welcome(Hello) (Hello, error) { return bob, nil }

// outcome is what a side of a handshake returns.
type outcome struct {
	theirs Hello
	err    error
}

type side func(net.Conn) outcome

// soonEnough is a deadline that also a machine meets which is busy with something else.
func soonEnough() time.Time { return time.Now().Add(time.Minute) }

func client(secret []byte) side {
	return func(c net.Conn) (o outcome) { o.theirs, o.err = Client(c, secret, alice, soonEnough()); return }
}

func server(secret []byte, accept func(Hello) (Hello, error)) side {
	return func(c net.Conn) (o outcome) { o.theirs, o.err = Server(c, secret, accept, soonEnough()); return }
}

// says is a side that writes, and then reads until it is hung up on.
func says(b []byte) side {
	return func(c net.Conn) outcome {
		go func() { _, _ = c.Write(b) }()
		_, _ = io.Copy(io.Discard, c)
		return outcome{}
	}
}

// between runs both sides over a pipe, each hanging up when it is done.
func between(left, right side) (l, r outcome) {
	a, b := net.Pipe()
	done := make(chan outcome, 1) // the right side hangs up even when the left does not listen
	go func() { defer b.Close(); done <- right(b) }()
	l = left(a)
	a.Close()
	return l, <-done
}

// overTCP is between over a real connection.
func overTCP(t *testing.T, left, right side) (l, r outcome) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	done := make(chan outcome)
	go func() {
		c, err := ln.Accept()
		if err != nil {
			done <- outcome{err: err}
			return
		}
		o := right(c)
		c.Close()
		done <- o
	}()
	c, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	l = left(c)
	c.Close()
	return l, <-done
}

func TestBothLearnWhoTheOtherIs(t *testing.T) {
	for name, run := range map[string]func(l, r side) (outcome, outcome){
		"pipe": between,
		"tcp":  func(l, r side) (outcome, outcome) { return overTCP(t, l, r) },
	} {
		l, r := run(client(secret), server(secret, welcome))
		require.NoError(t, l.err, name)
		require.NoError(t, r.err, name)
		require.Equal(t, bob, l.theirs)
		require.Equal(t, alice, r.theirs)
	}
}

// deadlines records what is set on a connection.
type deadlines struct {
	net.Conn
	set []time.Time
}

func (d *deadlines) SetDeadline(t time.Time) error {
	d.set = append(d.set, t)
	return d.Conn.SetDeadline(t)
}

func TestDeadlineIsSetAndCleared(t *testing.T) {
	want := time.Now().Add(time.Hour)
	for _, s := range [][]byte{secret, other} {
		a, b := net.Pipe()
		ca, cb := &deadlines{Conn: a}, &deadlines{Conn: b}
		l, r := between(
			func(net.Conn) (o outcome) { o.theirs, o.err = Client(ca, secret, alice, want); ca.Close(); return },
			func(net.Conn) (o outcome) { o.theirs, o.err = Server(cb, s, welcome, want); cb.Close(); return })
		require.Equal(t, l.err == nil, bytes.Equal(s, secret))
		require.Equal(t, r.err == nil, bytes.Equal(s, secret))
		require.Equal(t, []time.Time{want, {}}, ca.set)
		require.Equal(t, []time.Time{want, {}}, cb.set)
	}
}

func TestWrongSecret(t *testing.T) {
	for _, pair := range [][2][]byte{{secret, other}, {other, secret}} {
		l, r := overTCP(t, client(pair[0]), server(pair[1], func(Hello) (Hello, error) {
			t.Error("accept was asked about a client that has proven nothing")
			return Hello{}, nil
		}))
		require.ErrorIs(t, l.err, ErrSecret)
		require.ErrorIs(t, r.err, ErrSecret)
		require.Equal(t, Hello{}, l.theirs)
		require.Equal(t, Hello{}, r.theirs)
		require.Contains(t, l.err.Error(), "127.0.0.1:")
		require.True(t, Final(l.err))
	}
}

func TestRefusal(t *testing.T) {
	why := errors.New("rank 3 has joined already")
	l, r := overTCP(t, client(secret), server(secret, func(theirs Hello) (Hello, error) {
		require.Equal(t, alice, theirs)
		return Hello{}, why
	}))
	var refused *RefusedError
	require.ErrorAs(t, l.err, &refused)
	require.Equal(t, why.Error(), refused.Reason)
	require.True(t, Final(l.err))
	require.ErrorIs(t, r.err, why)
	require.ErrorContains(t, r.err, `refused rank 3 of 8, job "gpt"`)
}

func TestLongReasonIsCut(t *testing.T) {
	long := strings.Repeat("é", maxReason)
	l, r := between(client(secret), server(secret, func(Hello) (Hello, error) { return Hello{}, errors.New(long) }))
	var refused *RefusedError
	require.ErrorAs(t, l.err, &refused)
	require.Equal(t, long[:maxReason], refused.Reason)
	require.ErrorContains(t, r.err, long)
}

func TestAnswerTooLargeIsARefusal(t *testing.T) {
	l, r := between(client(secret), server(secret, func(Hello) (Hello, error) {
		return Hello{Job: strings.Repeat("x", MaxJob+1)}, nil
	}))
	require.ErrorContains(t, l.err, "job has 257 bytes")
	require.ErrorContains(t, r.err, "job has 257 bytes")
}

func TestHelloTooLarge(t *testing.T) {
	for field, h := range map[string]Hello{
		"job":     {Job: strings.Repeat("x", MaxJob+1)},
		"purpose": {Purpose: strings.Repeat("x", MaxPurpose+1)},
		"extra":   {Extra: make([]byte, MaxExtra+1)},
		"rank":    {Rank: 1 << 40},
		"size":    {Size: -1 << 40},
	} {
		a, b := net.Pipe()
		_, err := Client(a, secret, h, time.Time{})
		require.ErrorContains(t, err, field)
		a.Close()
		b.Close()
	}
}

func TestShortSecret(t *testing.T) {
	short := []byte("fifteen letters")
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	_, err := Client(a, short, alice, time.Time{})
	require.ErrorContains(t, err, "the secret is too weak: it has 15 bytes, at least 16 are needed")
	_, err = Server(b, short, welcome, time.Time{})
	require.ErrorContains(t, err, "it has 15 bytes")
	_, err = Server(b, nil, welcome, time.Time{})
	require.ErrorContains(t, err, "it has 0 bytes")
	require.NoError(t, Check(secret[:MinSecret]))
}

func TestGuessable(t *testing.T) {
	for _, text := range []string{
		"passwordpassword", "changemechangeme", "0123401234012340", "abcdefghijklmnop", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
		"this is our secret", "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
	} {
		require.True(t, Guessable([]byte(text)), text)
	}
	random := rand.NewChaCha8([32]byte{})
	for range 100_000 {
		key := make([]byte, MinSecret)
		_, _ = random.Read(key) // never fails
		require.False(t, Guessable(key), "%x", key)
	}
	require.False(t, Guessable([]byte("q0Jv5mFvXrS1nT0Q8cVtDg")), "16 bytes in base64")
}

func TestKeysDiffer(t *testing.T) {
	var keys []string
	for _, s := range [][]byte{secret, other, nil} {
		for _, use := range []string{"challenge", "tls"} {
			k, err := Key(s, use)
			require.NoError(t, err)
			require.Len(t, k, 32)
			keys = append(keys, string(k))
			again, _ := Key(s, use)
			require.Equal(t, k, again)
		}
	}
	slices.Sort(keys)
	require.Len(t, slices.Compact(keys), 6)
}

func greeting(v byte) []byte {
	return append(append([]byte(magic), v), bytes.Repeat([]byte{7}, 32)...)
}

func TestOtherVersion(t *testing.T) {
	l, _ := overTCP(t, client(secret), says(greeting(9)))
	require.ErrorIs(t, l.err, ErrVersion)
	require.ErrorContains(t, l.err, fmt.Sprintf("9 there, %d here", version))

	var heard []byte
	future := func(c net.Conn) (o outcome) {
		_, o.err = c.Write(greeting(9))
		heard, _ = io.ReadAll(c)
		return o
	}
	l, r := overTCP(t, future, server(secret, welcome))
	require.NoError(t, l.err)
	require.ErrorIs(t, r.err, ErrVersion)
	require.Len(t, heard, len(greeting(version)), "the newer side must be able to tell, too")
	require.Equal(t, greeting(version)[:8], heard[:8])
}

func TestStrangers(t *testing.T) {
	for _, b := range []string{"GET / HTTP/1.1\r\n\r\n", "G", "GoFSDP", "\x00", "\x16\x03\x01\x02\x00", "SSH-2.0-OpenSSH_9.2\r\n", magic} {
		l, _ := between(client(secret), func(c net.Conn) outcome {
			_, _ = io.ReadFull(c, make([]byte, 40))
			_, _ = io.WriteString(c, b)
			return outcome{}
		})
		_, r := between(func(c net.Conn) outcome { _, _ = io.WriteString(c, b); return outcome{} }, server(secret, welcome))
		for _, err := range []error{l.err, r.err} {
			if strings.HasPrefix(magic, b) {
				require.ErrorContains(t, err, "EOF") // one of us may have died
				require.False(t, Final(err))
				continue
			}
			require.ErrorIs(t, err, ErrStranger, "%q", b)
			require.Equal(t, b[0] == 0x16, strings.Contains(err.Error(), "uses TLS"))
		}
	}
}

func TestStrangerIsToldNothing(t *testing.T) {
	var heard []byte
	_, r := between(func(c net.Conn) (o outcome) {
		go func() { _, _ = io.WriteString(c, "HELO mail.example.org\r\n") }()
		heard, o.err = io.ReadAll(c)
		return o
	}, server(secret, welcome))
	require.ErrorIs(t, r.err, ErrStranger)
	require.Empty(t, heard)
}

func TestGiantLength(t *testing.T) {
	for _, k := range "HARSx" {
		giant := append(greeting(version), byte(k), 0xff, 0xff)
		_, r := between(says(giant), server(secret, welcome))
		require.ErrorIs(t, r.err, ErrStranger)
		require.ErrorContains(t, r.err, "length 65535")
		l, _ := between(client(secret), says(giant))
		require.ErrorIs(t, l.err, ErrStranger)
	}
}

func TestSilentPeer(t *testing.T) {
	for _, s := range []side{
		func(c net.Conn) (o outcome) { o.theirs, o.err = Client(c, secret, alice, time.Time{}); return },
		func(c net.Conn) (o outcome) { o.theirs, o.err = Server(c, secret, welcome, time.Time{}); return },
	} {
		for _, said := range []int{0, 3, 8, 40} {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				l, _ := between(s, says(greeting(version)[:said]))
				require.ErrorIs(t, l.err, os.ErrDeadlineExceeded)
				require.Equal(t, Timeout, time.Since(start))
				require.False(t, Final(l.err))
			})
		}
	}
}

// tamper alters bytes on their way, or cuts the wire by returning false.
type tamper func(toServer bool, b []byte) (forward []byte, goOn bool)

// relay runs a handshake through somebody in between.
func relay(change tamper, left, right side) (l, r outcome) {
	return between(left, func(c net.Conn) outcome {
		_, o := between(func(d net.Conn) outcome { pipe(c, d, change); return outcome{} }, right)
		return o
	})
}

// pipe passes on what is said on c and d until either hangs up, then hangs up on both.
func pipe(c, d net.Conn, change tamper) {
	pump := func(dst, src net.Conn, toServer bool) {
		defer dst.Close()
		defer src.Close()
		b := make([]byte, 4096)
		for {
			n, err := src.Read(b)
			forward, goOn := change(toServer, b[:n])
			if _, werr := dst.Write(forward); werr != nil || err != nil || !goOn {
				return
			}
		}
	}
	done := make(chan struct{})
	go func() { pump(c, d, false); close(done) }()
	pump(d, c, true)
	<-done
}

// sizes returns the number of bytes either way of a successful handshake.
func sizes(t *testing.T) (toServer, toClient int) {
	l, r := relay(func(up bool, b []byte) ([]byte, bool) {
		if up {
			toServer += len(b)
		} else {
			toClient += len(b)
		}
		return b, true
	}, client(secret), server(secret, welcome))
	require.NoError(t, errors.Join(l.err, r.err))
	return toServer, toClient
}

func TestTruncatedAtEveryByte(t *testing.T) {
	up, down := sizes(t)
	for _, dir := range []struct {
		up bool
		n  int
	}{{true, up}, {false, down}} {
		for cut := range dir.n {
			left := cut
			l, r := relay(func(up bool, b []byte) ([]byte, bool) {
				if up != dir.up {
					return b, true
				}
				b = b[:min(left, len(b))]
				left -= len(b)
				return b, left > 0
			}, client(secret), server(secret, welcome))
			require.Error(t, l.err, "cut at %d", cut)
			require.False(t, Final(l.err), "a cut wire may be mended: %v", l.err)
			if dir.up {
				require.Error(t, r.err, "cut at %d", cut)
			}
		}
	}
}

// TestAlteredAtEveryByte flips one bit of every byte on the wire. Whoever receives it must notice.
func TestAlteredAtEveryByte(t *testing.T) {
	up, down := sizes(t)
	for _, dir := range []struct {
		up bool
		n  int
	}{{true, up}, {false, down}} {
		for at := range dir.n {
			seen, asked := 0, false
			l, r := relay(func(up bool, b []byte) ([]byte, bool) {
				if up == dir.up {
					if i := at - seen; i >= 0 && i < len(b) {
						b[i] ^= 1 << (at % 8)
					}
					seen += len(b)
				}
				return b, true
			}, soon(client(secret)), soon(server(secret, func(Hello) (Hello, error) { asked = true; return bob, nil })))
			require.Error(t, l.err, "byte %d", at)
			if dir.up {
				require.Error(t, r.err, "byte %d", at)
				require.False(t, asked, "byte %d: accept saw an altered hello", at)
			}
		}
	}
}

// soon hangs up on a peer that waits for bytes which an altered length promises.
func soon(s side) side {
	return func(c net.Conn) outcome {
		stop := time.AfterFunc(100*time.Millisecond, func() { c.Close() })
		defer stop.Stop()
		return s(c)
	}
}

func TestReplay(t *testing.T) {
	var recorded []byte
	l, r := relay(func(up bool, b []byte) ([]byte, bool) {
		if up {
			recorded = append(recorded, b...)
		}
		return b, true
	}, client(secret), server(secret, welcome))
	require.NoError(t, errors.Join(l.err, r.err))

	_, r = between(says(recorded), server(secret, func(Hello) (Hello, error) {
		t.Error("accept was asked about a recording")
		return bob, nil
	}))
	require.ErrorIs(t, r.err, ErrSecret)
}

// TestReflection lets the client talk to somebody without the secret who sends it its own messages.
func TestReflection(t *testing.T) {
	mirror := func(change func([]byte)) side {
		return func(c net.Conn) outcome {
			b := make([]byte, 4096)
			for {
				n, err := c.Read(b)
				if err != nil {
					return outcome{}
				}
				change(b[:n])
				if _, err := c.Write(b[:n]); err != nil {
					return outcome{}
				}
			}
		}
	}
	l, _ := between(client(secret), mirror(func([]byte) {}))
	require.ErrorIs(t, l.err, ErrStranger)
	require.ErrorContains(t, l.err, "sends back the bytes")
	for k, want := range map[kind]error{kindHello: ErrStranger, kindAccept: ErrSecret, kindRefuse: ErrSecret, kindSecret: ErrSecret} {
		l, _ := between(client(secret), mirror(func(b []byte) {
			if b[0] == byte(kindHello) {
				b[0] = byte(k)
			} else {
				b[20]++ // of the nonce
			}
		}))
		require.ErrorIs(t, l.err, want, "%c", k)
	}
}

// TestVerdictIsProven passes an acceptance off as a refusal and the other way round.
func TestVerdictIsProven(t *testing.T) {
	for _, verdict := range []error{nil, errors.New("no")} {
		l, _ := relay(func(up bool, b []byte) ([]byte, bool) {
			if !up && len(b) > 0 && b[0] != magic[0] {
				b[0] ^= byte(kindAccept ^ kindRefuse)
			}
			return b, true
		}, client(secret), server(secret, func(Hello) (Hello, error) { return bob, verdict }))
		require.ErrorIs(t, l.err, ErrSecret)
	}
}

func TestHelloRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := Hello{
			Job:     rapid.StringN(-1, -1, MaxJob).Draw(t, "job"),
			Purpose: rapid.StringN(-1, -1, MaxPurpose).Draw(t, "purpose"),
			Rank:    int(rapid.Int32().Draw(t, "rank")),
			Size:    int(rapid.Int32().Draw(t, "size")),
			Extra:   rapid.SliceOfN(rapid.Byte(), 0, MaxExtra).Draw(t, "extra"),
		}
		b, err := h.encode()
		require.NoError(t, err)
		require.LessOrEqual(t, len(b), maxHello)
		got, err := decodeHello(b)
		require.NoError(t, err)
		if len(h.Extra) == 0 {
			h.Extra = nil
		}
		require.Equal(t, h, got)
		for cut := range b {
			_, err := decodeHello(b[:cut])
			require.Error(t, err)
		}
		_, err = decodeHello(append(b, 0))
		require.Error(t, err)
	})
}

func FuzzDecodeHello(f *testing.F) {
	for _, h := range []Hello{{}, alice, bob} {
		b, err := h.encode()
		require.NoError(f, err)
		f.Add(b)
	}
	f.Add(bytes.Repeat([]byte{0xff}, 14))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := decodeHello(b)
		if err != nil {
			return
		}
		again, err := h.encode()
		require.NoError(t, err)
		require.Equal(t, b, again, "two encodings of one hello")
	})
}

// FuzzPeer lets somebody without the secret say anything to either side.
func FuzzPeer(f *testing.F) {
	f.Add(greeting(version))
	f.Add(append(greeting(version), 'A', 0, 0))
	f.Add(append(greeting(version), append([]byte{'H', 0, 14}, make([]byte, 14+32)...)...))
	f.Add([]byte("GET / HTTP/1.0\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		speak := func(c net.Conn) outcome {
			read := make(chan struct{})
			go func() { _, _ = io.Copy(io.Discard, c); close(read) }()
			_, _ = c.Write(b)
			c.Close()
			<-read
			return outcome{}
		}
		l, _ := between(client(secret), speak)
		require.Error(t, l.err)
		_, r := between(speak, server(secret, func(Hello) (Hello, error) { return bob, fmt.Errorf("accepted %q", b) }))
		require.Error(t, r.err)
		require.NotContains(t, r.err.Error(), "accepted")
	})
}

func BenchmarkHandshake(b *testing.B) {
	for b.Loop() {
		l, r := between(client(secret), server(secret, welcome))
		if err := errors.Join(l.err, r.err); err != nil {
			b.Fatal(err)
		}
	}
}
