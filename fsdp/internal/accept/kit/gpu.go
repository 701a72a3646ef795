//go:build linux && cgo

package kit

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"

	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/fsdp/internal/engine/gpu"
	"github.com/gofsdp/gofsdp/internal/blaslt"
	"github.com/gofsdp/gofsdp/internal/gpudouble"
	"github.com/gofsdp/gofsdp/nccl"
)

// gpus is the number of devices of the doubles. Rank i of a group uses device i.
const gpus = 16

// UseGPU makes models that are wrapped from here on compute on the doubles of GPUs, until restore.
// Models that keep data in files compute on the host.
func UseGPU() (restore func()) {
	if err := loadDoubles(); err != nil {
		panic(err)
	}
	near := engine.Default
	engine.Default = func(rank int, o engine.HostOptions, dry bool) (engine.Device, error) {
		switch {
		case o.Dir != "":
			return near(rank, o, dry)
		case dry:
			return gpu.NewDry(), nil
		}
		dev, err := nccl.OpenDevice(rank % gpus)
		if err != nil {
			return nil, err
		}
		d, err := gpu.New(dev, gpu.Options{Poison: o.Poison})
		if err != nil {
			return nil, errors.Join(err, dev.Close())
		}
		end := sync.OnceValue(func() error {
			defer unclosed.Delete(dev)
			return errors.Join(d.Close(), dev.Close())
		})
		unclosed.Store(dev, end)
		x := &own{d, end}
		runtime.AddCleanup(x, func(end func() error) { _ = end() }, end)
		return x, nil
	}
	return func() { engine.Default = near }
}

// own is a device with the GPU that was opened for it.
type own struct {
	engine.Device
	end func() error // closes both, once
}

func (o *own) Close() error { return o.end() }

// unclosed has the cleanup functions of devices whose models are not closed.
var unclosed sync.Map // func() error by *nccl.Device

// loadDoubles builds and loads the doubles.
func loadDoubles() (err error) {
	os.Setenv("FSDP_DOUBLE_DEVICES", fmt.Sprint(gpus))
	libs := gpudouble.Build(noTest{})
	if err := nccl.LoadCUDA(libs.CUDA); err != nil {
		return err
	}
	return errors.Join(nccl.Load(libs.NCCL), blaslt.Load(libs.CUBLASLT))
}

// CleanGPU loads the doubles, and fails the test if at its end objects are left or something was
// misused. It first cleans up after earlier tests, whose objects would otherwise be freed at any
// time. No model on a device of UseGPU may be open. It returns the Control of the driver.
func CleanGPU(t testing.TB) *gpudouble.Control {
	if err := loadDoubles(); err != nil {
		t.Fatal(err)
	}
	libs := gpudouble.Build(t)
	unclosed.Range(func(_, end any) bool { _ = end.(func() error)(); return true })
	cuda := gpudouble.Open(t, libs.CUDA)
	cuda.Clean(t)
	gpudouble.Open(t, libs.NCCL).Clean(t, "communicator")
	return cuda
}

// noTest stands for a test before there is one.
type noTest struct{ testing.TB }

func (noTest) Helper()                      {}
func (noTest) Fatalf(f string, args ...any) { panic(fmt.Sprintf(f, args...)) }
