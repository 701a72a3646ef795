package auth

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
)

// Possible errors, apart from a failing connection. Errors of this package wrap these.
var (
	// ErrWeak: our own secret is missing, or too short to protect anything.
	ErrWeak = errors.New("the secret is too weak")
	// ErrSecret: the other side's proof does not fit our secret, or ours does not fit its secret;
	// or a hello was altered on the way.
	ErrSecret = errors.New("the other side has a different secret")
	// ErrStranger: the other side does not use this protocol.
	ErrStranger = errors.New("the other side does not speak this protocol")
	// ErrVersion: the other side has another version of this library.
	ErrVersion = errors.New("the other side speaks another version of the protocol")
	// ErrTLS: TLS was asked for and the two sides cannot agree.
	ErrTLS = errors.New("TLS failed with the other side")
)

// RefusedError is the error of a client that holds the secret, but that the server refuses.
type RefusedError struct {
	Reason string // what accept said on the other side
}

func (e *RefusedError) Error() string { return "refused by the other side: " + e.Reason }

// Final reports whether err, of Client, will be the same however often the caller tries again.
// Other errors are connection errors: a server that is not ready, or died.
func Final(err error) bool {
	for _, final := range []error{ErrWeak, ErrSecret, ErrStranger, ErrVersion, ErrTLS} {
		if errors.Is(err, final) {
			return true
		}
	}
	var refused *RefusedError
	return errors.As(err, &refused)
}

// explain turns the many errors of crypto/tls into a typed error.
func explain(err error) error {
	var (
		header tls.RecordHeaderError
		verify *tls.CertificateVerificationError
		op     *net.OpError
	)
	switch {
	case errors.As(err, &header):
		return fmt.Errorf("%w: this side uses TLS, the other side does not: set FSDP_TLS to the same value on all ranks", ErrStranger)
	case errors.As(err, &verify), errors.As(err, &op) && (op.Op == "remote error" || op.Op == "local error"):
		return fmt.Errorf("%w: %w", ErrTLS, err)
	}
	return err
}
