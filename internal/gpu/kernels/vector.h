// Several elements in one access.
#pragma once
#include "device.h"

// load reads the elements of v from p, and store writes them there. Eight of 16 bits are 16 bytes, and
// eight floats twice as many: p has to be aligned to 16 bytes then.
template <class E> DEVICE void load(W<E> (&v)[1], const E *p) { v[0] = wide(*p); }
template <class E> DEVICE void store(E *p, const W<E> (&v)[1]) { narrow(*p, v[0]); }
template <class E> DEVICE void load(float (&v)[8], const E *p) { unpack8<E>(v, *(const pack8 *)p); }
template <class E> DEVICE void store(E *p, const float (&v)[8]) { *(pack8 *)p = repack8<E>(v); }
DEVICE void load(float (&v)[8], const float *p) {
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    float4 q = *(const float4 *)(p + i);
    v[i] = q.x, v[i + 1] = q.y, v[i + 2] = q.z, v[i + 3] = q.w;
  }
}
DEVICE void store(float *p, const float (&v)[8]) {
#pragma unroll
  for (int i = 0; i < 8; i += 4) *(float4 *)(p + i) = make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
}

#define EACH(k, n) _Pragma("unroll") for (int k = 0; k < (n); k++)
