package mesh

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"
)

// process describes the process of a rank to the others.
type process struct {
	Host  string // identity of the host: equal for processes that can pass files to each other
	Name  string // of the host, for people
	PID   int    // for people, too
	Start string // for people, too
	Nonce string // distinguishes it from another process under the same rank
	Note  string `json:",omitempty"` // of the caller, see Config
}

func (p process) String() string { return fmt.Sprintf("host %s pid %d", p.Name, p.PID) }

// withStart is String with the start time.
func (p process) withStart() string { return fmt.Sprintf("%v (started %s)", p, p.Start) }

var start = time.Now().Format(time.RFC3339)

// record is the data that a rank publishes in the store.
type record struct {
	process
	Rank int
	Size int    // of the job, as given to this rank
	TCP  string // address of the listener, host:port; of several "eth0 host:port,eth1 host:port"
	Unix string // name of the abstract socket, "" where there is none
}

// visit is the data in the hello of a connection, in addition to the fields of every hello.
type visit struct {
	process
	Channel uint64 // of a data connection

	// Of a data connection between ranks that have several.
	Lane, Lanes int    `json:",omitempty"`
	Over        string `json:",omitempty"`
}

// setback is the error of a rank that has given up joining, for the other ranks.
type setback struct {
	Rank   int
	Reason string
}

func (s *setback) Error() string { return fmt.Sprintf("rank %d gave up: %s", s.Rank, s.Reason) }

// thisProcess describes this process, with the host's identity unless it is given.
func thisProcess(host string) (process, error) {
	name, err := os.Hostname()
	if err != nil {
		return process{}, fmt.Errorf("name of this host: %w", err)
	}
	if host == "" {
		host = hostIdentity(name)
	}
	return process{Host: host, Name: name, PID: os.Getpid(), Start: start, Nonce: rand.Text()[:16]}, nil
}

// encode returns the bytes of a record, visit or setback. They are few and rare, and may be read by
// people.
func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("mesh: %T: %v", v, err)) // strings and numbers only
	}
	return b
}

// decode is the inverse of encode. It refuses data that this package does not write.
func decode[T record | visit | setback](b []byte) (v T, err error) {
	if err := json.Unmarshal(b, &v); err != nil {
		return v, fmt.Errorf("malformed %T: %w", v, err)
	}
	if r, ok := any(v).(record); ok && (r.Size < 1 || r.Rank < 0 || r.Rank >= r.Size || r.TCP == "" || len(r.ifaces()) > maxLanes) {
		return v, errors.New("malformed record of a rank")
	}
	if g, ok := any(v).(visit); ok && (g.Lane < 0 || g.Lanes < 0 || g.Lanes > 2*maxLanes || g.Lane > max(0, g.Lanes-1)) {
		return v, fmt.Errorf("malformed visit: lane %d of %d", g.Lane, g.Lanes)
	}
	return v, nil
}
