// Convolutions, pooling and patches of images, with their gradients: the sums as they read, without
// the reuse that makes them fast.
#include "sums.h"

// Images x [batch, in, height, width] become [batch, out, rows, cols] by a kernel of kh·kw places, which
// are dy and dx pixels apart. It moves by sy and sx, and begins py and px outside. Patches and pooling
// have no groups, and out is in.
struct geometry { int in, height, width, out, kh, kw, rows, cols, sy, sx, py, px, dy, dx, groups; };
#define GEOMETRY \
  u64 n, int in, int height, int width, int out, int kh, int kw, int rows, int cols, int sy, int sx, int py, int px, int dy, int dx, int groups
#define GIVEN n, geometry{in, height, width, out, kh, kw, rows, cols, sy, sx, py, px, dy, dx, groups}

// A place is that of element i in images of some size.
struct place {
  int b, c, row, col;
  DEVICE place of(u64 i, int channels, int height, int width) {
    return place{(int)(i / width / height / channels), (int)(i / width / height % channels), (int)(i / width % height), (int)(i % width)};
  }
};

// at returns the index of a pixel, and false if it is outside.
DEVICE bool at(u64 &i, u64 plane, int row, int col, int height, int width) {
  i = (plane * height + row) * width + col;
  return row >= 0 && row < height && col >= 0 && col < width;
}

// TAPS goes over the places (k, l) of the kernel.
#define TAPS(g, k, l) _Pragma("unroll 1") for (int k = 0; k < g.kh; k++) _Pragma("unroll 1") for (int l = 0; l < g.kw; l++)

// seen returns the index of the pixel that place (k, l) sees from (row, col) of the result.
DEVICE bool seen(u64 &i, const geometry &g, u64 plane, int row, int col, int k, int l) {
  return at(i, plane, row * g.sy + k * g.dy - g.py, col * g.sx + l * g.dx - g.px, g.height, g.width);
}

// seer returns the index of the element of the result that sees (row, col) from place (k, l).
DEVICE bool seer(u64 &i, const geometry &g, u64 plane, int row, int col, int k, int l) {
  int p = row + g.py - k * g.dy, q = col + g.px - l * g.dx;
  return at(i, plane, p / g.sy, q / g.sx, g.rows, g.cols) && p >= 0 && q >= 0 && p % g.sy == 0 && q % g.sx == 0;
}

template <class T> DEVICE void conv(T *y, const T *x, const T *w, const T *bias, u64 n, geometry g) {
  INDEX(n);
  place p = place::of(i, g.out, g.rows, g.cols);
  int in = g.in / g.groups, first = p.c / (g.out / g.groups) * in;
  T sum = bias ? bias[p.c] : 0;
  for (int c = 0; c < in; c++) TAPS(g, k, l) {
    u64 j;
    if (seen(j, g, (u64)p.b * g.in + first + c, p.row, p.col, k, l)) sum += x[j] * w[(((u64)p.c * in + c) * g.kh + k) * g.kw + l];
  }
  y[i] = sum;
}

template <class T> DEVICE void conv_dx(T *dx, const T *dy, const T *w, u64 n, geometry g) {
  INDEX(n);
  place p = place::of(i, g.in, g.height, g.width);
  int in = g.in / g.groups, out = g.out / g.groups, first = p.c / in * out;
  T sum = 0;
  for (int o = first; o < first + out; o++) TAPS(g, k, l) {
    u64 j;
    if (seer(j, g, (u64)p.b * g.out + o, p.row, p.col, k, l)) sum += dy[j] * w[(((u64)o * in + p.c % in) * g.kh + k) * g.kw + l];
  }
  dx[i] = sum;
}

// conv_dw and conv_db have a block for each sum over all images, of which n are in a batch.
template <class T> DEVICE void conv_dw(T *dw, const T *dy, const T *x, u64 n, geometry g, int acc) {
  __shared__ double warps[8][1];
  place p = place::of(blockIdx.x, g.in / g.groups, g.kh, g.kw);  // b is the output channel
  u64 area = (u64)g.rows * g.cols;
  int plane = p.b / (g.out / g.groups) * (g.in / g.groups) + p.c;
  double sum[1] = {0};
  for (u64 i = threadIdx.x; i < n * area; i += blockDim.x) {
    u64 b = i / area, j;
    if (seen(j, g, b * g.in + plane, i % area / g.cols, i % g.cols, p.row, p.col)) sum[0] += dy[(b * g.out + p.b) * area + i % area] * x[j];
  }
  row_sums(sum, warps);
  if (threadIdx.x == 0) dw[blockIdx.x] = (acc ? dw[blockIdx.x] : 0) + sum[0];
}

