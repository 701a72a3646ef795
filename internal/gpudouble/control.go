//go:build linux && cgo

package gpudouble

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

typedef void (*fail_function)(const char *, long, int);
typedef long (*number_function)(const char *);
typedef int (*report_function)(char *, size_t);
typedef void (*delay_function)(unsigned, unsigned);
typedef int (*pause_function)(uintptr_t, int);
typedef unsigned (*ptx_function)(unsigned);
typedef void (*schedule_function)(int);
typedef long (*omit_function)(int, int, long);
typedef int (*attribute_function)(int, int);

static void *find(const char *path, const char *name) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  return library ? dlsym(library, name) : NULL;
}
static void call_fail(void *f, const char *name, long nth, int code) { ((fail_function)f)(name, nth, code); }
static long call_number(void *f, const char *name) { return ((number_function)f)(name); }
static int call_report(void *f, char *text, size_t size) { return ((report_function)f)(text, size); }
static void call_delay(void *f, unsigned max, unsigned seed) { ((delay_function)f)(max, seed); }
static unsigned call_ptx(void *f, unsigned checks) { return ((ptx_function)f)(checks); }
static void call_schedule(void *f, int schedule) { ((schedule_function)f)(schedule); }
static long call_omit(void *f, int device, int urgency, long nth) { return ((omit_function)f)(device, urgency, nth); }
static int call_attribute(void *f, int attribute, int value) { return ((attribute_function)f)(attribute, value); }
static int call_pause(void *f, uintptr_t stream, int paused) { return ((pause_function)f)(stream, paused); }
*/
import "C"

import (
	"strings"
	"testing"
	"time"
	"unsafe"
)

// Control controls a double that this process has loaded.
type Control struct {
	path                            string
	fail, calls, live, report, wait unsafe.Pointer
}

// Open returns the Control of the double at path, which must be loaded.
func Open(t testing.TB, path string) *Control {
	t.Helper()
	c := &Control{path: path}
	for name, f := range map[string]*unsafe.Pointer{
		"double_fail": &c.fail, "double_calls": &c.calls, "double_live": &c.live, "double_report": &c.report, "double_delay": &c.wait,
	} {
		if *f = c.symbol(name); *f == nil {
			t.Fatalf("%s is not loaded, or no double: it has no %s", path, name)
		}
	}
	return c
}

// symbol returns a function of the double, or nil.
func (c *Control) symbol(name string) unsafe.Pointer {
	p, n := C.CString(c.path), C.CString(name)
	defer C.free(unsafe.Pointer(p))
	defer C.free(unsafe.Pointer(n))
	return C.find(p, n)
}

// Fail makes the nth call of a function from now on, counted from 1, return code. Functions have
// their documented names: cuMemAlloc, not cuMemAlloc_v2. An nth of 0 cancels a failure that has not
// happened yet.
func (c *Control) Fail(function string, nth, code int) {
	s := C.CString(function)
	defer C.free(unsafe.Pointer(s))
	C.call_fail(c.fail, s, C.long(nth), C.int(code))
}

// Calls returns the number of calls of a function.
func (c *Control) Calls(function string) int { return c.number(c.calls, function) }

// Live returns the number of live objects of a kind: "memory", "bytes" of it, "host" (pinned
// memory), "stream", "event", "module", "context" of the double of libcuda. Its "instructions" are
// the instructions that kernels have executed, counted for each lane. Sums since the beginning are
// "CTAs", the largest numbers of thread blocks of communicators, "NVLS", the communicators made
// without NCCL_ALGO=^NVLS,NVLSTree, and "multiprocessors", for which products of cuBLASLt were
// planned.
func (c *Control) Live(what string) int { return c.number(c.live, what) }

func (c *Control) number(f unsafe.Pointer, name string) int {
	s := C.CString(name)
	defer C.free(unsafe.Pointer(s))
	return int(C.call_number(f, s))
}

// Reports returns each misuse once. For these the real library would have returned an error or
// wrong data, or would have crashed.
func (c *Control) Reports() (list []string) {
	var text [512]C.char
	for C.call_report(c.report, &text[0], C.size_t(len(text))) != 0 {
		list = append(list, C.GoString(&text[0]))
	}
	return list
}

// Delay makes every operation of a stream wait before it runs, for a random time of at most max.
func (c *Control) Delay(max time.Duration, seed int) {
	C.call_delay(c.wait, C.uint(max.Microseconds()), C.uint(seed))
}

