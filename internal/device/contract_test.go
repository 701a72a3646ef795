//go:build linux && cgo

package device

import (
	"bytes"
	"math"
	"runtime/debug"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// The tests of this file know nothing of the double: with EnvCUDA set, -run Contract runs them on
// a GPU.

func TestContractDevice(t *testing.T) {
	d := gpu(t)
	require.Zero(t, d.Ordinal())
	require.NotEmpty(t, d.Name())
	require.NotZero(t, d.Context())
	v, err := Version()
	require.NoError(t, err)
	require.GreaterOrEqual(t, v, 11000)
	require.NotZero(t, Symbol("cuCtxSetCurrent"))
	require.Zero(t, Symbol("cuNoSuchFunction"))

	n, err := Count()
	require.NoError(t, err)
	for _, ordinal := range []int{-1, n} {
		_, err := Open(ordinal)
		require.ErrorIs(t, err, ErrUnavailable)
		require.ErrorContains(t, err, "device")
	}

	free, total, err := d.Memory()
	require.NoError(t, err)
	require.Greater(t, total, 0)
	m := alloc(t, d, 64<<20)
	less, _, err := d.Memory()
	require.NoError(t, err)
	require.LessOrEqual(t, less, free-m.Len())

	again, err := Open(0)
	require.NoError(t, err)
	require.Equal(t, d.Context(), again.Context(), "all use the primary context")
	require.NoError(t, again.Close())
	require.ErrorIs(t, again.Close(), ErrClosed)
	_, err = again.Alloc(1)
	require.ErrorIs(t, err, ErrClosed)
	_, _, err = again.Memory()
	require.ErrorIs(t, err, ErrClosed)
}

func TestContractMemory(t *testing.T) {
	d := gpu(t)
	s := newStream(t, d)
	m := alloc(t, d, 1000)
	require.Equal(t, 1000, m.Len())
	require.Zero(t, m.Addr()%256)
	h := allocHost(t, d, 1000)
	require.Len(t, h.Bytes(), 1000)
	require.NotZero(t, h.Addr())

	for i := range h.Bytes() {
		h.Bytes()[i] = byte(i)
	}
	want := bytes.Clone(h.Bytes())
	other := alloc(t, d, 1000)
	require.NoError(t, s.Set(other.Addr(), 7, 1000))
	require.NoError(t, s.CopyToDevice(m.Addr(), h, 0, 1000))
	require.NoError(t, s.CopyDevice(other.Addr()+10, m.Addr()+20, 300))
	require.NoError(t, s.CopyToHost(h, 500, other.Addr()+5, 400))
	require.NoError(t, s.Sync())
	copy(want[500:], bytes.Repeat([]byte{7}, 400))
	copy(want[505:], want[20:320])
	require.Equal(t, want, h.Bytes())
	require.Equal(t, want[20:320], get(t, d, s, m.Addr()+20, 300))

	// The device's memory is not the host's.
	_, err := d.Alloc(-1)
	require.ErrorContains(t, err, "-1 bytes")
	_, err = d.AllocHost(-1)
	require.ErrorContains(t, err, "-1 bytes")
	_, total, err := d.Memory()
	require.NoError(t, err)
	_, err = d.Alloc(2 * total)
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, "cuMemAlloc", e.Op)
	require.Equal(t, 2, e.Code)
	require.ErrorContains(t, err, "device 0")
	require.ErrorContains(t, err, "out of memory")
}

func TestContractNothing(t *testing.T) {
	d := gpu(t)
	s := newStream(t, d)
	m, h := alloc(t, d, 0), allocHost(t, d, 0)
	require.Zero(t, m.Addr())
	require.Empty(t, h.Bytes())
	require.NoError(t, s.CopyToDevice(0, h, 0, 0))
	require.NoError(t, s.CopyToHost(h, 0, 0, 0))
	require.NoError(t, s.CopyDevice(0, 0, 0))
	require.NoError(t, s.Set(0, 1, 0))
	require.NoError(t, s.Sync())
}

