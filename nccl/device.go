package nccl

import "github.com/gofsdp/gofsdp/internal/device"

// EnvCUDA names the variable that holds the path of the CUDA driver's library, if the
// system does not find it as libcuda.so.1.
const EnvCUDA = device.EnvCUDA

// The objects of a device. Memory is device memory; HostMemory is host memory that copies
// can run from and to while the program goes on.
type (
	Device     = device.Device
	Memory     = device.Memory
	HostMemory = device.HostMemory
	Stream     = device.Stream
	Event      = device.Event
	Module     = device.Module
	Function   = device.Function
)

// Placed is implemented by vectors of package optim whose elements are in the memory of a
// [Device]: the vectors of a model with fsdp.Config.Device. Place returns the address of
// the first element, and the stream of all work on them between passes. Earlier work is
// then in the stream, and work that is added before the next pass runs before that pass:
// kernels of the user may read and write there. The stream and the memory belong to the
// model, and are valid until it is closed or frozen anew.
type Placed interface {
	Place() (addr uintptr, s *Stream, err error)
}

// CUDAError is the error of a failed call of the CUDA driver.
type CUDAError = device.Error

// LoadCUDA loads the CUDA driver from path. If path is empty, it uses [EnvCUDA] or the
// system's library. It is only needed to name a path, and must be called before
// everything else.
func LoadCUDA(path string) error { return device.Load(path) }

// Devices returns the number of devices.
func Devices() (int, error) { return device.Count() }

// OpenDevice makes the ordinal-th device ready. It uses the primary context, as NCCL
// does. The package comment says which device a rank opens.
func OpenDevice(ordinal int) (*Device, error) { return device.Open(ordinal) }
