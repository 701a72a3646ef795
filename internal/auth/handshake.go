package auth

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/internal/text"
)

// Timeout is the time a handshake may take when no deadline is given.
const Timeout = 5 * time.Second

const (
	magic   = "GoFSDP\n"
	version = 3
	// maxReason is where the reason of a refusal is cut.
	maxReason = 1 << 10
	// maxBody is the most bytes a message carries.
	maxBody = max(maxHello, maxReason)
)

// kind is the first byte of a message after the greeting. The proof covers it. Each kind is sent by
// one side only, so it also distinguishes the roles.
type kind byte

const (
	kindHello  kind = 'H' // client: its rank and job
	kindAccept kind = 'A' // server: its rank and job
	kindRefuse kind = 'R' // server: why not
	kindSecret kind = 'S' // server: your proof is wrong; it carries none itself
)

// Client proves to the server at the other end of conn that this side has the secret, makes it
// prove the same, and exchanges hellos. The hello returned is the server's. If conn is a *tls.Conn,
// the TLS handshake comes first, if need be.
//
// The handshake ends by deadline, or after Timeout if deadline is zero; conn has no deadline
// afterwards. After an error conn is unusable; the caller must close it.
func Client(conn net.Conn, secret []byte, mine Hello, deadline time.Time) (theirs Hello, err error) {
	s, err := open(conn, secret, deadline)
	if err == nil {
		theirs, err = s.client(mine)
	}
	return theirs, s.end(err)
}

// Server is the accepting side of Client. Once the client has proven itself, accept gets its hello
// and returns the hello to answer with, or an error that refuses. A refusal reaches the client as a
// *RefusedError with the text of accept's error, and Server returns an error that wraps it.
//
// If Server returns an error after accept agreed, the client may not have the answer: the effects
// of accept must be undone.
func Server(conn net.Conn, secret []byte, accept func(theirs Hello) (mine Hello, err error), deadline time.Time) (theirs Hello, err error) {
	s, err := open(conn, secret, deadline)
	if err == nil {
		theirs, err = s.server(accept)
	}
	return theirs, s.end(err)
}

// session is one handshake. The nonces are there once the greetings are exchanged.
type session struct {
	conn    net.Conn
	key     []byte
	channel []byte // names the TLS session below; empty without
	nonces  struct{ client, server [32]byte }
}

// open checks the secret, starts the clock and completes the TLS handshake, if there is one. The
// session is never nil.
func open(conn net.Conn, secret []byte, deadline time.Time) (*session, error) {
	s := &session{conn: conn}
	if err := Check(secret); err != nil {
		return s, err
	}
	if deadline.IsZero() {
		deadline = time.Now().Add(Timeout)
	}
	if err := conn.SetDeadline(deadline); err != nil {
		return s, err
	}
	var err error
	if s.key, err = Key(secret, "challenge"); err != nil {
		return s, err
	}
	if t, ok := conn.(*tls.Conn); ok {
		if err := t.Handshake(); err != nil {
			return s, fmt.Errorf("TLS handshake: %w", err)
		}
		state := t.ConnectionState()
		if s.channel, err = state.ExportKeyingMaterial("EXPORTER-gofsdp-auth", nil, 32); err != nil {
			return s, fmt.Errorf("%w: %w", ErrTLS, err)
		}
	}
	return s, nil
}

// end stops the clock and adds the other side's name to err.
func (s *session) end(err error) error {
	_ = s.conn.SetDeadline(time.Time{}) // fails only where the next use of conn fails anyway
	if err == nil {
		return nil
	}
	return fmt.Errorf("auth: %s: %w", s.conn.RemoteAddr(), explain(err))
}

// client is the left column of the figure in the package documentation.
func (s *session) client(mine Hello) (Hello, error) {
	hello, err := mine.encode()
	if err != nil {
		return Hello{}, err
	}
	rand.Read(s.nonces.client[:])
	if err := s.sendGreeting(s.nonces.client); err != nil {
		return Hello{}, err
	}
	s.nonces.server, err = s.readGreeting()
	switch {
	case errors.Is(err, io.EOF) && s.channel == nil:
		return Hello{}, fmt.Errorf("%w (does it expect TLS?)", err)
	case err != nil:
		return Hello{}, err
	case s.nonces.server == s.nonces.client:
		return Hello{}, fmt.Errorf("%w: it sends back the bytes that it receives", ErrStranger)
	}
	if err := s.send(kindHello, hello, s.prove(kindHello, hello)); err != nil {
		return Hello{}, err
	}
	kind, body, proof, err := s.receive()
	switch {
	case err != nil:
		return Hello{}, err
	case kind == kindHello:
		return Hello{}, fmt.Errorf("%w: unexpected message of kind %q", ErrStranger, kind)
	case kind == kindSecret || !hmac.Equal(proof, s.prove(kind, hello, body)):
		return Hello{}, ErrSecret
	case kind == kindRefuse:
		return Hello{}, &RefusedError{Reason: string(body)}
	}
	return decodeHello(body)
}

