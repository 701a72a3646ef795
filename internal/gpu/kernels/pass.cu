// What a pass does itself between its calls.
#include "device.h"

// A buffer of a module takes its new value, and the old one its place.
KERNEL pass_swap(u32 *a, u32 *b, u64 n) {
  INDEX(n);
  u32 v = a[i];
  a[i] = b[i], b[i] = v;
}

// The gradient of a loss.
KERNEL pass_set_f32(float *y, float c) {
  INDEX(1);
  y[i] = c;
}
KERNEL pass_set_f64(double *y, double c) {
  INDEX(1);
  y[i] = c;
}
