// Random numbers that are functions of seed, stream and element: those of package rng, and dropout.
#include "map.h"

// mix and hash are those of kernel/vec.Dropout.
DEVICE u64 mix(u64 x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
  x = (x ^ x >> 27) * 0x94D049BB133111EB;
  return x ^ x >> 31;
}

DEVICE u32 hash(u32 h, u32 key) {
  h = (h ^ h >> 16) * 0x7FEB352D;
  h ^= key;
  h = (h ^ h >> 15) * 0x846CA68B;
  return h ^ h >> 16;
}

// Element i is 0 if its hash is below threshold, and factor·x otherwise. base is a multiple of 2³². In
// evaluation y is x.
template <class E> DEVICE void dropout(E *y, const E *x, u64 n, u64 seed, u64 base, u32 threshold, W<E> factor, int train) {
  LOT_OF(E, n);
  if (!train) threshold = 0, factor = 1;
  u64 key = mix(seed ^ mix((base + i) >> 32));
  u32 h = (u32)i + (u32)key;
  map<1, 1>({y + i}, {x + i}, count, [&](auto *r, auto *a) { r[0] = hash(h++, key >> 32) >= threshold ? factor * a[0] : 0; });
}

// A block of a stream: Philox4x32-10 (https://doi.org/10.1145/2063384.2063405) of (block, stream)
// under the seed. Its halves are elements 2·block and 2·block+1.
struct pair { u64 even, odd; };

DEVICE pair philox(u64 seed, u64 stream, u64 block) {
  u32 a = block, b = block >> 32, c = stream, d = stream >> 32, k = seed, l = seed >> 32;
#pragma unroll 1
  for (int round = 0; round < 10; round++) {
    u64 p = 0xD2511F53ull * a, q = 0xCD9E8D57ull * c;
    a = (u32)(q >> 32) ^ b ^ k, b = q, c = (u32)(p >> 32) ^ d ^ l, d = p;
    k += 0x9E3779B9, l += 0xBB67AE85;
  }
  return pair{(u64)b << 32 | a, (u64)d << 32 | c};
}

// number returns the number in [0, 1) of an element's bits.
DEVICE double number(u64 bits) { return (bits >> 11) * 0x1p-53; }

// uniform writes numbers of [a, a + width), at most most. A thread has two, as of gaussian.
template <class T> DEVICE void uniform(T *y, u64 n, u64 seed, u64 stream, double a, double width, T most) {
  INDEX((n + 1) / 2);
  pair p = philox(seed, stream, i);
  y[2 * i] = min((T)__dadd_rn(a, __dmul_rn(width, number(p.even))), most);
  if (2 * i + 1 < n) y[2 * i + 1] = min((T)__dadd_rn(a, __dmul_rn(width, number(p.odd))), most);
}

// gaussian is the transform of Box and Muller.
template <class T> DEVICE void gaussian(T *y, u64 n, u64 seed, u64 stream, double mean, double deviation) {
  INDEX((n + 1) / 2);
  pair p = philox(seed, stream, i);
  double r = sqrt(-2 * log(((p.even >> 11) + 1) * 0x1p-53)), s, c;
  sincospi(2 * number(p.odd), &s, &c);
  y[2 * i] = __dadd_rn(mean, __dmul_rn(deviation, r * c));
  if (2 * i + 1 < n) y[2 * i + 1] = __dadd_rn(mean, __dmul_rn(deviation, r * s));
}

// binomial counts which of the trials that an element has are below probability.
template <class T> DEVICE void binomial(T *y, u64 n, u64 seed, u64 stream, u64 trials, double probability) {
  INDEX(n);
  int hits = 0;
#pragma unroll 1
  for (u64 j = i * trials; j < (i + 1) * trials; j++) {
    pair p = philox(seed, stream, j / 2);
    hits += number(j % 2 ? p.odd : p.even) < probability;
  }
  y[i] = hits;
}

#define DROPOUT(T, E) \
  KERNEL random_dropout_##T(E *y, const E *x, u64 n, u64 seed, u64 base, u32 threshold, W<E> factor, int train) { \
    dropout(y, x, n, seed, base, threshold, factor, train); \
  }
TYPES(DROPOUT)

#define RANDOM(NAME, T) \
  KERNEL random_uniform_##NAME(T *y, u64 n, u64 seed, u64 stream, double a, double width, T most) { \
    uniform(y, n, seed, stream, a, width, most); \
  } \
  KERNEL random_gaussian_##NAME(T *y, u64 n, u64 seed, u64 stream, double mean, double deviation) { \
    gaussian(y, n, seed, stream, mean, deviation); \
  } \
  KERNEL random_binomial_##NAME(T *y, u64 n, u64 seed, u64 stream, u64 trials, double probability) { \
    binomial(y, n, seed, stream, trials, probability); \
  }
RANDOM(f32, float)
RANDOM(f64, double)
