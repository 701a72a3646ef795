package auth

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"time"
)

// TLS returns configurations that encrypt a connection between holders of secret, without any
// files. Both sides show a certificate of one and the same Ed25519 key, derived from the secret,
// and require exactly that key of the other. Only TLS 1.3 is spoken, and sessions are not resumed.
// The challenge of Client and Server runs inside.
//
// Whoever has the secret can pretend to be either side; that much is true of the challenge as well.
// Recorded traffic stays closed to whoever learns the secret later, as the keys of a session come
// from an ephemeral exchange.
func TLS(secret []byte) (server, client *tls.Config, err error) {
	if len(secret) == 0 {
		return nil, nil, fmt.Errorf("auth: %w: TLS is asked for and there is none", ErrWeak)
	}
	if err := checkLength(secret); err != nil {
		return nil, nil, fmt.Errorf("auth: %w", err)
	}
	seed, err := Key(secret, "tls")
	if err != nil {
		return nil, nil, err
	}
	key := ed25519.NewKeyFromSeed(seed)
	cert, err := certificate(key)
	if err != nil {
		return nil, nil, fmt.Errorf("auth: %w", err)
	}
	base := &tls.Config{
		Certificates:           []tls.Certificate{cert},
		MinVersion:             tls.VersionTLS13,
		SessionTicketsDisabled: true,
		VerifyConnection:       exactly(key.Public().(ed25519.PublicKey)),
	}
	server, client = base.Clone(), base.Clone()
	server.ClientAuth = tls.RequireAnyClientCert // which one, VerifyConnection decides
	client.InsecureSkipVerify = true             // no authority and no names: VerifyConnection knows the key
	return server, client, nil
}

// certificate wraps key in the least that X.509 allows. Nobody looks at anything but the key.
func certificate(key ed25519.PrivateKey) (tls.Certificate, error) {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotBefore:    time.Unix(0, 0),
		NotAfter:     time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), // RFC 5280: no end
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// exactly returns a check that the other side has shown a certificate of key. TLS itself has
// checked that it owns the key.
func exactly(key ed25519.PublicKey) func(tls.ConnectionState) error {
	return func(state tls.ConnectionState) error {
		if len(state.PeerCertificates) > 0 && key.Equal(state.PeerCertificates[0].PublicKey) {
			return nil
		}
		return fmt.Errorf("%w: its certificate has another key", ErrSecret)
	}
}
