package nccl

import "github.com/gofsdp/gofsdp/internal/device"

// EnvCUDA names the variable that holds the path of the CUDA driver's library, if it
// is not to be found as libcuda.so.1.
const EnvCUDA = device.EnvCUDA

// What a device has. Memory is device memory, HostMemory is host memory that copies
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

// Placed is what vectors of package optim are whose elements lie in the memory of a [Device]: those of
// a model with fsdp.Config.Device. Place returns the address of the first one, and the stream in which
// all that concerns them runs between passes. What it was given before has then been given to the
// stream, and whatever is given to it before the next pass comes before that pass: kernels of the
// user's may read and write there. The stream and the memory are the model's, and valid until it is
// closed or frozen anew.
type Placed interface {
	Place() (addr uintptr, s *Stream, err error)
}

// CUDAError is a call of the CUDA driver that has failed.
type CUDAError = device.Error

// LoadCUDA loads the CUDA driver from path, or if that is empty from where [EnvCUDA]
// or the system says. It is only needed to name a path, and comes before all else.
func LoadCUDA(path string) error { return device.Load(path) }

// Devices returns the number of devices.
func Devices() (int, error) { return device.Count() }

// OpenDevice makes the ordinal-th device ready. It uses the primary context, as NCCL does. Which
// one a rank opens: see the package comment.
func OpenDevice(ordinal int) (*Device, error) { return device.Open(ordinal) }
