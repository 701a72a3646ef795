package shm

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func segment(t testing.TB, limit int) *Segment {
	s, err := Create(limit)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func opened(t testing.TB, s *Segment) *Segment {
	o, err := Open(s.File())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, o.Close()) })
	return o
}

func TestTwoMappings(t *testing.T) {
	s := segment(t, 64<<20)
	o := opened(t, s)
	b, err := s.Alloc(100)
	require.NoError(t, err)
	require.Equal(t, make([]byte, 100), b)
	copy(b, "hello")
	off, ok := s.Offset(b)
	require.True(t, ok)
	theirs, ok := o.Bytes(off, 100)
	require.True(t, ok)
	require.Equal(t, b, theirs)
	require.NotSame(t, &b[0], &theirs[0])

	_, ok = o.Offset(b)
	require.False(t, ok, "an address of the other mapping")
	_, ok = s.Offset(make([]byte, 8))
	require.False(t, ok)
	for _, r := range [][2]int{{-1, 1}, {0, -1}, {64 << 20, 1}, {64<<20 - 1, 2}, {1, 1<<63 - 1}, {1<<63 - 1, 1}} {
		_, ok = o.Bytes(r[0], r[1])
		require.False(t, ok, r)
	}
	_, err = o.Alloc(1)
	require.Error(t, err)
	require.Error(t, o.Free(theirs))
}

// Any program of Alloc and Free keeps allocations apart, aligned and zeroed, and
// leaves one free range.
func TestHeap(t *testing.T) {
	s := segment(t, 64<<20)
	rapid.Check(t, func(t *rapid.T) {
		var live [][]byte
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(live) > 0 && rapid.Bool().Draw(t, "free") {
				k := rapid.IntRange(0, len(live)-1).Draw(t, "which")
				require.Equal(t, bytes.Repeat([]byte{byte(len(live[k]))}, len(live[k])), live[k])
				require.NoError(t, s.Free(live[k][:len(live[k])/2]))
				require.Error(t, s.Free(live[k]), "twice")
				live = append(live[:k], live[k+1:]...)
				continue
			}
			n := rapid.OneOf(rapid.IntRange(0, 300), rapid.IntRange(4000, 20000)).Draw(t, "bytes")
			b, err := s.Alloc(n)
			require.NoError(t, err)
			require.Len(t, b, n)
			align := uintptr(64)
			if n >= 4096 {
				align = 4096
			}
			require.Zero(t, uintptr(unsafe.Pointer(unsafe.SliceData(b)))%align)
			require.Equal(t, make([]byte, n), b)
			for j := range b {
				b[j] = byte(n)
			}
			live = append(live, b)
		}
		for _, b := range live {
			require.NoError(t, s.Free(b))
		}
		allocated, reserved := s.Live()
		require.Zero(t, allocated)
		require.Equal(t, []span{{headerBytes, reserved}}, s.heap.free)
	})
}

func TestNoSteadyAllocations(t *testing.T) {
	s := segment(t, 64<<20)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		a, _ := s.AllocDirty(100)
		b, _ := s.AllocDirty(10000)
		require.NoError(t, s.Free(a))
		require.NoError(t, s.Free(b))
	}))
}

func TestLimits(t *testing.T) {
	s := segment(t, 3<<20)
	_, err := s.Alloc(4 << 20)
	require.ErrorContains(t, err, "cannot allocate 4194304 bytes")
	_, err = s.Alloc(-1)
	require.Error(t, err)
	_, err = s.Alloc(1<<63 - 1)
	require.Error(t, err)
	b, err := s.Alloc(2 << 20)
	require.NoError(t, err)
	require.NoError(t, s.Free(b))
}

// A machine without memory is an error of Alloc. The kernel is not asked: it
// would end processes to find 4 TiB.
func TestNoMemory(t *testing.T) {
	s := segment(t, 1<<43)
	require.Less(t, available(), int64(1<<42))
	_, err := s.Alloc(1 << 42)
	require.ErrorIs(t, err, unix.ENOMEM)
	b, err := s.Alloc(100)
	require.NoError(t, err)
	require.NoError(t, s.Free(b))
}

