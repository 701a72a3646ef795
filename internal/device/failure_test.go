//go:build linux && cgo

package device

import (
	"regexp"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// TestEveryFailureIsAnError lets every function of the driver fail once, in every method that
// calls it. The error says which it was, nothing is lost, and the same call works the next time.
func TestEveryFailureIsAnError(t *testing.T) {
	c := cuda(t)
	d := open(t, 1)
	s := newStream(t, d)
	e := newEvent(t, d)
	from, to := must(d.NewTimer())(t), must(d.NewTimer())(t)
	m, other, h := alloc(t, d, 64), alloc(t, d, 64), allocHost(t, d, 64)
	mod := kernels(t, d)
	f := kernel(t, mod, "scale_f32")
	require.NoError(t, s.Set(m.Addr(), 0, 64))
	require.NoError(t, from.Record(s))
	require.NoError(t, to.Record(s))
	require.NoError(t, s.Sync())
	one := [3]int{1, 1, 1}

	steps := []struct {
		function string
		context  bool // the method sets the context first
		call     func() error
	}{
		{"cuDriverGetVersion", false, func() error { _, err := Version(); return err }},
		{"cuDeviceGetCount", false, func() error { _, err := Count(); return err }},
		{"cuDeviceGetCount", false, func() error { return closed(Open(0)) }},
		{"cuDeviceGet", false, func() error { return closed(Open(0)) }},
		{"cuDeviceGetName", false, func() error { return closed(Open(0)) }},
		{"cuDeviceGetAttribute", false, func() error { return closed(Open(0)) }},
		{"cuDevicePrimaryCtxRetain", false, func() error { return closed(Open(0)) }},
		{"cuMemGetInfo", true, func() error { _, _, err := d.Memory(); return err }},
		{"cuMemAlloc", true, func() error { return freed(d.Alloc(8)) }},
		{"cuMemAllocHost", true, func() error { return freed(d.AllocHost(8)) }},
		{"cuMemcpyHtoDAsync", true, func() error { return s.CopyToDevice(m.Addr(), h, 0, 64) }},
		{"cuMemcpyDtoHAsync", true, func() error { return s.CopyToHost(h, 0, m.Addr(), 64) }},
		{"cuMemcpyDtoDAsync", true, func() error { return s.CopyDevice(m.Addr(), other.Addr(), 64) }},
		{"cuMemsetD8Async", true, func() error { return s.Set(m.Addr(), 0, 64) }},
		{"cuStreamCreateWithPriority", true, func() error { return closed(d.NewStream()) }},
		{"cuStreamCreateWithPriority", true, func() error { return closed(d.NewUrgentStream()) }},
		{"cuCtxGetStreamPriorityRange", true, func() error { return closed(d.NewUrgentStream()) }},
		{"cuStreamSynchronize", true, s.Sync},
		{"cuStreamQuery", true, func() error { _, err := s.Query(); return err }},
		{"cuStreamWaitEvent", true, func() error { return s.Wait(e) }},
		{"cuEventCreate", true, func() error { return closed(d.NewEvent()) }},
		{"cuEventCreate", true, func() error { return closed(d.NewTimer()) }},
		{"cuEventRecord", true, func() error { return e.Record(s) }},
		{"cuEventQuery", true, func() error { _, err := e.Query(); return err }},
		{"cuEventSynchronize", true, e.Sync},
		{"cuEventElapsedTime", true, func() error { _, err := to.Elapsed(from); return err }},
		{"cuModuleLoadDataEx", true, func() error {
			m, err := d.LoadModule([]byte(".version 6.3"))
			if err != nil {
				return err
			}
			return m.Unload()
		}},
		{"cuModuleGetFunction", true, func() error { _, err := mod.Function("add_f32"); return err }},
		{"cuFuncGetParamInfo", false, func() error { _, err := mod.Function("add_f32"); return err }},
		{"cuFuncSetAttribute", true, func() error { return f.SetShared(1 << 16) }},
		{"cuLaunchKernel", true, func() error { return f.Launch(s, one, one, 0, m, float32(1), int32(1)) }},
	}
	fails := func(function string, call func() error) {
		t.Helper()
		const code = 999 // that no step has on its own, and the double does not describe
		c.Fail(function, 1, code)
		err := call()
		var failed *Error
		require.ErrorAs(t, err, &failed, function)
		require.Equal(t, Error{Op: function, Code: code, Text: "unknown to this driver, no description"}, *failed)
		require.NotErrorIs(t, err, ErrUnavailable)
		require.NotErrorIs(t, err, ErrClosed)
	}
	tested := map[string]bool{"cuInit": true, "cuCtxSetCurrent": true, "cuGetErrorName": true, "cuGetErrorString": true}
	for _, step := range steps {
		tested[step.function] = true
		fails(step.function, step.call)
		if step.context {
			fails("cuCtxSetCurrent", step.call)
			before := c.Calls("cuCtxSetCurrent")
			require.NoError(t, step.call(), step.function)
			require.Greater(t, c.Calls("cuCtxSetCurrent"), before, step.function)
		}
		require.NoError(t, step.call(), step.function)
	}

	// What cannot be closed stays open.
	a, b := must(d.Alloc(8))(t), must(d.AllocHost(8))(t)
	s2, mod2 := must(d.NewStream())(t), must(d.LoadModule([]byte(".version 6.3")))(t)
	d2 := must(Open(2))(t)
	for function, call := range map[string]func() error{
		"cuMemFree": a.Free, "cuMemFreeHost": b.Free, "cuStreamDestroy": s2.Close, "cuEventDestroy": from.Close,
		"cuModuleUnload": mod2.Unload, "cuDevicePrimaryCtxRelease": d2.Close,
	} {
		tested[function] = true
		fails(function, call)
		if function != "cuDevicePrimaryCtxRelease" {
			fails("cuCtxSetCurrent", call)
		}
		require.NoError(t, call(), function)
		require.ErrorIs(t, call(), ErrClosed, function)
	}
	require.NoError(t, s.Sync())
	require.NoError(t, to.Close())
	for _, function := range driverFunctions(t) {
		require.True(t, tested[function], function)
	}
}

// closed closes what was made.
func closed[T interface{ Close() error }](x T, err error) error {
	if err != nil {
		return err
	}
	return x.Close()
}

// freed frees what was allocated.
func freed[T interface{ Free() error }](x T, err error) error {
	if err != nil {
		return err
	}
	return x.Free()
}

// driverFunctions returns the functions that the package looks for in the driver.
func driverFunctions(t *testing.T) (names []string) {
	for _, match := range regexp.MustCompile(`(?m)^  F\((cu\w+), "`).FindAllStringSubmatch(read(t, "driver_linux.c"), -1) {
		names = append(names, match[1])
	}
	require.Greater(t, len(names), 30)
	return names
}

// TestMisuseIsFound makes the mistakes that the types do not prevent.
func TestMisuseIsFound(t *testing.T) {
	c := cuda(t)
	d := open(t, 0)
	s := newStream(t, d)
	m, h := alloc(t, d, 100), allocHost(t, d, 100)
	gone := must(d.Alloc(100))(t)
	address := gone.Addr()
	require.NoError(t, gone.Free())
	var pageable [1]byte

	answers := map[string]error{
		"cuMemsetD8Async: 101 bytes at .* are not of device memory": s.Set(m.Addr(), 0, 101),
		"cuMemsetD8Async: 1 bytes at .* are not of device memory":   s.Set(m.Addr()-1, 0, 1),
		"cuMemsetD8Async: 2 bytes at .* are freed":                  s.Set(address, 0, 2),
		"cuMemsetD8Async: 3 bytes at .* are not of device memory":   s.Set(h.Addr(), 0, 3),
		"cuMemcpyDtoDAsync: 4 bytes at .* are freed":                s.CopyDevice(m.Addr(), address, 4),
		"cuMemcpyHtoDAsync: 5 bytes at .* are freed":                s.CopyToDevice(address, h, 0, 5),
		"cuMemcpyDtoHAsync: 6 bytes at .* are not of device memory": s.CopyToHost(h, 0, uintptr(unsafe.Pointer(&pageable)), 6),
	}
	reports := c.Reports()
	require.Len(t, reports, len(answers))
	for text, err := range answers {
		var failed *Error
		require.ErrorAs(t, err, &failed, text)
		require.Equal(t, 1, failed.Code, text)
		reported(t, reports, text)
	}

	other := open(t, 1)
	require.ErrorContains(t, newEvent(t, other).Record(s), "an event cannot be recorded in a stream of device 0")
	f := kernel(t, kernels(t, other), "scale_f32")
	err := f.Launch(s, [3]int{1, 1, 1}, [3]int{1, 1, 1}, 0, m, float32(1), int32(1))
	require.ErrorContains(t, err, "device 1: kernel scale_f32: a stream of device 0")
	require.Empty(t, c.Reports())
	require.NoError(t, s.Sync())
}

// reported finds a report among others.
func reported(t *testing.T, reports []string, text string) {
	t.Helper()
	for _, r := range reports {
		if regexp.MustCompile(text).MatchString(r) {
			return
		}
	}
	require.Fail(t, "no report", "%s in %q", text, reports)
}

// TestFreeingTooEarlyIsAFault frees memory that a stream still is to write. It is the stream that
// finds out, and the device is of no more use.
func TestFreeingTooEarlyIsAFault(t *testing.T) {
	c := cuda(t)
	d, err := Open(0)
	require.NoError(t, err)
	s, e := must(d.NewStream())(t), must(d.NewEvent())(t)
	m, other := must(d.Alloc(8))(t), must(d.Alloc(8))(t)
	c.Pause(t, s.Handle())
	require.NoError(t, s.Set(m.Addr(), 1, 8))
	require.NoError(t, e.Record(s))
	require.NoError(t, m.Free())
	c.Resume(t, s.Handle())

	var failed *Error
	require.ErrorAs(t, s.Sync(), &failed)
	require.Equal(t, 700, failed.Code)
	reported(t, c.Reports(), "cuMemsetD8Async, running: 8 bytes at .* are freed")
	require.ErrorAs(t, s.Set(other.Addr(), 1, 8), &failed)
	_, err = s.Query()
	require.ErrorAs(t, err, &failed)
	_, err = d.Alloc(1)
	require.ErrorAs(t, err, &failed)

	for _, closing := range []func() error{other.Free, s.Close, e.Close, d.Close} {
		require.NoError(t, closing())
	}
	again := open(t, 0)
	require.NoError(t, newStream(t, again).Sync(), "the context is a new one")
}

// TestManyGoroutines uses one device from many threads at once.
func TestManyGoroutines(t *testing.T) {
	cuda(t)
	d := open(t, 0)
	shared := newStream(t, d)
	scale := kernel(t, kernels(t, d), "scale_f32")
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for range 20 {
				m, err := d.Alloc(64)
				if err != nil {
					t.Error(err)
					return
				}
				h, e := must(d.AllocHost(64))(t), must(d.NewEvent())(t)
				for j := range h.Bytes() {
					h.Bytes()[j] = byte(i)
				}
				for _, err := range []error{
					shared.CopyToDevice(m.Addr(), h, 0, 64),
					scale.Launch(shared, [3]int{1, 1, 1}, [3]int{16, 1, 1}, 0, m, float32(1), int32(16)),
					e.Record(shared), e.Sync(), m.Free(), h.Free(), e.Close(),
				} {
					if err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	group.Wait()
}

// TestClosingOnce lets many goroutines free the same memory: one of them does.
func TestClosingOnce(t *testing.T) {
	cuda(t)
	d := open(t, 0)
	m := must(d.Alloc(8))(t)
	var group sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		group.Go(func() { errs[i] = m.Free() })
	}
	group.Wait()
	freed := 0
	for _, err := range errs {
		if err == nil {
			freed++
		} else {
			require.ErrorIs(t, err, ErrClosed)
		}
	}
	require.Equal(t, 1, freed)
}
