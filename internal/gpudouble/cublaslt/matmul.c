//go:build ignore

// Products. They are computed in double precision and rounded once.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cublaslt.h"

// A range is memory of the device that a job uses.
struct range { const char *name; uint64_t at; size_t size; char *bytes; };
enum { A, B, C, AUX, D, VECTOR, WORKSPACE, RANGES };

struct job {
  struct problem p;
  double beta;
  struct range ranges[RANGES];
};

static double get(const char *p, int type, int64_t i) {
  if (type == R_64F) return ((const double *)p)[i];
  if (type == R_32F) return ((const float *)p)[i];
  if (type == R_16F) return (double)((const _Float16 *)p)[i];
  uint32_t u = (uint32_t)((const uint16_t *)p)[i] << 16;
  float f;
  memcpy(&f, &u, sizeof f);
  return f;
}

// narrow rounds to 16 bits, to nearest even, once: what the float in between loses stays visible in
// its last bit.
static uint16_t narrow(double x) {
  float f = (float)x;
  uint32_t u;
  memcpy(&u, &f, sizeof u);
  if (x != x) return u >> 16 | 0x40;
  if ((double)f != x && !(u & 1)) u += fabs(f) < fabs(x) ? 1 : -1;
  return (u + 0x7fff + (u >> 16 & 1)) >> 16;
}

static void put(char *p, int type, int64_t i, double x) {
  if (type == R_64F)
    ((double *)p)[i] = x;
  else if (type == R_32F)
    ((float *)p)[i] = (float)x;
  else if (type == R_16F)
    ((_Float16 *)p)[i] = (_Float16)x;
  else
    ((uint16_t *)p)[i] = narrow(x);
}

// tf32 rounds to 10 bits of mantissa.
static double tf32(double x) {
  float f = (float)x;
  uint32_t u;
  memcpy(&u, &f, sizeof u);
  u = (u + 0x0fff + (u >> 13 & 1)) & ~0x1fffu;
  memcpy(&f, &u, sizeof f);
  return isfinite(x) ? f : x;
}

// unfold returns the rows of a matrix, or its columns, as rows without gaps. It rounds them for
// compute.
static double *unfold(const char *p, const struct object *l, int slice, int columns, int compute) {
  uint64_t n = columns ? l->cols : l->rows, k = columns ? l->rows : l->cols;
  double *x = malloc(n * k * sizeof *x);
  for (uint64_t i = 0; i < n; i++)
    for (uint64_t j = 0; j < k; j++)
    {
      double value = get(p, l->type, slice * l->stride + (int64_t)(columns ? i * l->ld + j : j * l->ld + i));
      x[i * k + j] = compute == COMPUTE_32F_FAST_TF32 ? tf32(value) : value;
    }
  return x;
}

// multiply computes a column of the result at a time: terms are added in order, in all its elements.
// gelu_slope returns the derivative of x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³))).
static double gelu_slope(double x) {
  const double root = 0.79788456080286535588, cube = root * 0.044715;
  double t = tanh(x * (root + cube * x * x));
  return (1 + t) / 2 + x / 2 * (1 - t * t) * (root + 3 * cube * x * x);
}

static void multiply(const struct job *j, int slice) {
  const struct object *d = &j->p.d, *desc = &j->p.desc;
  char *to = j->ranges[D].bytes, *added = j->ranges[C].bytes ? j->ranges[C].bytes : to, *vector = j->ranges[VECTOR].bytes;
  uint64_t rows = d->rows, k = depth(&j->p);
  double *a = unfold(j->ranges[A].bytes, &j->p.a, slice, !desc->transa, desc->compute); // [k, rows]
  double *b = unfold(j->ranges[B].bytes, &j->p.b, slice, !desc->transb, desc->compute); // [cols, k]
  double *sums = malloc(rows * sizeof *sums);
  for (uint64_t n = 0; n < d->cols; n++) {
    memset(sums, 0, rows * sizeof *sums);
    if (desc->epilogue == EPILOGUE_BGRADB) {
      double sum = 0;
      for (uint64_t i = 0; i < k; i++) sum += b[n * k + i];
      put(vector, d->type, (int64_t)n, sum);
    }
    for (uint64_t i = 0; i < k; i++) {
      double factor = b[n * k + i];
      for (uint64_t m = 0; m < rows; m++) sums[m] += a[i * rows + m] * factor;
    }
    for (uint64_t m = 0; m < rows; m++) {
      int64_t at = slice * d->stride + (int64_t)n * d->ld + (int64_t)m;
      if (j->beta != 0) sums[m] += j->beta * get(added, d->type, at);
      if (desc->epilogue == EPILOGUE_DGELU) sums[m] *= gelu_slope(get(j->ranges[AUX].bytes, d->type, (int64_t)n * desc->aux_ld + (int64_t)m));
      if (desc->epilogue == EPILOGUE_BIAS) sums[m] += get(vector, d->type, (int64_t)m);
      put(to, d->type, at, sums[m]);
    }
  }
  free(a);
  free(b);
  free(sums);
}

