package auth

import (
	"crypto/tls"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// over runs a side inside TLS.
func over(wrap func(net.Conn, *tls.Config) *tls.Conn, cfg *tls.Config, s side) side {
	return func(c net.Conn) outcome { return s(wrap(c, cfg)) }
}

func TestTLS(t *testing.T) {
	sc, cc, err := TLS()
	require.NoError(t, err)
	var version uint16
	l, r := overTCP(t, over(tls.Client, cc, client(secret)), func(c net.Conn) outcome {
		s := tls.Server(c, sc)
		o := server(secret, welcome)(s)
		version = s.ConnectionState().Version
		return o
	})
	require.NoError(t, l.err)
	require.NoError(t, r.err)
	require.Equal(t, bob, l.theirs)
	require.Equal(t, alice, r.theirs)
	require.Equal(t, uint16(tls.VersionTLS13), version)
}

func TestTLSNeedsTheSecret(t *testing.T) {
	sc, cc, err := TLS()
	require.NoError(t, err)
	for _, pair := range [][2][]byte{{secret, other}, {other, secret}} {
		l, r := overTCP(t, over(tls.Client, cc, client(pair[0])), over(tls.Server, sc, server(pair[1], welcome)))
		require.ErrorIs(t, l.err, ErrSecret)
		require.ErrorIs(t, r.err, ErrSecret)
	}
}

// TestTLSTellsNothingOfTheSecret compares what strangers can see of two processes that share a
// secret: the certificates have no key in common. They had, when the key was made from the secret,
// and whoever connected could try guesses on it.
func TestTLSTellsNothingOfTheSecret(t *testing.T) {
	shown := func() any {
		sc, _, err := TLS()
		require.NoError(t, err)
		var key any
		_, r := overTCP(t, func(c net.Conn) outcome {
			s := tls.Client(c, &tls.Config{InsecureSkipVerify: true})
			err := s.Handshake()
			key = s.ConnectionState().PeerCertificates[0].PublicKey
			return outcome{err: err}
		}, over(tls.Server, sc, server(secret, welcome)))
		require.Error(t, r.err)
		return key
	}
	require.NotEqual(t, shown(), shown())
}

func TestTLSIsNotDowngraded(t *testing.T) {
	sc, cc, err := TLS()
	require.NoError(t, err)

	l, r := overTCP(t, client(secret), over(tls.Server, sc, server(secret, welcome)))
	require.ErrorContains(t, l.err, "does it expect TLS?")
	require.ErrorIs(t, r.err, ErrStranger)
	require.ErrorContains(t, r.err, "this side uses TLS, the other side does not")

	l, r = overTCP(t, over(tls.Client, cc, client(secret)), server(secret, welcome))
	require.Error(t, l.err)
	require.ErrorIs(t, r.err, ErrStranger)
	require.ErrorContains(t, r.err, "it uses TLS, this side does not")

	old := cc.Clone()
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	l, r = overTCP(t, over(tls.Client, old, client(secret)), over(tls.Server, sc, server(secret, welcome)))
	require.ErrorIs(t, l.err, ErrTLS)
	require.Error(t, r.err)
}

// TestChallengeIsBoundToTheChannel puts somebody between two sides, who has a TLS session with
// each. He can decrypt and pass on every byte, but not carry the proof from one session to the
// other.
func TestChallengeIsBoundToTheChannel(t *testing.T) {
	sc, cc, err := TLS()
	require.NoError(t, err)
	l, r := relay(func(_ bool, b []byte) ([]byte, bool) { return b, true },
		over(tls.Client, cc, client(secret)), over(tls.Server, sc, server(secret, welcome)))
	require.NoError(t, l.err, "one session from end to end")
	require.NoError(t, r.err)

	between := func(c net.Conn) outcome { // TLS ends here, and another session begins
		return tap(tls.Server(c, sc), cc, over(tls.Server, sc, server(secret, welcome)))
	}
	l, r = overTCP(t, over(tls.Client, cc, client(secret)), between)
	require.ErrorIs(t, l.err, ErrSecret)
	require.ErrorIs(t, r.err, ErrSecret)
}

// tap passes on what is said on c inside a TLS session of its own with the right side, and returns
// how that one ended.
func tap(c net.Conn, cfg *tls.Config, right side) outcome {
	_, o := between(func(d net.Conn) outcome {
		pipe(c, tls.Client(d, cfg), func(_ bool, b []byte) ([]byte, bool) { return b, true })
		return outcome{}
	}, right)
	return o
}
