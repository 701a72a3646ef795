//go:build ignore

#include "work.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void spans(const struct post *p, int rank, int ranks, uint64_t *send, uint64_t *recv) {
  uint64_t bytes = p->count * type_size(p->type), all = bytes * (uint64_t)ranks;
  int root = rank == p->root;
  *send = p->kind == REDUCE_SCATTER ? all : p->kind == RECV || (p->kind == BROADCAST && !root) ? 0 : bytes;
  *recv = p->kind == ALL_GATHER ? all : p->kind == SEND || (p->kind == REDUCE && !root) ? 0 : bytes;
}

static const char *const names[] = {
    "ncclAllGather", "ncclReduceScatter", "ncclAllReduce", "ncclBroadcast", "ncclReduce", "ncclSend", "ncclRecv"};

static void describe(const struct post *p, char *text, size_t size) {
  snprintf(text, size, "%s(count %llu, type %d, op %d, root %d)", names[p->kind], (unsigned long long)p->count, p->type, p->op, p->root);
}

// agree compares what the ranks do. NCCL would hang, or mix up data.
static result agree(struct seat *s, const struct post *mine) {
  struct meeting *m = s->meeting;
  m->posts[s->rank] = *mine;
  result r = meeting_barrier(s, STREAMS);
  const struct post *a = &m->posts[0];
  for (int i = 1; i < s->size && !r; i++) {
    const struct post *b = &m->posts[i];
    if (a->kind == b->kind && a->type == b->type && a->op == b->op && a->root == b->root && a->count == b->count) continue;
    char one[128], other[128];
    describe(a, one, sizeof one);
    describe(b, other, sizeof other);
    if (s->rank == i || s->rank == 0) double_misuse("rank 0 calls %s, rank %d %s", one, i, other);
    r = fail(INVALID_USAGE, "rank 0 calls %s, rank %d %s", one, i, other);
  }
  return r || mine->count ? r : meeting_barrier(s, STREAMS); // else the barriers of move come before the next posts
}

// pin returns the bytes behind device memory; of no bytes that is anything.
static char *pin(uint64_t address, uint64_t size) { return size ? driver.pin(address, size, NULL) : (char *)""; }
static void unpin(uint64_t address, uint64_t size, const char *bytes) {
  if (size && bytes) driver.unpin(address);
}

// move runs a collective whose buffers are src and dst, a chunk of every rank at a time.
static result move(struct seat *s, const struct post *p, const char *src, char *dst) {
  struct meeting *m = s->meeting;
  int me = s->rank, root = me == p->root;
  uint64_t size = type_size(p->type), bytes = p->count * size;
  int parts = p->kind == REDUCE_SCATTER ? s->size : 1;
  int reduces = p->kind == ALL_REDUCE || (p->kind == REDUCE && root);
  for (int part = 0; part < parts; part++)
    for (uint64_t at = 0; at < bytes; at += CHUNK) {
      uint64_t n = bytes - at < CHUNK ? bytes - at : CHUNK;
      if (p->kind != BROADCAST || root) memcpy(m->chunks[me], src + (uint64_t)part * bytes + at, n);
      result r = meeting_barrier(s, STREAMS);
      if (r) return r;
      if (p->kind == ALL_GATHER)
        for (int i = 0; i < s->size; i++) memcpy(dst + (uint64_t)i * bytes + at, m->chunks[i], n);
      else if (p->kind == BROADCAST)
        memcpy(dst + at, m->chunks[p->root], n);
      else if (reduces || (p->kind == REDUCE_SCATTER && part == me))
        reduce_elements(dst + at, m->chunks, CHUNK, s->size, n / size, p->type, p->op);
      if ((r = meeting_barrier(s, STREAMS))) return r;
    }
  return SUCCESS;
}

static result collective(struct seat *s, const struct work *w) {
  uint64_t send, recv;
  spans(&w->post, s->rank, s->size, &send, &recv);
  result r = agree(s, &w->post);
  if (r) return r;
  const char *src = pin(w->send, send);
  char *dst = pin(w->recv, recv);
  r = src && dst ? move(s, &w->post, src, dst) : fail(CUDA_FAILED, "%s: a buffer is gone when it is needed", names[w->post.kind]);
  unpin(w->send, send, src);
  unpin(w->recv, recv, dst);
  return r;
}

// A transfer is a Send or Recv under way.
struct transfer {
  const struct work *w;
  uint64_t done, total;
  char *bytes;
};

// step moves a piece if the mail of the two ranks is free, or is full. It returns whether it did,
// with the lock held.
static int step(struct seat *s, struct transfer *t, result *r) {
  const struct post *p = &t->w->post;
  int sends = p->kind == SEND;
  struct mail *mail = sends ? &s->meeting->mails[s->rank][p->root] : &s->meeting->mails[p->root][s->rank];
  if (mail->full == sends) return 0;
  if (sends) {
    mail->type = p->type;
    mail->total = t->total;
    mail->size = t->total - t->done < CHUNK ? t->total - t->done : CHUNK;
    memcpy(mail->data, t->bytes + t->done, mail->size);
  } else if (mail->type != p->type || mail->total != t->total) {
    double_misuse("rank %d sends %llu bytes of type %d, rank %d expects %llu of type %d", p->root,
                  (unsigned long long)mail->total, mail->type, s->rank, (unsigned long long)t->total, p->type);
    *r = fail(INVALID_USAGE, "ncclRecv: rank %d sends something else", p->root);
    return 0;
  } else {
    memcpy(t->bytes + t->done, mail->data, mail->size);
  }
  mail->full = sends;
  t->done += mail->size;
  return 1;
}

// first tells whether no transfer before the i-th is under way between the same ranks.
static int first(const struct transfer *list, int i) {
  const struct post *p = &list[i].w->post;
  for (int j = 0; j < i; j++)
    if (list[j].w->post.kind == p->kind && list[j].w->post.root == p->root && list[j].done < list[j].total) return 0;
  return 1;
}

// exchange runs the transfers of a group, all at once.
static result exchange(struct seat *s, struct transfer *list, int n) {
  result r = SUCCESS;
  long patient = patience();
  meeting_lock(s->meeting);
  for (int left = 1; left && !r;) {
    int moved = left = 0;
    for (int i = 0; i < n && !r; i++) {
      if (list[i].done < list[i].total && first(list, i)) moved |= step(s, &list[i], &r);
      left |= list[i].done < list[i].total;
    }
    if (moved)
      meeting_changed(s->meeting);
    else if (left && !r)
      r = meeting_await(s, &patient);
  }
  meeting_unlock(s->meeting);
  return r;
}

result run_works(struct seat *s, const struct work *works, int n) {
  struct transfer *list = calloc((size_t)n + 1, sizeof *list);
  int transfers = 0;
  result r = SUCCESS;
  for (int i = 0; i < n && !r; i++) {
    const struct work *w = &works[i];
    uint64_t total = w->post.count * type_size(w->post.type);
    if (w->post.kind < SEND) {
      r = collective(s, w);
      continue;
    }
    char *bytes = pin(w->post.kind == SEND ? w->send : w->recv, total);
    list[transfers++] = (struct transfer){w, 0, total, bytes};
    if (!bytes) r = fail(CUDA_FAILED, "%s: the buffer is gone when it is needed", names[w->post.kind]);
  }
  if (!r && transfers) r = exchange(s, list, transfers);
  for (int i = 0; i < transfers; i++)
    unpin(list[i].w->post.kind == SEND ? list[i].w->send : list[i].w->recv, list[i].total, list[i].bytes);
  free(list);
  return r;
}