// Capability makes f run with devices of another compute capability.
func (c *Control) Capability(t testing.TB, major int, f func()) {
	t.Helper()
	const computeCapabilityMajor = 75
	set := c.symbol("double_attribute")
	if set == nil {
		t.Fatalf("%s has no double_attribute: it is not the double of libcuda", c.path)
	}
	before := C.call_attribute(set, computeCapabilityMajor, C.int(major))
	defer C.call_attribute(set, computeCapabilityMajor, before)
	f()
}

// Pause stops a stream of the double of libcuda before its next operation, until Resume.
func (c *Control) Pause(t testing.TB, stream uintptr) { t.Helper(); c.pause(t, stream, 1) }

// Resume ends Pause.
func (c *Control) Resume(t testing.TB, stream uintptr) { t.Helper(); c.pause(t, stream, 0) }

func (c *Control) pause(t testing.TB, stream uintptr, paused int) {
	t.Helper()
	if f := c.symbol("double_pause"); f == nil || C.call_pause(f, C.uintptr_t(stream), C.int(paused)) != 0 {
		t.Fatalf("no stream %#x to pause in %s", stream, c.path)
	}
}

// Schedule says which streams of a device run first if no event orders them.
type Schedule int

const (
	// AtOnce makes streams run concurrently.
	AtOnce Schedule = iota
	// UrgentLate runs one stream at a time, always in the same order. Streams of the highest
	// priority run only when another stream or the host waits for them.
	UrgentLate
	// UrgentEarly runs streams of the highest priority as soon as possible, and the others only
	// when something waits for them.
	UrgentEarly
)

// Scheduled runs f with a schedule of the streams of the double of libcuda.
func (c *Control) Scheduled(t testing.TB, s Schedule, f func()) {
	t.Helper()
	set := c.symbol("double_schedule")
	if set == nil {
		t.Fatalf("%s has no streams", c.path)
	}
	C.call_schedule(set, C.int(s))
	defer C.call_schedule(set, 0)
	f()
}

// Omit skips the nth wait for an event, counted from 1, that streams of a device are given from now
// on: only the streams of an urgency, which is 0 without a priority, 2 for the highest and 1
// between them. 0 skips none, and -1 changes nothing. It returns the number of waits so far.
func (c *Control) Omit(device, urgency, nth int) int {
	return int(C.call_omit(c.symbol("double_omit"), C.int(device), C.int(urgency), C.long(nth)))
}

// Check is an additional check of the PTX machine, apart from addresses and alignment, or a way of
// running.
type Check uint

const (
	// Races finds two warps that access the same shared memory, one of them writing, without a
	// barrier between.
	Races Check = 1 << iota
	// Unset finds shared memory that is read before it is written.
	Unset
	// Reverse runs blocks, the warps of each and the lanes of a store in the opposite order.
	// Results must have the same bits.
	Reverse
)

// Checks sets the checks for kernels that start from now on, until the end of the test. By default
// Races and Unset are on.
func (c *Control) Checks(t testing.TB, checks Check) {
	t.Helper()
	before := c.checks(t, checks)
	t.Cleanup(func() { c.checks(t, before) })
}

// Reversed runs f while kernels run reversed, with the checks that are on.
func (c *Control) Reversed(t testing.TB, f func()) {
	t.Helper()
	before := c.checks(t, 0)
	c.checks(t, before|Reverse)
	defer c.checks(t, before)
	f()
}

// checks sets the checks and returns the previous ones.
func (c *Control) checks(t testing.TB, checks Check) Check {
	t.Helper()
	set := c.symbol("double_ptx")
	if set == nil {
		t.Fatalf("%s executes no kernels", c.path)
	}
	return Check(C.call_ptx(set, C.uint(checks)))
}

// Clean fails the test if at its end objects of these kinds are live, or something was misused.
func (c *Control) Clean(t testing.TB, lives ...string) {
	t.Helper()
	if lives == nil {
		lives = []string{"memory", "host", "stream", "event", "module", "context"}
	}
	before := make(map[string]int)
	for _, what := range lives {
		before[what] = c.Live(what)
	}
	t.Cleanup(func() {
		for _, what := range lives {
			if n := c.Live(what) - before[what]; n != 0 {
				t.Errorf("%d × %s left behind", n, what)
			}
		}
		if list := c.Reports(); len(list) > 0 {
			t.Errorf("misuse:\n%s", strings.Join(list, "\n"))
		}
	})
}