// server is the right column.
func (s *session) server(accept func(Hello) (Hello, error)) (theirs Hello, err error) {
	s.nonces.client, err = s.readGreeting()
	rand.Read(s.nonces.server[:])
	if err == nil || errors.Is(err, ErrVersion) { // the greeting tells the client our version
		if err := s.sendGreeting(s.nonces.server); err != nil {
			return Hello{}, err
		}
	}
	if err != nil {
		return Hello{}, err
	}
	kind, hello, proof, err := s.receive()
	switch {
	case err != nil:
		return Hello{}, err
	case kind != kindHello:
		return Hello{}, fmt.Errorf("%w: unexpected message of kind %q", ErrStranger, kind)
	case !hmac.Equal(proof, s.prove(kindHello, hello)):
		_ = s.send(kindSecret, nil, make([]byte, sha256.Size)) // ErrSecret is the error to report
		return Hello{}, ErrSecret
	}
	if theirs, err = decodeHello(hello); err != nil {
		return Hello{}, err
	}
	mine, refusal := accept(theirs)
	if refusal != nil {
		return theirs, s.refuse(theirs, hello, refusal)
	}
	answer, err := mine.encode()
	if err != nil {
		return theirs, s.refuse(theirs, hello, err)
	}
	return theirs, s.send(kindAccept, answer, s.prove(kindAccept, hello, answer))
}

// refuse sends the client the reason and returns the error of this side.
func (s *session) refuse(theirs Hello, hello []byte, why error) error {
	body := []byte(text.Cut(why.Error(), maxReason))
	err := fmt.Errorf("refused rank %d of %d, job %q: %w", theirs.Rank, theirs.Size, theirs.Job, why)
	if told := s.send(kindRefuse, body, s.prove(kindRefuse, hello, body)); told != nil {
		return fmt.Errorf("%w (sending it this reason failed: %w)", err, told)
	}
	return err
}

// sendGreeting sends the first message of either side.
func (s *session) sendGreeting(nonce [32]byte) error {
	b := append([]byte(magic), version)
	if _, err := s.conn.Write(append(b, nonce[:]...)); err != nil {
		return fmt.Errorf("sending the greeting: %w", err)
	}
	return nil
}

// readGreeting returns the nonce of the other side. It detects an unrelated process by its first
// bytes, but reads the whole greeting of another version: closing a TCP connection with unread
// bytes would destroy the answer on its way.
func (s *session) readGreeting() (nonce [32]byte, err error) {
	var b [len(magic) + 1 + len(nonce)]byte
	n, err := io.ReadFull(s.conn, b[:len(magic)])
	if !bytes.Equal(b[:n], []byte(magic)[:n]) {
		return nonce, fmt.Errorf("%w: %s", ErrStranger, looksLike(b[:n]))
	}
	if err == nil {
		_, err = io.ReadFull(s.conn, b[n:])
	}
	if err != nil {
		return nonce, fmt.Errorf("waiting for the greeting: %w", err)
	}
	if v := b[len(magic)]; v != version {
		return nonce, fmt.Errorf("%w: version %d there, %d here: use the same version of this library on all ranks", ErrVersion, v, version)
	}
	return [32]byte(b[len(magic)+1:]), nil
}

// looksLike describes the first bytes, at least one, of an unrelated process.
func looksLike(b []byte) string {
	const alert, handshake = 0x15, 0x16 // record types of TLS, RFC 8446 section 5.1
	if b[0] == alert || b[0] == handshake {
		return "it uses TLS, this side does not: set FSDP_TLS to the same value on all ranks"
	}
	return fmt.Sprintf("its first bytes are %q", b)
}

// prove returns the HMAC over a message of the given kind: the kind, the channel, both nonces and
// the bodies of the exchange so far, each preceded by its length.
func (s *session) prove(k kind, bodies ...[]byte) []byte {
	h := hmac.New(sha256.New, s.key)
	h.Write([]byte{byte(k)})
	for _, b := range append([][]byte{s.channel, s.nonces.client[:], s.nonces.server[:]}, bodies...) {
		h.Write(binary.BigEndian.AppendUint32(nil, uint32(len(b))))
		h.Write(b)
	}
	return h.Sum(nil)
}

// send writes one message: kind, 2 bytes of length, body, proof.
func (s *session) send(k kind, body, proof []byte) error {
	b := binary.BigEndian.AppendUint16([]byte{byte(k)}, uint16(len(body)))
	b = append(append(b, body...), proof...)
	if _, err := s.conn.Write(b); err != nil {
		return fmt.Errorf("sending message %q: %w", k, err)
	}
	return nil
}

// receive reads one message of a known kind. Nothing of it is proven yet.
func (s *session) receive() (k kind, body, proof []byte, err error) {
	var b [3 + maxBody + sha256.Size]byte
	if _, err := io.ReadFull(s.conn, b[:3]); err != nil {
		return 0, nil, nil, fmt.Errorf("waiting for the answer: %w", err)
	}
	k = kind(b[0])
	n := int(binary.BigEndian.Uint16(b[1:]))
	if !strings.ContainsRune("HARS", rune(k)) || n > maxBody {
		return 0, nil, nil, fmt.Errorf("%w: message of kind %q and length %d", ErrStranger, k, n)
	}
	rest := b[3 : 3+n+sha256.Size]
	if _, err := io.ReadFull(s.conn, rest); err != nil {
		return 0, nil, nil, fmt.Errorf("waiting for the end of message %q: %w", k, err)
	}
	return k, rest[:n], rest[n:], nil
}
