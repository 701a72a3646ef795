package kit

import (
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
)

// A Need is something that a test needs and that a device in place of the processor may lack.
type Need string

// These are the needs of tests. The processor meets all of them.
const (
	HostMemory       Need = "what is allocated, and in RAM, is memory of the process"
	Processor        Need = "the processor computes, with its threads, files and memory"
	GroupCollectives Need = "collectives of passes go through Config.Group, where the test counts, delays or checks them"
	OwnOperations    Need = "the test's own operations have no kernels"
	BatchInPlace     Need = "passes read the batch where it is"
	FakeTime         Need = "collectives end in the fake time of a synctest bubble"
	Matrices         Need = "Muon updates the memory of the device"
	EightBits        Need = "gradients travel in 8 bits"
	ActiveRanks      Need = "gradients are divided by the ranks that made a call"
	SecondCopy       Need = "ranks keep a second copy of parameters"
	BiasAlone        Need = "the gradient of a bias is the same if its weight is frozen"
)

// device is the device in place of the processor, or "".
var device = os.Getenv("FSDP_TEST_DEVICE")

// missing has the needs that a device does not meet. A far device is late, and callers cannot
// access its memory. The doubles of GPUs use NCCL's collectives, which wait in streams.
var missing = map[string][]Need{
	"":    nil,
	"far": {HostMemory, Matrices},
	"gpu": {
		HostMemory, Processor, GroupCollectives, OwnOperations, BatchInPlace, FakeTime, EightBits, ActiveRanks, SecondCopy,
		BiasAlone,
	},
}

// Meets reports whether the device meets a need.
func Meets(n Need) bool { return !slices.Contains(missing[device], n) }

// Needs skips a test on a device that does not meet its needs. On the processor it skips nothing.
func Needs(t testing.TB, needs ...Need) {
	t.Helper()
	for _, n := range needs {
		if !Meets(n) {
			t.Skipf("device %q does not meet the need: %s", device, n)
		}
	}
}

// skipExamples adds the examples that need features the device lacks to the -skip flag. Examples
// cannot call Needs.
func skipExamples(examples map[string]Need) error {
	flag.Parse()
	skip := flag.Lookup("test.skip")
	var names []string
	if given := skip.Value.String(); given != "" {
		names = append(names, given)
	}
	for _, name := range SortedKeys(examples) {
		if !Meets(examples[name]) {
			names = append(names, "^"+name+"$")
		}
	}
	return skip.Value.Set(strings.Join(names, "|"))
}
