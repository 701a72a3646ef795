package nccl

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/internal/device"
)

// EnvLibrary names the variable that holds the path of libnccl, if the system does not
// find it as libnccl.so.2.
const EnvLibrary = "FSDP_NCCL_LIBRARY"

var library = device.Library{
	What: "NCCL", Names: []string{"libnccl.so.2"}, Variable: EnvLibrary,
	Hint: "install libnccl2, or set the path of libnccl.so.2, as of Python's nvidia-nccl-cu12 or -cu13, in " + EnvLibrary,
	Open: open,
}

// version is the version of the library, once it is loaded.
var version VersionCode

// Load loads NCCL from path. If path is empty, it uses [EnvLibrary] or the system's
// library. Every function that needs NCCL loads it, so Load is only needed to name a
// path, and must be called before everything else. A library of another path cannot be
// loaded later. Load needs no device and no CUDA.
func Load(path string) error { return library.Load(path) }

// Version returns the version of the library.
func Version() (VersionCode, error) {
	if err := Load(""); err != nil {
		return 0, err
	}
	return version, nil
}

// withoutNVLS excludes the algorithms that sum in switches of NVLink.
const withoutNVLS = "^NVLS,NVLSTree"

// Deterministic makes NCCL sum in the same order in every run: it sets the variable NCCL_ALGO so
// that NCCL does not sum in switches of NVLink, which take terms in the order of their arrival.
// NCCL reads the variable when it is loaded, so Deterministic is an error afterwards, and if
// NCCL_ALGO has another value that allows these algorithms. A program that starts with
// NCCL_NVLS_ENABLE=0, or with such a value of NCCL_ALGO, needs no call. All ranks need the same
// algorithms.
func Deterministic() error {
	algo := os.Getenv("NCCL_ALGO")
	switch {
	case excludesNVLS(algo) || os.Getenv("NCCL_NVLS_ENABLE") == "0":
		return nil
	case algo != "":
		return fmt.Errorf("nccl: NCCL_ALGO=%s allows sums in switches of NVLink, whose order differs between runs: set it to %s, or not at all", algo, withoutNVLS)
	case library.Loaded():
		return fmt.Errorf("nccl: NCCL is loaded already and may sum in switches of NVLink, whose order differs between runs: "+
			"ask for deterministic sums before the first use of NCCL, or start the program with NCCL_ALGO=%s", withoutNVLS)
	}
	return os.Setenv("NCCL_ALGO", withoutNVLS)
}

// excludesNVLS reports whether a value of NCCL_ALGO excludes the algorithms for all collectives.
// The value has lists of algorithms with semicolons between: the first for all collectives, the
// others with the name of one. A list that begins with ^ excludes its algorithms.
func excludesNVLS(algo string) bool {
	for i, list := range strings.Split(strings.ToLower(algo), ";") {
		_, names, named := strings.Cut(list, ":")
		if !named {
			names = list
		}
		names, without := strings.CutPrefix(names, "^")
		all := strings.Split(names, ",")
		if slices.Contains(all, "nvls") != without || slices.Contains(all, "nvlstree") != without || i == 0 && (named || names == "") {
			return false
		}
	}
	return true
}

// attach loads NCCL and passes the driver of dev to the shim.
func attach(dev *Device) error {
	if err := Load(""); err != nil {
		return err
	}
	if dev == nil {
		return errors.New("nccl: the device is nil")
	}
	if _, _, err := dev.Memory(); err != nil { // or NCCL leaves a group open on this thread
		return fmt.Errorf("nccl: %w", err)
	}
	return library.Attach(setDriver)
}

// NewUniqueID makes the id of a new communicator. It needs a network interface, which may
// be the loopback, but no device. The rank that has made it must live until all have
// joined.
func NewUniqueID() (UniqueID, error) {
	if err := Load(""); err != nil {
		return UniqueID{}, err
	}
	id, r, detail := uniqueID()
	if r != Success {
		return UniqueID{}, &Error{Call: "ncclGetUniqueId", Result: r, Detail: detail}
	}
	return id, nil
}