func TestContractBounds(t *testing.T) {
	d := gpu(t)
	s := newStream(t, d)
	m, h := alloc(t, d, 100), allocHost(t, d, 100)
	for _, span := range [][2]int{{-1, 2}, {0, 101}, {1, 100}, {100, 1}, {0, -1}, {101, 0}, {1 << 62, 1 << 62}, {1, 1<<63 - 1}} {
		off, n := span[0], span[1]
		require.ErrorContains(t, s.CopyToDevice(m.Addr(), h, off, n), "are outside the 100 bytes of", "%v", span)
		require.ErrorContains(t, s.CopyToHost(h, off, m.Addr(), n), "are outside the 100 bytes of", "%v", span)
	}
	require.ErrorContains(t, s.CopyDevice(m.Addr(), m.Addr(), -1), "-1 bytes")
	require.ErrorContains(t, s.Set(m.Addr(), 0, -1), "-1 bytes")
	require.ErrorContains(t, s.CopyDevice(m.Addr()+10, m.Addr(), 11), "overlaps")
	require.NoError(t, s.CopyDevice(m.Addr()+10, m.Addr(), 10))
	require.NoError(t, s.Sync())
}

func TestContractClosed(t *testing.T) {
	d := gpu(t)
	m, h := must(d.Alloc(8))(t), must(d.AllocHost(8))(t)
	s, e := must(d.NewStream())(t), must(d.NewEvent())(t)
	module := must(d.LoadModule([]byte(".version 6.3\n.target sm_70\n.address_size 64\n.entry scale_f32(.param .u64 x, .param .f32 factor, .param .u32 n)\n{\nret;\n}\n")))(t)
	f := kernel(t, module, "scale_f32")
	live := newStream(t, d)
	event := newEvent(t, d)

	require.NotZero(t, s.Handle())
	require.NotZero(t, e.Handle())
	require.Same(t, d, s.Device())
	err := d.Close()
	require.ErrorContains(t, err, "device 0")
	require.ErrorContains(t, err, "1 × memory (8 bytes), 1 × pinned host memory (8 bytes), 2 × stream, 2 × event, 1 × module")

	for name, closing := range map[string]func() error{
		"Memory.Free": m.Free, "HostMemory.Free": h.Free, "Stream.Close": s.Close, "Event.Close": e.Close, "Module.Unload": module.Unload,
	} {
		require.NoError(t, closing(), name)
		require.ErrorIs(t, closing(), ErrClosed, name)
	}
	require.Zero(t, m.Addr())
	require.Zero(t, h.Addr())
	require.Nil(t, h.Bytes())
	require.Zero(t, s.Handle())
	require.Zero(t, e.Handle())

	calls := map[string]error{
		"Sync": s.Sync(), "Wait": s.Wait(event), "Wait of": live.Wait(e), "Set": s.Set(0, 0, 1),
		"CopyDevice": s.CopyDevice(0, 256, 1), "CopyToDevice": live.CopyToDevice(0, h, 0, 1), "CopyToHost": live.CopyToHost(h, 0, 0, 1),
		"Record": e.Record(live), "Record in": event.Record(s), "Event.Sync": e.Sync(),
		"Launch": f.Launch(live, [3]int{1, 1, 1}, [3]int{1, 1, 1}, 0, uintptr(0), float32(0), int32(0)),
	}
	_, calls["Query"] = s.Query()
	_, calls["Event.Query"] = e.Query()
	_, calls["Elapsed"] = e.Elapsed(event)
	_, calls["Elapsed since"] = event.Elapsed(e)
	_, calls["Function"] = module.Function("scale_f32")
	calls["zero Memory"] = new(Memory).Free()
	calls["zero Stream"] = new(Stream).Sync()
	for name, err := range calls {
		require.ErrorIs(t, err, ErrClosed, name)
	}
}

// must makes the test fail if there is an error.
func must[T any](x T, err error) func(testing.TB) T {
	return func(t testing.TB) T { t.Helper(); require.NoError(t, err); return x }
}

