package nccl

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/gofsdp/gofsdp/internal/device"
)

// EnvLibrary names the variable that holds the path of libnccl, if it is not to be
// found as libnccl.so.2.
const EnvLibrary = "FSDP_NCCL_LIBRARY"

const soname = "libnccl.so.2"

// loaded is the library of this process: there is one, and it is never unloaded.
var loaded struct {
	sync.Mutex
	path    string // "" until then
	version VersionCode
	driver  bool // whether the shim knows the CUDA driver
}

// Load loads NCCL from path, or if that is empty from where [EnvLibrary] or the system
// says. Whatever needs NCCL loads it, so that Load is only needed to name a path, and
// before all else. A library of another path cannot be loaded later. No device is
// needed, and no CUDA.
func Load(path string) error {
	loaded.Lock()
	defer loaded.Unlock()
	return load(path)
}

// load is Load with the lock held.
func load(path string) error {
	if loaded.path != "" {
		if path == "" || path == loaded.path {
			return nil
		}
		return fmt.Errorf("nccl: cannot load %s: %s is loaded already", path, loaded.path)
	}
	if path == "" {
		path = os.Getenv(EnvLibrary)
	}
	if path == "" {
		path = soname
	}
	unusable := &LoadError{
		What: "NCCL", Hint: "install libnccl2, or name the libnccl.so.2 of Python's nvidia-nccl-cu12 or -cu13 in " + EnvLibrary,
	}
	if !builtIn {
		unusable.Hint = "this program was built without cgo or not for Linux"
		return unusable
	}
	v, why, ok := open(path)
	if !ok {
		unusable.Tried = []string{why}
		return unusable
	}
	loaded.path, loaded.version = path, v
	return nil
}

// Version returns the version of the library.
func Version() (VersionCode, error) {
	loaded.Lock()
	defer loaded.Unlock()
	if err := load(""); err != nil {
		return 0, err
	}
	return loaded.version, nil
}

// attach loads NCCL and makes the driver of dev known to the shim.
func attach(dev *Device) error {
	loaded.Lock()
	defer loaded.Unlock()
	if err := load(""); err != nil {
		return err
	}
	if dev == nil {
		return errors.New("nccl: there is no device")
	}
	if _, _, err := dev.Memory(); err != nil { // or NCCL leaves a group open on this thread
		return fmt.Errorf("nccl: %w", err)
	}
	if loaded.driver {
		return nil
	}
	f := device.Symbol("cuCtxSetCurrent")
	if f == 0 {
		return fmt.Errorf("nccl: cuCtxSetCurrent of the CUDA driver is %w", ErrUnavailable)
	}
	setDriver(f)
	loaded.driver = true
	return nil
}

// NewUniqueID makes the id of a new communicator. It needs a network interface, which
// may be the loopback, but no device. The rank that has made it must live until all
// have joined.
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
