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

// TLS returns configurations that encrypt a connection, without any files. Only TLS 1.3 is allowed,
// and sessions are not resumed. The server shows a certificate of a new random key, which no other
// side can have from before: by itself the TLS session proves nothing about either side. The
// challenge of [Client] and [Server], which runs inside, proves both to each other and that the
// session has these two ends (see the package documentation).
//
// Recorded traffic stays secret even if the secret leaks later, because the keys of a session come
// from an ephemeral exchange.
func TLS() (server, client *tls.Config, err error) {
	cert, err := certificate()
	if err != nil {
		return nil, nil, fmt.Errorf("auth: certificate: %w", err)
	}
	server = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true}
	client = &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true, // the challenge verifies the session
	}
	return server, client, nil
}

// certificate wraps a new key in the least that X.509 allows. No side checks it.
func certificate() (tls.Certificate, error) {
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotBefore:    time.Unix(0, 0),
		NotAfter:     time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), // RFC 5280: no end
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}
