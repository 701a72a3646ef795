package launch

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path"
	"strconv"
	"strings"
	"time"
)

// AllowOlder is the variable for fsdp's option of the same name.
const AllowOlder = "FSDP_ALLOW_OLDER"

// Trace is the variable for fsdp.TraceDir in Config.Observers.
const Trace = "FSDP_TRACE"

// Hashes is the variable for fsdp.HashDir in Config.Observers.
const Hashes = "FSDP_HASHES"

// Stragglers is the variable that names a directory for the totals of fsdp.Profile in
// Config.Observers.
const Stragglers = "FSDP_STRAGGLERS"

// JoinRunning, Members, Replace and Witness are the variables for Join, Members, ReplaceTimeout and
// Witness of comm.Config.
const (
	JoinRunning = "FSDP_JOIN"
	Members     = "FSDP_MEMBERS"
	Replace     = "FSDP_REPLACE"
	Witness     = "FSDP_WITNESS"
)

// NoRestart is a part of the text of an error that another start of the same program would also
// return. Fsdprun looks for it in the last output of a rank.
const NoRestart = "a restart does not help"

// unrecorded is a part of the line that Unrecorded prints.
const unrecorded = "not recorded any more"

// Unrecorded reports on standard error that hashes or a trace end early: a full disk must not go
// unnoticed in a program that ignores the error of Close. It does not use the program's log, as
// fsdprun recognizes the line, see IsUnrecorded.
func Unrecorded(rank int, what string, err error) {
	fmt.Fprintf(os.Stderr, "fsdp: rank %d: %s %s: %v: free some space, or choose another directory\n", rank, what, unrecorded, err)
}

// IsUnrecorded reports whether a line of a rank's standard error is from Unrecorded.
func IsUnrecorded(line []byte) bool { return bytes.Contains(line, []byte(unrecorded)) }

// settings reads the variables of this library into e, and checks them.
func settings(v *vars, e *Env) error {
	if err := rendezvous(v.get("FSDP_RENDEZVOUS"), e); err != nil {
		return err
	}
	text, file := v.get("FSDP_SECRET"), v.get("FSDP_SECRET_FILE")
	if text != "" && file != "" {
		return errors.New("FSDP_SECRET and FSDP_SECRET_FILE are both set: unset one of them")
	}
	if text != "" {
		secret, err := parseSecret([]byte(text))
		if err != nil {
			return fmt.Errorf("FSDP_SECRET: %w", err) // without its value
		}
		e.Secret = secret
	}
	e.SecretFile = file
	if name := v.get("FSDP_JOB"); name != "" && e.Job != "" {
		e.Job += "/" + name
	} else if name != "" {
		e.Job = name
	}
	for name, on := range map[string]*bool{JoinRunning: &e.Join, "FSDP_TLS": &e.TLS, "FSDP_TRUST_NETWORK": &e.TrustNetwork} {
		if s := v.get(name); s != "" {
			var err error
			if *on, err = strconv.ParseBool(s); err != nil {
				return fmt.Errorf("%s=%q is neither 1 nor 0", name, s)
			}
		}
	}
	e.Listen, e.Members, e.Witness = v.get("FSDP_LISTEN"), v.get(Members), v.get(Witness)
	if e.Witness != "" && !validAddr(e.Witness) {
		return fmt.Errorf("%s=%q is not host:port", Witness, e.Witness)
	}
	var err error
	if e.Timeout, err = Timeout(v.get); err != nil {
		return err
	}
	if e.JoinTimeout, err = v.duration("FSDP_JOIN_TIMEOUT"); err != nil {
		return err
	}
	if e.Replace, err = v.duration(Replace); err != nil {
		return err
	}
	if e.Transport, err = v.choice("FSDP_TRANSPORT", "auto", "shm", "tcp"); err != nil {
		return err
	}
	e.Checksums, err = v.choice("FSDP_CHECKSUMS", "auto", "off", "on")
	return err
}

// choice reads one of three words, "" if none is set.
func (v *vars) choice(name, a, b, c string) (string, error) {
	switch text := v.get(name); text {
	case "", a, b, c:
		return text, nil
	default:
		return "", fmt.Errorf("%s=%q is not %s, %s or %s", name, text, a, b, c)
	}
}

// duration reads a limit of time, 0 if none is set.
func (v *vars) duration(name string) (time.Duration, error) {
	text := v.get(name)
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%s=%q is not a duration such as 90s", name, text)
	}
	return d, nil
}

// Timeout returns the value of FSDP_TIMEOUT, or 0 if it is not set.
func Timeout(get func(string) string) (time.Duration, error) {
	return (&vars{get: get}).duration("FSDP_TIMEOUT")
}

// rendezvous sets Addr or Dir from a URL, if there is one.
func rendezvous(text string, e *Env) error {
	if text == "" {
		return nil
	}
	wrong := fmt.Errorf("FSDP_RENDEZVOUS=%q is not tcp://host:port or file:///dir", text)
	u, err := url.Parse(text)
	if err != nil || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return wrong
	}
	if e.Source == "" {
		return fmt.Errorf("FSDP_RENDEZVOUS=%q is set, but no launcher's variables are: set RANK and WORLD_SIZE too", text)
	}
	switch {
	case u.Scheme == "tcp" && u.Path == "" && validAddr(u.Host):
		e.Addr, e.Dir = u.Host, ""
	case u.Scheme == "file" && u.Host == "" && path.IsAbs(u.Path):
		e.Addr, e.Dir = "", u.Path
	default:
		return wrong
	}
	return nil
}

// validAddr reports whether addr is host:port.
func validAddr(addr string) bool {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || host == "" {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

// nextPort returns addr with the port one higher, or lower for the last.
func nextPort(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	n, err2 := strconv.Atoi(port)
	if err != nil || err2 != nil {
		return addr
	}
	if n == 65535 {
		n -= 2
	}
	return net.JoinHostPort(host, strconv.Itoa(n+1))
}

// MinSecret is the number of bytes below which a secret can be guessed.
const MinSecret = 16

// maxSecret is the largest size of a secret's file, in bytes.
const maxSecret = 64 << 10

// ReadSecret returns the key in the file that FSDP_SECRET_FILE names, and the file's mode.
func ReadSecret(file string) (key []byte, mode fs.FileMode, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	if err == nil && len(text) > maxSecret {
		err = fmt.Errorf("%s has more than %d bytes, which is too long for a secret", file, maxSecret)
	}
	if err != nil {
		return nil, 0, err
	}
	key, err = parseSecret(text)
	return key, info.Mode(), err
}

// parseSecret returns the key in text, the value of FSDP_SECRET or the content of FSDP_SECRET_FILE:
// the bytes that it encodes in hex, or else the text itself, without surrounding blanks.
func parseSecret(text []byte) ([]byte, error) {
	s := strings.TrimSpace(string(text))
	key, err := hex.DecodeString(s)
	if err != nil {
		key = []byte(s)
	}
	if len(key) < MinSecret {
		return nil, fmt.Errorf("a secret must have at least %d bytes (%d hex digits); this one has %d", MinSecret, 2*MinSecret, len(key))
	}
	return key, nil
}