func TestContractEvents(t *testing.T) {
	d := gpu(t)
	a, b := newStream(t, d), newStream(t, d)
	e := newEvent(t, d)
	done, err := e.Query()
	require.NoError(t, err)
	require.True(t, done, "never recorded")
	require.NoError(t, e.Sync())
	require.NoError(t, b.Wait(e))

	m := alloc(t, d, 1<<20)
	require.NoError(t, a.Set(m.Addr(), 1, m.Len()))
	require.NoError(t, e.Record(a))
	require.NoError(t, b.Wait(e))
	require.NoError(t, b.Set(m.Addr(), 2, 1))
	require.NoError(t, e.Record(b)) // the same event again
	require.NoError(t, e.Sync())
	done, err = e.Query()
	require.NoError(t, err)
	require.True(t, done)
	require.NoError(t, b.Sync())
	done, err = b.Query()
	require.NoError(t, err)
	require.True(t, done)
	require.Equal(t, []byte{2, 1}, get(t, d, a, m.Addr(), 2))
}

func TestContractTimers(t *testing.T) {
	d := gpu(t)
	s := newStream(t, d)
	from, to := must(d.NewTimer())(t), must(d.NewTimer())(t)
	m := alloc(t, d, 1<<20)
	require.NoError(t, from.Record(s))
	require.NoError(t, s.Set(m.Addr(), 1, m.Len()))
	require.NoError(t, to.Record(s))
	require.NoError(t, to.Sync())
	took, err := to.Elapsed(from)
	require.NoError(t, err)
	require.Greater(t, took, time.Duration(0))
	require.Less(t, took, time.Minute)
	back, err := from.Elapsed(to)
	require.NoError(t, err)
	require.Equal(t, -took, back)

	e := newEvent(t, d)
	_, err = e.Elapsed(from)
	require.ErrorContains(t, err, "NewTimer")
	_, err = to.Elapsed(e)
	require.ErrorContains(t, err, "NewTimer")
	never := must(d.NewTimer())(t)
	_, err = never.Elapsed(from)
	var failed *Error
	require.ErrorAs(t, err, &failed)
	require.Equal(t, "cuEventElapsedTime", failed.Op)
	for _, e := range []*Event{from, to, never} {
		require.NoError(t, e.Close())
	}
}

func TestContractKernels(t *testing.T) {
	d := gpu(t)
	s := newStream(t, d)
	m := kernels(t, d)
	scale, add := kernel(t, m, "scale_f32"), kernel(t, m, "add_f32")
	const n = 1000
	x, y := alloc(t, d, 4*n), alloc(t, d, 4*n)
	values := make([]float32, n)
	for i := range values {
		values[i] = float32(i)
	}
	put(t, d, s, x.Addr(), bytesOf(values))
	// Ten elements are left out.
	require.NoError(t, scale.Launch(s, [3]int{2, 1, 1}, [3]int{256, 1, 1}, 0, x, float32(3), int32(n-10)))
	require.NoError(t, add.Launch(s, [3]int{8, 1, 1}, [3]int{128, 1, 1}, 0, y.Addr(), x, x.Addr(), uint32(n)))
	got := floats(get(t, d, s, y.Addr(), 4*n))
	for i, v := range got {
		want := 2 * float32(i)
		if i < 512 {
			want *= 3
		}
		require.Equal(t, want, v, i)
	}

	require.Equal(t, []int{8, 4, 4}, scale.Params())
	require.NoError(t, scale.LaunchArgs(s, [3]int{1, 1, 1}, [3]int{2, 1, 1}, 0, []uint64{uint64(y.Addr()), uint64(math.Float32bits(-1)), n}))
	require.Equal(t, []float32{0, -got[1], got[2]}, floats(get(t, d, s, y.Addr(), 12)))

	_, err := m.Function("scale_f3")
	var failed *Error
	require.ErrorAs(t, err, &failed)
	require.Equal(t, "cuModuleGetFunction", failed.Op)
	require.ErrorContains(t, err, "scale_f3")
	one := [3]int{1, 1, 1}
	launches := map[string]error{
		"2 arguments for 3 parameters": scale.Launch(s, one, one, 0, x, float32(1)),
		"argument 1 is a float64":      scale.Launch(s, one, one, 0, x, float64(1), int32(1)),
		"argument 2 is a int,":         scale.Launch(s, one, one, 0, x, float32(1), 1),
		"argument 0 is a <nil>":        scale.Launch(s, one, one, 0, nil, float32(1), int32(1)),
		"argument 0 is a *device.M":    scale.Launch(s, one, one, 0, (*Memory)(nil), float32(1), int32(1)),
		"argument 2 is a int64 of 8":   scale.Launch(s, one, one, 0, x, float32(1), int64(1)),
		"argument 2 is a uint64 of 8":  scale.Launch(s, one, one, 0, x, float32(1), uint64(1)),
		"grid [0 1 1]":                 scale.Launch(s, [3]int{0, 1, 1}, one, 0, x, float32(1), int32(1)),
		"blocks [1 1 -1]":              scale.Launch(s, one, [3]int{1, 1, -1}, 0, x, float32(1), int32(1)),
		"-1 bytes of shared":           scale.Launch(s, one, one, -1, x, float32(1), int32(1)),
		"2 values for 3 parameters":    scale.LaunchArgs(s, one, one, 0, make([]uint64, 2)),
		"bytes of shared memory, the":  scale.SetShared(d.SharedPerBlock() + 1),
		"-1 bytes of shared memory":    scale.SetShared(-1),
		"33 arguments, at most 32":     scale.Launch(s, one, one, 0, make([]any, 33)...),
		"cuLaunchKernel":               scale.Launch(s, one, [3]int{4096, 1, 1}, 0, x, float32(1), int32(1)),
	}
	for text, err := range launches {
		require.ErrorContains(t, err, text)
		require.ErrorContains(t, err, "scale_f32")
		require.ErrorContains(t, err, "device 0")
	}
	require.NoError(t, s.Sync())
}