// Nobody can take the memory away under another.
func TestSeals(t *testing.T) {
	s := segment(t, 1<<20)
	require.ErrorIs(t, unix.Ftruncate(int(s.File().Fd()), 0), unix.EPERM)

	fd, err := unix.MemfdCreate("loose", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	loose := os.NewFile(uintptr(fd), "loose")
	defer loose.Close()
	_, err = Open(loose)
	require.ErrorContains(t, err, "not sealed")
	_, err = unix.FcntlInt(loose.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
	require.NoError(t, err)
	_, err = Open(loose)
	require.ErrorContains(t, err, "no segment")
	require.NoError(t, loose.Truncate(1<<20))
	_, err = Open(loose)
	require.ErrorContains(t, err, "layout")

	plain, err := os.Create(t.TempDir() + "/file")
	require.NoError(t, err)
	defer plain.Close()
	_, err = Open(plain)
	require.Error(t, err)
}

// What has been allocated outlives Close, until it is freed.
func TestCloseKeepsAllocations(t *testing.T) {
	s, err := Create(1 << 20)
	require.NoError(t, err)
	b, err := s.Alloc(10)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	b[0]++
	_, err = s.Alloc(10)
	require.Error(t, err)
	require.NoError(t, s.Free(b))
	require.Nil(t, s.mem)
	require.Error(t, s.Free(nil))
}

func TestDirectory(t *testing.T) {
	s := segment(t, 1<<20)
	o := opened(t, s)
	_, bell, rung, ok := o.Lookup(7)
	require.False(t, ok)
	found := make(chan int)
	go func() {
		for bell.Load() == rung {
			Wait(bell, rung, time.Minute)
		}
		off, _, _, _ := o.Lookup(7)
		found <- off
	}()
	require.NoError(t, s.Publish(7, 4711))
	require.Equal(t, 4711, <-found)
	s.Retract(7)
	_, _, _, ok = o.Lookup(7)
	require.False(t, ok)
	for i := range entries {
		require.NoError(t, s.Publish(uint64(i+1), i))
	}
	require.ErrorContains(t, s.Publish(1000, 1), "full")
}

func TestWaitEnds(t *testing.T) {
	s := segment(t, 1<<20)
	b, err := s.Alloc(4)
	require.NoError(t, err)
	word := (*atomic.Uint32)(unsafe.Pointer(&b[0]))
	start := time.Now()
	Wait(word, 0, 5*time.Millisecond)
	require.Less(t, time.Since(start), time.Minute)
	Wait(word, 1, time.Hour) // not the value: at once
	Pause(0)
	Pause(-1)
	Pause(10)
	Yield()
}

// TestProcesses plays ping-pong with another process over a futex.
func TestProcesses(t *testing.T) {
	s := segment(t, 1<<20)
	b, err := s.Alloc(64)
	require.NoError(t, err)
	off, _ := s.Offset(b)
	child := exec.Command(os.Args[0], "-test.run=^TestChild$")
	child.Env = append(os.Environ(), fmt.Sprintf("SHM_TEST_OFFSET=%d", off))
	child.ExtraFiles = []*os.File{s.File()}
	child.Stderr = os.Stderr
	require.NoError(t, child.Start())
	word := (*atomic.Uint32)(unsafe.Pointer(&b[0]))
	for i := uint32(0); i < 200; i += 2 {
		word.Store(i + 1)
		Wake(word)
		for word.Load() == i+1 {
			Wait(word, i+1, time.Second)
		}
	}
	require.NoError(t, child.Wait())
	require.EqualValues(t, 200, word.Load())
}

// TestChild is the other process of TestProcesses.
func TestChild(t *testing.T) {
	var off int
	if _, err := fmt.Sscan(os.Getenv("SHM_TEST_OFFSET"), &off); err != nil {
		return
	}
	s, err := Open(os.NewFile(3, "segment"))
	require.NoError(t, err)
	b, ok := s.Bytes(off, 64)
	require.True(t, ok)
	word := (*atomic.Uint32)(unsafe.Pointer(&b[0]))
	for i := uint32(0); i < 200; i += 2 {
		for word.Load() == i {
			Wait(word, i, time.Second)
		}
		word.Store(i + 2)
		Wake(word)
	}
}

func BenchmarkPause(b *testing.B) {
	for b.Loop() {
		Pause(10)
	}
}