static void run(void *data) {
  struct job *j = data;
  int whole = 1;
  for (struct range *r = j->ranges; r < j->ranges + RANGES; r++) {
    if (r->size && !(r->bytes = driver.pin(r->at, r->size, NULL))) whole = 0;
  }
  if (whole && j->ranges[WORKSPACE].size) memset(j->ranges[WORKSPACE].bytes, 0xEF, j->ranges[WORKSPACE].size);
  for (int i = 0; whole && i < j->p.d.batch; i++) multiply(j, i);
  for (struct range *r = j->ranges; r < j->ranges + RANGES; r++)
    if (r->bytes) driver.unpin(r->at);
  free(j);
}

// range returns where a matrix is.
static struct range range(const char *name, uint64_t at, const struct object *l) {
  uint64_t last = (uint64_t)(l->batch - 1) * l->stride + (l->cols - 1) * l->ld + l->rows;
  return (struct range){name, at, last * type_size(l->type)};
}

// placed tells whether the ranges are where the algorithm needs them, and none that is written
// overlaps another.
static int placed(const struct job *j, const algorithm *x) {
  static const int slots[] = {A, B, C, D};
  const struct range *r = j->ranges;
  for (int i = 0; i < 4; i++)
    if (r[slots[i]].at % (x->align >> 16 * i & 0xffff)) {
      double_misuse("cublasLtMatmul: %s at %#lx is not aligned as was said", r[slots[i]].name, (unsigned long)r[slots[i]].at);
      return 0;
    }
  for (int i = D; i < RANGES; i++)
    for (int k = 0; k < i; k++)
      if (r[i].size && r[k].size && r[i].at < r[k].at + r[k].size && r[k].at < r[i].at + r[i].size) {
        double_misuse("cublasLtMatmul: %s overlaps %s", r[i].name, r[k].name);
        return 0;
      }
  return 1;
}

EXPORT status cublasLtMatmul(handle h, handle desc, const void *alpha, uint64_t a, handle la, uint64_t b, handle lb, const void *beta,
                             uint64_t c, handle lc, uint64_t d, handle ld, const algorithm *x, uint64_t workspace, size_t size,
                             uintptr_t stream) {
  static const char *const function = "cublasLtMatmul";
  status s = double_enter(function);
  if (s) return s;
  struct job j = {0};
  uintptr_t context, of = 0;
  if ((s = problem_get(function, h, desc, la, lb, lc, ld, &j.p, &context))) return s;
  const char *wrong = NULL;
  if (x->mark != MARK || x->problem != problem_hash(&j.p)) wrong = "the algorithm was found for another product";
  if (x->workspace > size || (size && (!workspace || workspace % 256))) wrong = "the workspace is too small or not aligned";
  if (driver.of_stream(stream, &of)) return EXECUTION_FAILED;
  if (of != context) wrong = "the stream is of another context";
  if (get(alpha, j.p.desc.scale, 0) != 1) wrong = "alpha is not 1";
  j.beta = get(beta, j.p.desc.scale, 0);
  if (c != d && j.beta == 0) wrong = "it adds nothing of another matrix than the result";
  if (wrong) {
    double_misuse("%s: %s", function, wrong);
    return INVALID_VALUE;
  }
  j.ranges[A] = range("A", a, &j.p.a);
  j.ranges[B] = range("B", b, &j.p.b);
  j.ranges[D] = range("D", d, &j.p.d);
  j.ranges[C] = (struct range){"C", c, c == d ? 0 : j.ranges[D].size};
  if (j.p.desc.epilogue == EPILOGUE_DGELU) {
    struct object aux = j.p.d;
    aux.ld = j.p.desc.aux_ld;
    j.ranges[AUX] = range("AUX", j.p.desc.aux, &aux);
  } else if (j.p.desc.epilogue != EPILOGUE_DEFAULT) {
    uint64_t elements = j.p.desc.epilogue == EPILOGUE_BIAS ? j.p.d.rows : j.p.d.cols;
    j.ranges[VECTOR] = (struct range){"the vector", j.p.desc.vector, elements * type_size(j.p.d.type)};
  }
  j.ranges[WORKSPACE] = (struct range){"the workspace", workspace, x->workspace};
  if (!placed(&j, x)) return INVALID_VALUE;
  struct job *copy = malloc(sizeof *copy);
  *copy = j;
  double_count("multiprocessors", j.p.desc.multiprocessors);
  if (driver.host(stream, run, copy) == SUCCESS) return SUCCESS;
  free(copy);
  return EXECUTION_FAILED;
}