// TestContractShared checks that a block has more than 48 KiB of shared memory only if its kernel
// asked for it.
func TestContractShared(t *testing.T) {
	d := gpu(t)
	s := newStream(t, d)
	scale := kernel(t, kernels(t, d), "scale_f32")
	x := alloc(t, d, 4)
	one, most := [3]int{1, 1, 1}, d.SharedPerBlock()
	require.Greater(t, most, 48<<10)
	launch := func(shared int) error { return scale.Launch(s, one, one, shared, x, float32(1), int32(1)) }
	require.NoError(t, launch(48<<10))
	var failed *Error
	require.ErrorAs(t, launch(48<<10+1), &failed)
	require.Equal(t, "cuLaunchKernel", failed.Op)
	require.NoError(t, scale.SetShared(most))
	require.NoError(t, launch(most))
	require.NoError(t, s.Sync())
}

// TestContractAttributes checks what a device says of itself.
func TestContractAttributes(t *testing.T) {
	d := gpu(t)
	require.Positive(t, d.Multiprocessors())
	major, _ := d.Capability()
	require.GreaterOrEqual(t, major, 7)
	s, err := d.NewUrgentStream()
	require.NoError(t, err)
	m := alloc(t, d, 4)
	require.NoError(t, s.Set(m.Addr(), 1, 4))
	require.Equal(t, []byte{1, 1, 1, 1}, get(t, d, s, m.Addr(), 4))
	require.NoError(t, s.Close())
}

func TestContractModules(t *testing.T) {
	d := gpu(t)
	_, err := d.LoadModule(nil)
	require.ErrorContains(t, err, "the module is empty")
	var failed *Error
	for image, says := range map[string]string{
		"not a module":              "not recognized",
		".entry lost_its_version()": "not recognized",
		".version 6.3\n.target sm_70\n.address_size 64\n.entry no_name(": "ptxas",
	} {
		_, err = d.LoadModule([]byte(image))
		require.ErrorAs(t, err, &failed, image)
		require.Equal(t, "cuModuleLoadDataEx", failed.Op, image)
		require.ErrorContains(t, err, says, image)
	}
}

// TestContractHostCannotReach checks that an address of device memory is nothing to the host.
func TestContractHostCannotReach(t *testing.T) {
	d := gpu(t)
	address := alloc(t, d, 8).Addr()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	require.Panics(t, func() { _ = *byteAt(&address) })
}

// byteAt returns the byte at an address as if that were the host's.
func byteAt(address *uintptr) *byte { return *(**byte)(unsafe.Pointer(address)) }
