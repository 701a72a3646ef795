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
	return 0, fmt.Errorf("comm: unknown transport %q, want one of %q", name, transportNames)
}

// Checksums says which data between ranks travels with checksums. The zero value is
// ChecksumsAuto.
//
// A payload that is damaged in transit fails the group with a [RankError] that
// wraps ErrDamaged and names the sender, the receiver and the collective.
// Checksums detect any flips within 32 bits in a row, and all but one in 2³² of
// others, also in the memory of ranks that pass data on: the data keeps its
// checksum. They do not protect against deliberate changes; TLS does. Headers and
// control messages are always protected. Ranks that share memory read each
// other's data in place, without checksums: there is no wire, memory has its own
// checks, and sums would cost a second pass over all data.
type Checksums uint8

// The choices of checksums. All ranks must make the same one.
const (
	ChecksumsAuto Checksums = iota // over TCP without TLS, which has checks of its own
	ChecksumsOff                   // nowhere
	ChecksumsOn                    // over TCP and TLS
)

var checksumsNames = [...]string{"auto", "off", "on"}

// String returns the value of FSDP_CHECKSUMS for c.
func (c Checksums) String() string {
	if int(c) >= len(checksumsNames) {
		return fmt.Sprintf("Checksums(%d)", uint8(c))
	}
	return checksumsNames[c]
}

// parseChecksums returns the choice called auto (or ""), off or on.
func parseChecksums(name string) (Checksums, error) {
	for i, n := range checksumsNames {
		if n == name {
			return Checksums(i), nil
		}
	}
	if name == "" {
		return ChecksumsAuto, nil
	}
	return 0, fmt.Errorf("comm: unknown checksums setting %q, want one of %q", name, checksumsNames)
}

// Config says how the processes of a job, one per rank, find and trust each
// other.
type Config struct {
	// Rank is this process's index, 0 <= Rank < Size.
	Rank, Size int
	// LocalRank and LocalSize are the place among the ranks of this host, as the
	// launcher sets it (torchrun in LOCAL_RANK, srun in SLURM_LOCALID, mpirun in
	// OMPI_COMM_WORLD_LOCAL_RANK), or -1 and 0 if it does not. They are for the
	// caller, for example to choose a device.
	LocalRank, LocalSize int
	// Rendezvous is where the ranks meet: "tcp://host:port", where rank 0 serves,
	// or "file:///dir", a directory that all of them see.
	Rendezvous string
	// Job names the job and its attempt, in at most 128 bytes. Processes of other
	// jobs are refused.
	Job string
	// Secret is a key of at least 16 bytes that only the ranks of a job have. It
	// must be random: a process that listens on the network, or is dialed in place
	// of a rank, can try guesses. It may be empty on one host: then only ranks of
	// the same user join, which share a key in /tmp that other users cannot read.
	Secret Secret
	// TrustNetwork allows ranks of several hosts without a Secret. Any process
	// that can reach a rank can then join, and read and write the job's memory.
	TrustNetwork bool
	// TLS encrypts every TCP connection. Nothing in its handshake is derived from
	// Secret. Inside the connection the ranks use Secret to prove that they are
	// its two ends. TLS costs more than half of the bandwidth.
	TLS bool
	// Listen is the interface on which ranks of other hosts reach this one: its
	// name, its address, or a network in which it has an address (eth0, 10.0.0.7,
	// 10.0.0.0/24). If Listen is empty, ranks listen on loopback only.
	//
	// Several interfaces, separated by commas, at most 16, share the data between
	// two ranks. The first interfaces of both carry a connection, then the second
	// ones, and so on; the list of a rank with fewer starts again. IPv4 goes with
	// IPv4 and IPv6 with IPv6. All carry as much, at the pace of the slowest.
	// Control messages, the rendezvous and the agreement of [Reconnect] use the
	// first interface alone. If an
	// interface gets no answer for 20 s, the group fails with an error that names
	// it; the others do not take over.
	Listen string
	// Transport chooses how data travels. With Auto, ranks of a host that cannot
	// share memory use sockets, and Logger reports why; with SharedMemory that is
	// an error.
	Transport Transport
	// Checksums chooses which data has checksums, the same on all ranks.
	Checksums Checksums
	// Timeout is how long an operation may make no progress before it fails with
	// ErrTimeout; 0 means 10 minutes. A peer that computes makes no progress. The
	// death of a peer is noticed at once, without a timeout.
	Timeout time.Duration
	// JoinTimeout is how long a rank waits for all others to join; 0 means 5
	// minutes. After 5 s, and then every 30 s, the rank logs which ones it waits
	// for.
	JoinTimeout time.Duration
	// Join is set in a process that joins a running job, in the place of a lost rank or in addition.
	// It finds the job in Members, and Connect returns when the ranks of the job have called
	// [Reconnect]. Rank is the place that the process prefers, below Size; the group may give it
	// another one.
	Join bool
	// Members is a directory in which a rank records the ranks of each group and their addresses. A
	// process with Join asks the ranks in its directory, over TCP, until one of them answers. Ranks
	// of one host need the same directory, which is new in each attempt. Ranks with Listen may have
	// directories that others do not see. If Members is empty, the directory is the one of Rendezvous,
	// and all ranks see it. If there is none, no process joins.
	Members string
	// ReplaceTimeout is how long [Reconnect] waits for processes with Join that take the places of
	// lost ranks. 0 means that it takes the processes
	// that already wait.
	ReplaceTimeout time.Duration
	// Witness is the host:port of a process that votes on the ranks of the next group if exactly half
	// of the ranks are left, as of two hosts, see [Reconnect]: "fsdprun -serve-witness" on another
	// host, with the same Secret and TLS. All ranks need the same Witness. Connect waits for it. If it
	// is lost later, the job continues, until half of the ranks are lost.
	Witness string
	// Host overrides the identity of this host. Ranks with equal identities are on
	// one host and can share memory; the Transport decides whether they do.
	Host string
	// Logger reports ranks that do not join, unrelated processes and refused
	// connections: the first ten, and then one in 10 s. nil means slog.Default().
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
