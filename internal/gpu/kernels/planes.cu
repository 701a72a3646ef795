// Batch norm (https://arxiv.org/abs/1502.03167) and group norm (https://arxiv.org/abs/1803.08494) of
// images x [n, channels, area], with their gradients. A block has a channel of all images, or a group
// of channels of one. Sums are in double.
#include "sums.h"

// CHANNEL goes over the elements of channel c, as x[at].
#define CHANNEL(c, at) \
  for (u64 i_ = threadIdx.x, at; i_ < n * area && (at = (i_ / area * channels + (c)) * area + i_ % area, true); i_ += blockDim.x)
#define ONE if (threadIdx.x == 0)

// stats writes mean and biased variance of each channel, and what the running ones become. In
// evaluation all are the running ones.
template <class T> DEVICE void stats(T *out, const T *x, const T *mean, const T *variance, u64 n, u64 channels, u64 area, double momentum, int train) {
  __shared__ double warps[2][8][1];
  u64 c = blockIdx.x;
  T *m = out + c, *v = m + channels, *next_m = v + channels, *next_v = next_m + channels;
  if (!train || n * area == 0) {
    ONE *m = *next_m = mean[c], *v = *next_v = variance[c];
    return;
  }
  double sum[1] = {0}, square[1] = {0}, count = n * area;
  CHANNEL(c, at) sum[0] += x[at];
  row_sums(sum, warps[0]);
  sum[0] /= count;
  CHANNEL(c, at) square[0] += (x[at] - sum[0]) * (x[at] - sum[0]);
  row_sums(square, warps[1]);
  square[0] /= count;
  ONE {
    *m = sum[0], *v = square[0];
    *next_m = (1 - momentum) * mean[c] + momentum * *m;
    *next_v = (1 - momentum) * variance[c] + momentum * count / max(1., count - 1) * *v;
  }
}

template <class T>
DEVICE void apply(T *y, const T *x, const T *gain, const T *bias, const T *mean, const T *variance, u64 count, u64 channels, u64 area, double eps) {
  INDEX(count);
  u64 c = i / area % channels;
  y[i] = (x[i] - mean[c]) * (T)(1 / sqrt(variance[c] + eps)) * gain[c] + bias[c];
}

// gradient has those through the statistics too:
//
//	dbias = Σ dy    dgain = Σ dy·x̂    dx = gain·rstd·(dy - dbias/count - x̂·dgain/count)
template <class T>
DEVICE void gradient(T *dx, T *dgain, T *dbias, const T *x, const T *gain, const T *mean, const T *variance, const T *dy, u64 n, u64 channels,
                     u64 area, double eps) {
  __shared__ double warps[8][2];
  u64 c = blockIdx.x;
  double rstd = 1 / sqrt(variance[c] + eps), sums[2] = {0, 0}, count = n * area;
  CHANNEL(c, at) sums[0] += dy[at], sums[1] += dy[at] * (x[at] - mean[c]) * rstd;
  row_sums(sums, warps);
  ONE dbias[c] = sums[0], dgain[c] = sums[1];
  CHANNEL(c, at) dx[at] = gain[c] * rstd * (dy[at] - (sums[0] + (x[at] - mean[c]) * rstd * sums[1]) / count);
}

// A group has each of its channels as one piece of area elements, and all of it is one of width.
template <class T>
DEVICE void groups(T *y, T *stats, const T *x, const T *gain, const T *bias, u64 channels, u64 area, u64 count, double eps) {
  __shared__ double warps[2][8][1];
  u64 width = channels / count, size = width * area, first = blockIdx.x % count * width;
  x += blockIdx.x * size, y += blockIdx.x * size;
  double mean[1] = {0}, square[1] = {0};
  for (u64 i = threadIdx.x; i < size; i += blockDim.x) mean[0] += x[i];
  row_sums(mean, warps[0]);
  mean[0] /= size;
  for (u64 i = threadIdx.x; i < size; i += blockDim.x) square[0] += (x[i] - mean[0]) * (x[i] - mean[0]);
  row_sums(square, warps[1]);
  double rstd = 1 / sqrt(square[0] / size + eps);
  for (u64 i = threadIdx.x; i < size; i += blockDim.x) y[i] = (x[i] - mean[0]) * rstd * gain[first + i / area] + bias[first + i / area];
  ONE stats[2 * blockIdx.x] = mean[0], stats[2 * blockIdx.x + 1] = rstd;
}

