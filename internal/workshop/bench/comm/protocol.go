package comm

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// These are the operations, and the sizes of their tensors: from smallest in factors of 16 up to
// the largest, which is included. A barrier has no tensor and a flag has one element; both count as
// one element. "In turns" means that every rank is the root of one broadcast or gather in turn. So
// none begins before its root has received the one before, whereas a loop from one root measures
// how fast that root sends.
var operations = []string{
	"barrier", "flag", "all-gather", "reduce-scatter", "all-reduce", "broadcast", "broadcast" + inTurns, "gather", "gather" + inTurns,
}

// inTurns is the suffix of operations whose root changes.
const inTurns = "-in-turns"

const (
	elementSize   = 4 // bytes of a float32
	smallest      = 4 << 10
	largestTensor = 1 << 30 // MPI and Gloo count in int
)

// sizes returns the bytes of the tensors to measure op with.
func sizes(op string, largest int) []int {
	if op == "barrier" || op == "flag" {
		return []int{elementSize}
	}
	var list []int
	for s := smallest; s < largest; s *= 16 {
		list = append(list, s)
	}
	return append(list, largest)
}

// command is one line from the driver to a rank; see peers/peer.h for the other end in C.
type command struct {
	check      bool   // run the test pattern once and check the result
	op         string // an operation, perhaps with a variant: flag/ring
	bytes      int    // of the full tensor
	iterations int    // 1 for a check
}

func (c command) String() string {
	if c.check {
		return fmt.Sprintf("check %s %d", c.op, c.bytes)
	}
	return fmt.Sprintf("run %s %d %d", c.op, c.bytes, c.iterations)
}

// parseCommand parses the result of String.
func parseCommand(line string) (command, error) {
	fields := strings.Fields(line)
	wrong := fmt.Errorf("not a command: %.80q", line)
	if len(fields) < 3 {
		return command{}, wrong
	}
	c := command{op: fields[1], iterations: 1}
	numbers := []*int{&c.bytes, &c.iterations}
	switch {
	case fields[0] == "check" && len(fields) == 3:
		c.check, numbers = true, numbers[:1]
	case fields[0] == "run" && len(fields) == 4:
	default:
		return command{}, wrong
	}
	for i, to := range numbers {
		n, err := strconv.Atoi(fields[2+i])
		if err != nil || n < 1 {
			return command{}, wrong
		}
		*to = n
	}
	if c.bytes > largestTensor || c.bytes%elementSize != 0 {
		return command{}, wrong
	}
	return c, nil
}

// parseHello parses the first line of a rank.
func parseHello(line string) (rank, pid int, err error) {
	fields := strings.Fields(line)
	if len(fields) == 3 && fields[0] == "hello" {
		var errRank, errPid error
		rank, errRank = strconv.Atoi(fields[1])
		pid, errPid = strconv.Atoi(fields[2])
		if errRank == nil && errPid == nil && rank >= 0 && pid > 1 {
			return rank, pid, nil
		}
	}
	return 0, 0, fmt.Errorf("not a greeting: %.80q", line)
}

// refusal is the answer of a rank that works, but does not support the command or found the result
// wrong.
type refusal struct{ text string }

func (r refusal) Error() string { return r.text }

// parseReply reads the answer to a command: the seconds that this rank took, or a refusal.
func parseReply(line string) (seconds float64, err error) {
	word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
	switch word {
	case "ok":
		seconds, err = strconv.ParseFloat(rest, 64)
		if err == nil && seconds >= 0 && !math.IsInf(seconds, 1) {
			return seconds, nil
		}
	case "error":
		return 0, refusal{rest}
	}
	return 0, fmt.Errorf("not an answer: %.80q", line)
}

// refused reports whether the rank that returned err can still be used.
func refused(err error) bool {
	var r refusal
	return errors.As(err, &r)
}
