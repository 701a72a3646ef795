package comm

import (
	"fmt"
	"log/slog"
	"time"
)

// Transport is how the ranks of a group exchange data. The zero value is Auto.
type Transport uint8

// The transports.
const (
	Auto         Transport = iota // shared memory inside a host, TCP between hosts
	SharedMemory                  // all ranks are on one host
	TCP                           // also inside a host
)

var transportNames = [...]string{"auto", "shm", "tcp"}

// String returns the name that [ParseTransport] understands.
func (t Transport) String() string {
	if int(t) >= len(transportNames) {
		return fmt.Sprintf("Transport(%d)", uint8(t))
	}
	return transportNames[t]
}

// ParseTransport returns the transport called auto (or ""), shm or tcp.
func ParseTransport(name string) (Transport, error) {
	for i, n := range transportNames {
		if n == name {
			return Transport(i), nil
		}
	}
	if name == "" {
		return Auto, nil
	}
	return 0, fmt.Errorf("comm: no transport %q, want one of %q", name, transportNames)
}

// Checksums says which data between ranks travels with checksums. The zero value is
// ChecksumsAuto.
//
// A payload that is damaged on its way fails the group with a [RankError] that wraps ErrDamaged and
// names the rank that sent it, the one that got it, and the collective. Any flips within 32 bits in
// a row are found, and all but one in 2³² of others, also in the memory of ranks that pass data on:
// it keeps its sum. That is no protection against somebody who changes data on purpose: TLS is.
// Headers and control messages are always protected. Ranks that share memory read each other's in
// place: there is no wire, memory has checks of its own, and sums would cost a second pass over all
// data.
type Checksums uint8

// The choices of checksums. All ranks have to make the same one.
const (
	ChecksumsAuto Checksums = iota // over TCP without TLS, which has checks of its own
	ChecksumsOff                   // nowhere
	ChecksumsOn                    // over TCP and TLS
)

var checksumsNames = [...]string{"auto", "off", "on"}

// String returns the name that [ParseChecksums] understands.
func (c Checksums) String() string {
	if int(c) >= len(checksumsNames) {
		return fmt.Sprintf("Checksums(%d)", uint8(c))
	}
	return checksumsNames[c]
}

// ParseChecksums returns the choice called auto (or ""), off or on.
func ParseChecksums(name string) (Checksums, error) {
	for i, n := range checksumsNames {
		if n == name {
			return Checksums(i), nil
		}
	}
	if name == "" {
		return ChecksumsAuto, nil
	}
	return 0, fmt.Errorf("comm: no checksums %q, want one of %q", name, checksumsNames)
}

// Config says how the processes of a job, one per rank, find and trust one another.
type Config struct {
	// Rank is this process's index, 0 <= Rank < Size.
	Rank, Size int
	// LocalRank and LocalSize are the place among the ranks of this host, as the
	// launcher tells (torchrun by LOCAL_RANK, srun by SLURM_LOCALID, mpirun by
	// OMPI_COMM_WORLD_LOCAL_RANK), -1 and 0 if it does not. They are there for the
	// caller, to choose a device for example.
	LocalRank, LocalSize int
	// Rendezvous is where the ranks meet: "tcp://host:port", where rank 0 serves,
	// or "file:///dir", a directory that all of them see.
	Rendezvous string
	// Job names the job and its attempt, in at most 128 bytes. Processes of another
	// job are refused.
	Job string
	// Secret is what the ranks of a job know and nobody else does, at least 16
	// bytes, and random: who listens on the network, or is dialed in place of a
	// rank, can try guesses on it. It may be empty on one host: then only ranks of
	// the same user join, who share a key in /tmp that others cannot read.
	Secret Secret
	// TrustNetwork lets ranks of several hosts do without a Secret. Whoever can
	// reach one can then join, and read and write the job's memory.
	TrustNetwork bool
	// TLS encrypts every TCP connection. Nothing in its handshake is made from
	// Secret, with which the ranks prove inside that they are its two ends. It
	// costs more than half of the bandwidth.
	TLS bool
	// Listen is the interface on which ranks of other hosts reach this one: its name,
	// its address, or a network in which it has one (eth0, 10.0.0.7, 10.0.0.0/24). With ""
	// ranks listen on loopback only.
	//
	// Several with commas between, at most 16, share the data between two ranks: the first of
	// one and the first of the other carry a connection, and so on, around where one rank
	// has fewer, IPv4 with IPv4 and IPv6 with IPv6. All carry as much, at the pace of the
	// slowest. News and the rendezvous use the first alone. An interface that is not answered
	// for 20 s fails the group with an error that names it; the others do not take over.
	Listen string
	// Transport chooses how data travels. With Auto ranks of a host that cannot share
	// memory use sockets, and tell Logger why; with SharedMemory that is an error.
	Transport Transport
	// Checksums chooses which data has checksums, the same on all ranks.
	Checksums Checksums
	// Timeout is how long an operation may make no progress before it fails with
	// ErrTimeout; 0 means 10 minutes. A peer that computes counts as no progress. A
	// peer that has died is noticed at once, and needs no timeout.
	Timeout time.Duration
	// JoinTimeout is how long a rank waits for all others to join; 0 means 5 minutes. It
	// says for whom it waits after 5 s, and then every 30 s.
	JoinTimeout time.Duration
	// Host overrides the identity of this host, by which ranks know that they
	// share memory.
	Host string
	// Logger hears of ranks that do not come, and of strangers and refused connections:
	// the first ten and then one in 10 s. nil stands for slog.Default().
	Logger *slog.Logger
}

// Secret is a key that must not be printed.
type Secret []byte

// String hides the secret.
func (s Secret) String() string { return fmt.Sprintf("(%d secret bytes)", len(s)) }

// GoString hides the secret.
func (s Secret) GoString() string { return s.String() }

// sumsWire reports whether payloads over sockets have checksums.
func (c *Config) sumsWire() bool {
	return c.Checksums == ChecksumsOn || c.Checksums == ChecksumsAuto && !c.TLS
}
