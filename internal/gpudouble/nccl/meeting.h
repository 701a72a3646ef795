//go:build ignore

// How ranks meet and wait for each other: threads of one process or several processes of a host.
#ifndef NCCL_MEETING_H
#define NCCL_MEETING_H

#include <pthread.h>
#include <sys/types.h>

#include "library.h"

enum { CHUNK = 64 << 10, NAME = 96 };

// A post is what a rank says of the collective that it runs.
struct post {
  int kind, type, op, root;
  uint64_t count;
};

// A mail is a piece of what one rank sends another.
struct mail {
  int full, type;
  uint64_t total, size;
  char data[CHUNK];
};

// A barrier of all ranks: one for operations on streams, one for calls of the host.
enum barrier { STREAMS, CALLS };

// A meeting is what the ranks of a communicator share: memory that is a file beside the library,
// which the last one to come removes. A process may die at any time, so the lock is a robust one
// and waiting is for a number to change.
struct meeting {
  pthread_mutex_t lock;
  uint32_t changes;
  result failed; // what ranks that wait are told
  int size, joined;
  struct {
    int present, device;
    pid_t process;
    char host[32];
    int color, key;
  } ranks[MAX_RANKS];
  struct {
    int waiting;
    uint64_t round;
  } barriers[2];
  struct post posts[MAX_RANKS];
  char chunks[MAX_RANKS][CHUNK];
  struct mail mails[MAX_RANKS][MAX_RANKS]; // from, to
};

// A seat is one rank's place in a meeting.
struct seat {
  struct meeting *meeting;
  char name[NAME]; // of the meeting
  int rank, size, device;
  int aborted; // atomic: this rank waits no longer
};

// meeting_make makes the memory of a meeting, meeting_find that of one that is made.
result meeting_make(const char *name, struct meeting **m);
result meeting_find(const char *name, struct meeting **m);
void meeting_forget(struct meeting *m);
// meeting_join waits until all ranks have come. duplicates tells whether they may have the same
// device.
result meeting_join(struct seat *s, int duplicates);
// meeting_fail tells the other ranks of a failure, and lets all see what has changed.
void meeting_fail(struct meeting *m, result r);
// meeting_barrier waits for all ranks.
result meeting_barrier(struct seat *s, enum barrier which);
// meeting_lock and meeting_unlock guard a meeting. meeting_await waits for a change and gives the
// lock back meanwhile; meeting_changed makes one. It is in vain when there is no patience left.
void meeting_lock(struct meeting *m);
void meeting_unlock(struct meeting *m);
void meeting_changed(struct meeting *m);
result meeting_await(struct seat *s, long *patience);
// patience is that of what begins to wait now.
long patience(void);

#endif