template <class T> DEVICE void conv_db(T *db, const T *dy, u64 n, geometry g, int acc) {
  __shared__ double warps[8][1];
  u64 area = (u64)g.rows * g.cols;
  double sum[1] = {0};
  for (u64 i = threadIdx.x; i < n * area; i += blockDim.x) sum[0] += dy[(i / area * g.out + blockIdx.x) * area + i % area];
  row_sums(sum, warps);
  if (threadIdx.x == 0) db[blockIdx.x] = (acc ? db[blockIdx.x] : 0) + sum[0];
}

// Patches are [batch, rows, cols, in·kh·kw].
template <class T> DEVICE void patches(T *y, const T *x, u64 n, geometry g) {
  INDEX(n);
  place tap = place::of(i, g.in, g.kh, g.kw), p = place::of(tap.b, 1, g.rows, g.cols);
  u64 j;
  y[i] = seen(j, g, (u64)p.b * g.in + tap.c, p.row, p.col, tap.row, tap.col) ? x[j] : 0;
}

template <class T> DEVICE void patches_dx(T *dx, const T *dy, u64 n, geometry g) {
  INDEX(n);
  place p = place::of(i, g.in, g.height, g.width);
  T sum = 0;
  TAPS(g, k, l) {
    u64 j;
    if (seer(j, g, p.b, p.row, p.col, k, l)) sum += dy[((j * g.in + p.c) * g.kh + k) * g.kw + l];
  }
  dx[i] = sum;
}

// largest returns the index of the largest element that (row, col) of the result sees, the first of
// those that are equal, or of those that are NaN.
template <class T> DEVICE u64 largest(const T *x, const geometry &g, u64 plane, int row, int col) {
  u64 best = 0, j;
  T most = -INFINITY;
  bool none = true;
  TAPS(g, k, l) if (seen(j, g, plane, row, col, k, l) && (none || x[j] > most || x[j] != x[j] && most == most))
    best = j, most = x[j], none = false;
  return best;
}

template <class T> DEVICE void max_pool(T *y, const T *x, u64 n, geometry g) {
  INDEX(n);
  place p = place::of(i, 1, g.rows, g.cols);  // b is the plane
  y[i] = x[largest(x, g, p.b, p.row, p.col)];
}

template <class T> DEVICE void max_pool_dx(T *dx, const T *x, const T *dy, u64 n, geometry g) {
  INDEX(n);
  place p = place::of(i, 1, g.height, g.width);
  T sum = 0;
  TAPS(g, k, l) {
    u64 j;
    if (!seer(j, g, p.b, p.row, p.col, k, l)) continue;
    place q = place::of(j, 1, g.rows, g.cols);
    if (largest(x, g, q.b, q.row, q.col) == i) sum += dy[j];
  }
  dx[i] = sum;
}

template <class T> DEVICE void avg_pool(T *y, const T *x, u64 n, geometry g) {
  INDEX(n);
  place p = place::of(i, 1, g.rows, g.cols);
  T sum = 0;
  TAPS(g, k, l) {
    u64 j;
    if (seen(j, g, p.b, p.row, p.col, k, l)) sum += x[j];
  }
  y[i] = sum / (g.kh * g.kw);
}

template <class T> DEVICE void avg_pool_dx(T *dx, const T *dy, u64 n, geometry g) {
  INDEX(n);
  place p = place::of(i, 1, g.height, g.width);
  T sum = 0;
  TAPS(g, k, l) {
    u64 j;
    if (seer(j, g, p.b, p.row, p.col, k, l)) sum += dy[j];
  }
  dx[i] = sum / (g.kh * g.kw);
}

#define IMAGES(NAME, T) \
  KERNEL image_conv_##NAME(T *to, const T *x, const T *w, const T *bias, GEOMETRY) { conv(to, x, w, bias, GIVEN); } \
  KERNEL image_convdx_##NAME(T *to, const T *from, const T *w, GEOMETRY) { conv_dx(to, from, w, GIVEN); } \
  KERNEL image_convdw_##NAME(T *to, const T *from, const T *x, GEOMETRY, int acc) { conv_dw(to, from, x, GIVEN, acc); } \
  KERNEL image_convdb_##NAME(T *to, const T *from, GEOMETRY, int acc) { conv_db(to, from, GIVEN, acc); } \
  KERNEL image_patches_##NAME(T *to, const T *from, GEOMETRY) { patches(to, from, GIVEN); } \
  KERNEL image_patchesdx_##NAME(T *to, const T *from, GEOMETRY) { patches_dx(to, from, GIVEN); } \
  KERNEL image_maxpool_##NAME(T *to, const T *from, GEOMETRY) { max_pool(to, from, GIVEN); } \
  KERNEL image_maxpooldx_##NAME(T *to, const T *x, const T *from, GEOMETRY) { max_pool_dx(to, x, from, GIVEN); } \
  KERNEL image_avgpool_##NAME(T *to, const T *from, GEOMETRY) { avg_pool(to, from, GIVEN); } \
  KERNEL image_avgpooldx_##NAME(T *to, const T *from, GEOMETRY) { avg_pool_dx(to, from, GIVEN); }
IMAGES(f32, float)
IMAGES(f64, double)
