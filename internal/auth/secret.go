package auth

import (
	"crypto/hkdf"
	"crypto/sha256"
	"fmt"
	"net"
)

// MinSecret is the number of bytes a secret must have. It should be random: openssl rand -hex 32.
const MinSecret = 16

// Check tells whether secret is good enough to guard addr. A short one guards nothing; none at all,
// which lets in whoever can connect, is allowed only on addresses that cannot be reached from
// another host.
func Check(secret []byte, addr net.Addr) error {
	if len(secret) == 0 && !local(addr) {
		return fmt.Errorf("auth: %w: %s can be reached from other hosts and there is none", ErrWeak, addr)
	}
	if err := checkLength(secret); err != nil {
		return fmt.Errorf("auth: %w", err)
	}
	return nil
}

// checkLength refuses short secrets, but not empty ones.
func checkLength(secret []byte) error {
	if n := len(secret); n > 0 && n < MinSecret {
		return fmt.Errorf("%w: it has %d bytes, at least %d are needed", ErrWeak, n, MinSecret)
	}
	return nil
}

// local tells whether addr stays on this host.
func local(addr net.Addr) bool {
	switch a := addr.(type) {
	case *net.TCPAddr:
		return a.IP.IsLoopback()
	case *net.UnixAddr:
		return true
	default:
		return a != nil && a.Network() == "pipe"
	}
}

// Key derives from secret the 32-byte key for one use, by HKDF-SHA256 (RFC 5869). Keys of different
// uses say nothing about each other or the secret.
func Key(secret []byte, use string) ([]byte, error) {
	key, err := hkdf.Key(sha256.New, secret, nil, "gofsdp "+use, sha256.Size)
	if err != nil {
		return nil, fmt.Errorf("auth: key for %s: %w", use, err)
	}
	return key, nil
}
