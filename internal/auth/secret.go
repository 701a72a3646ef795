package auth

import (
	"crypto/hkdf"
	"crypto/sha256"
	"fmt"
	"math"
)

// MinSecret is the number of bytes a secret must have. It should be random: openssl rand -hex 32.
const MinSecret = 16

// Public replaces a secret if all processes on the network are trusted.
const Public = "everybody on this network is trusted"

// Check refuses a secret that is missing or short, which protects nothing.
func Check(secret []byte) error {
	if n := len(secret); n < MinSecret {
		return fmt.Errorf("%w: it has %d bytes, at least %d are needed", ErrWeak, n, MinSecret)
	}
	return nil
}

// Guessable reports whether secret looks made up by a person: few different bytes, or words. A
// random secret practically never does. It is for a warning, and not a measure of strength.
func Guessable(secret []byte) bool {
	const enough = 52 // bits; 16 random bytes have 54 if only 11 of them differ
	counts := map[byte]int{}
	words := true
	for _, b := range secret {
		counts[b]++
		words = words && (b >= 'a' && b <= 'z' || b == ' ' || b == '-' || b == '_')
	}
	bits := 0.0 // len(secret) times the entropy of its bytes, were they drawn independently
	for _, n := range counts {
		bits -= float64(n) * math.Log2(float64(n)/float64(len(secret)))
	}
	if words {
		bits /= 2 // letters of a word are not independent
	}
	return bits < enough
}

// Key derives from secret the 32-byte key for one use, by HKDF-SHA256 (RFC 5869). Keys of different
// uses reveal nothing about each other or the secret.
func Key(secret []byte, use string) ([]byte, error) {
	key, err := hkdf.Key(sha256.New, secret, nil, "gofsdp "+use, sha256.Size)
	if err != nil {
		return nil, fmt.Errorf("auth: key for %s: %w", use, err)
	}
	return key, nil
}
