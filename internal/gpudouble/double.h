//go:build ignore

// The side door that tests have to a double, and what one double offers another. Every double
// exports the control functions, which control.c defines.
#ifndef DOUBLE_H
#define DOUBLE_H

#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

// double_fail lets the nth call of a function from now on return code instead of doing anything. An
// nth of 0 forgets what has not happened yet.
// Functions have the names of the documentation, without the version of their ABI: cuMemAlloc, not
// cuMemAlloc_v2.
EXPORT void double_fail(const char *function, long nth, int code);
// double_calls returns how often a function was called.
EXPORT long double_calls(const char *function);
// double_live returns how many there are of something that has to be closed or freed: what
// double_count counts.
EXPORT long double_live(const char *what);
// double_report moves the oldest report of misuse to text. It returns 0 if there is none.
EXPORT int double_report(char *text, size_t size);
// double_delay lets every operation of a stream wait for a random time before it runs, at most max
// microseconds.
EXPORT void double_delay(unsigned max, unsigned seed);

// For the doubles themselves:

// double_enter counts a call of a function and returns the code that a test wants it to fail with,
// or 0. Names are literals, here and of double_count.
int double_enter(const char *function);
// double_misuse reports a mistake of the caller that a real library would answer with an error,
// wrong data, or a crash.
void double_misuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
// double_count adds to the number of what there is of something.
void double_count(const char *what, long delta);
// double_wait waits as double_delay says. Every thread has a state of its own.
void double_wait(unsigned *state);

// Exported by the double of libcuda only:

// double_pause holds a stream back before its next operation until it is resumed. It returns 0, or
// -1 for no stream.
EXPORT int double_pause(uintptr_t stream, int paused);
// MOST_URGENT is the urgency of a stream of the greatest priority. Streams of no priority have 0, and others 1.
enum { MOST_URGENT = 2 };

// double_schedule says which streams of a device run first where no event does: all at once for 0; for 1 those
// of no priority, and more urgent ones no sooner than somebody waits for them and than less urgent ones can;
// for 2 the other way round. With 1 and 2 one runs at a time, and everything happens in one order. Looking at
// an event of an urgent stream is no waiting for it.
EXPORT void double_schedule(int schedule);
// double_omit leaves out the nth wait for an event from now on that a device's streams of an urgency are
// given, or none for 0; -1 changes nothing. It returns how many they were given so far.
EXPORT long double_omit(int device, int urgency, long nth);
// double_attribute changes an attribute of all devices and returns its former value, or -1 if there is no such
// attribute.
EXPORT int double_attribute(int attribute, int value);
// double_ptx lets kernels from now on run with these checks of ptx/ptx.h, and returns those before.
EXPORT unsigned double_ptx(unsigned checks);
// double_pin returns host memory that is the device memory [address, address+size), and the
// device, or NULL if that is not inside one live allocation, which is reported. The memory cannot
// be freed until double_unpin.
EXPORT char *double_pin(uint64_t address, size_t size, int *device);
EXPORT void double_unpin(uint64_t address);

#endif