// groups_dx is that of layer norm, of a group.
template <class T>
DEVICE void groups_dx(T *dx, const T *x, const T *gain, const T *stats, const T *dy, u64 channels, u64 area, u64 count) {
  __shared__ double warps[8][2];
  u64 width = channels / count, size = width * area, first = blockIdx.x % count * width;
  x += blockIdx.x * size, dx += blockIdx.x * size, dy += blockIdx.x * size;
  double mean = stats[2 * blockIdx.x], rstd = stats[2 * blockIdx.x + 1], sums[2] = {0, 0};
  for (u64 i = threadIdx.x; i < size; i += blockDim.x) {
    double g = (double)gain[first + i / area] * dy[i];
    sums[0] += g, sums[1] += g * (x[i] - mean) * rstd;
  }
  row_sums(sums, warps);
  for (u64 i = threadIdx.x; i < size; i += blockDim.x)
    dx[i] = rstd * ((double)gain[first + i / area] * dy[i] - (sums[0] + (x[i] - mean) * rstd * sums[1]) / size);
}

template <class T>
DEVICE void groups_gain(T *dgain, T *dbias, const T *x, const T *stats, const T *dy, u64 n, u64 channels, u64 area, u64 count) {
  __shared__ double warps[8][2];
  u64 c = blockIdx.x;
  double sums[2] = {0, 0};
  CHANNEL(c, at) {
    const T *s = stats + 2 * (at / (channels * area) * count + c / (channels / count));
    sums[0] += dy[at], sums[1] += (double)dy[at] * (x[at] - s[0]) * s[1];
  }
  row_sums(sums, warps);
  ONE dbias[c] = sums[0], dgain[c] = sums[1];
}

#define PLANES(NAME, T) \
  KERNEL planes_stats_##NAME(T *out, const T *x, const T *mean, const T *variance, u64 n, u64 channels, u64 area, double momentum, int train) { \
    stats(out, x, mean, variance, n, channels, area, momentum, train); \
  } \
  KERNEL planes_apply_##NAME(T *y, const T *x, const T *gain, const T *bias, const T *mean, const T *variance, u64 count, u64 channels, \
                             u64 area, double eps) { \
    apply(y, x, gain, bias, mean, variance, count, channels, area, eps); \
  } \
  KERNEL planes_gradient_##NAME(T *dx, T *dgain, T *dbias, const T *x, const T *gain, const T *mean, const T *variance, const T *dy, u64 n, \
                                u64 channels, u64 area, double eps) { \
    gradient(dx, dgain, dbias, x, gain, mean, variance, dy, n, channels, area, eps); \
  } \
  KERNEL planes_groups_##NAME(T *y, T *stats, const T *x, const T *gain, const T *bias, u64 channels, u64 area, u64 count, double eps) { \
    groups(y, stats, x, gain, bias, channels, area, count, eps); \
  } \
  KERNEL planes_groupsdx_##NAME(T *dx, const T *x, const T *gain, const T *stats, const T *dy, u64 channels, u64 area, u64 count) { \
    groups_dx(dx, x, gain, stats, dy, channels, area, count); \
  } \
  KERNEL planes_groupsgain_##NAME(T *dgain, T *dbias, const T *x, const T *stats, const T *dy, u64 n, u64 channels, u64 area, u64 count) { \
    groups_gain(dgain, dbias, x, stats, dy, n, channels, area, count); \
  }
PLANES(f32, float)
PLANES(f64, double)
