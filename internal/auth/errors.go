package auth

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
)

// What can be wrong, apart from a failing connection. Errors of this package wrap these.
var (
	// ErrWeak: our own secret is missing, or too short to guard anything.
	ErrWeak = errors.New("the secret is too weak")
	// ErrSecret: its proof does not fit our secret, or ours not its; or somebody in between has
	// altered a hello.
	ErrSecret = errors.New("the other side has another secret")
	// ErrStranger: what it says is not this protocol.
	ErrStranger = errors.New("a stranger that does not speak this protocol")
	// ErrVersion: it is another version of this library.
	ErrVersion = errors.New("the other side speaks another version of the protocol")
	// ErrTLS: TLS was asked for and the two sides cannot agree.
	ErrTLS = errors.New("no TLS agreement with the other side")
)

// RefusedError is what a client gets when the server knows it for one of its own, but does not want
// it.
type RefusedError struct {
	Reason string // what accept said on the other side
}

func (e *RefusedError) Error() string { return "refused by the other side: " + e.Reason }

// Final tells whether err, of Client, will be the same however often one tries again. Other errors
// are those of a connection: a server that is not ready, or died.
func Final(err error) bool {
	for _, final := range []error{ErrWeak, ErrSecret, ErrStranger, ErrVersion, ErrTLS} {
		if errors.Is(err, final) {
			return true
		}
	}
	var refused *RefusedError
	return errors.As(err, &refused)
}

// explain makes a typed error of what crypto/tls reports as one of its many.
func explain(err error) error {
	var (
		header tls.RecordHeaderError
		verify *tls.CertificateVerificationError
		op     *net.OpError
	)
	switch {
	case errors.As(err, &header):
		return fmt.Errorf("%w: it does not speak TLS, this side does", ErrStranger)
	case errors.As(err, &verify), errors.As(err, &op) && (op.Op == "remote error" || op.Op == "local error"):
		return fmt.Errorf("%w: %w", ErrTLS, err)
	}
	return err
}
