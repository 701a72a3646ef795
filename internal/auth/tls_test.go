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
	sc, cc, err := TLS(secret)
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
	sc, _, err := TLS(secret)
	require.NoError(t, err)
	osc, occ, err := TLS(other)
	require.NoError(t, err)
	_, cc, err := TLS(secret)
	require.NoError(t, err)
	for _, pair := range [][2]*tls.Config{{sc, occ}, {osc, cc}} {
		l, r := overTCP(t, over(tls.Client, pair[1], client(secret)), over(tls.Server, pair[0], server(secret, welcome)))
		require.ErrorIs(t, l.err, ErrSecret)
		require.ErrorIs(t, r.err, ErrTLS)
		require.ErrorContains(t, r.err, "bad certificate")
	}

	// A client that takes any server is still told apart.
	careless := occ.Clone()
	careless.VerifyConnection = nil
	l, r := overTCP(t, over(tls.Client, careless, client(secret)), over(tls.Server, sc, server(secret, welcome)))
	require.ErrorIs(t, r.err, ErrSecret)
	require.Error(t, l.err)

	// So is one without a certificate.
	careless.Certificates = nil
	l, r = overTCP(t, over(tls.Client, careless, client(secret)), over(tls.Server, sc, server(secret, welcome)))
	require.ErrorContains(t, r.err, "certificate")
	require.Error(t, l.err)

	_, _, err = TLS(nil)
	require.ErrorIs(t, err, ErrWeak)
}

func TestTLSIsNotDowngraded(t *testing.T) {
	sc, cc, err := TLS(secret)
	require.NoError(t, err)

	l, r := overTCP(t, client(secret), over(tls.Server, sc, server(secret, welcome)))
	require.ErrorContains(t, l.err, "does it expect TLS?")
	require.ErrorIs(t, r.err, ErrStranger)
	require.ErrorContains(t, r.err, "does not speak TLS")

	l, r = overTCP(t, over(tls.Client, cc, client(secret)), server(secret, welcome))
	require.Error(t, l.err)
	require.ErrorIs(t, r.err, ErrStranger)
	require.ErrorContains(t, r.err, "speaks TLS")

	old := cc.Clone()
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	l, r = overTCP(t, over(tls.Client, old, client(secret)), over(tls.Server, sc, server(secret, welcome)))
	require.ErrorIs(t, l.err, ErrTLS)
	require.Error(t, r.err)
}

// TestChallengeIsBoundToTheChannel puts somebody between two sides whose own TLS configuration
// trusts anybody. He can decrypt and pass on every byte, but not carry the proof from one session
// to the other.
func TestChallengeIsBoundToTheChannel(t *testing.T) {
	sc, _, err := TLS(other)
	require.NoError(t, err)
	sc.ClientAuth, sc.VerifyConnection = tls.NoClientCert, nil
	trusting := &tls.Config{InsecureSkipVerify: true}

	l, r := relay(func(_ bool, b []byte) ([]byte, bool) { return b, true },
		over(tls.Client, trusting, client(secret)), over(tls.Server, sc, server(secret, welcome)))
	require.NoError(t, l.err, "one session from end to end")
	require.NoError(t, r.err)

	between := func(c net.Conn) outcome { // TLS ends here, and another session begins
		return tap(tls.Server(c, sc), trusting, over(tls.Server, sc, server(secret, welcome)))
	}
	l, r = overTCP(t, over(tls.Client, trusting, client(secret)), between)
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
