package nccl

import (
	"errors"
	"fmt"

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
