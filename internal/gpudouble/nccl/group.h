//go:build ignore

// Groups of operations: a state of the thread, as in NCCL.
#ifndef NCCL_GROUP_H
#define NCCL_GROUP_H

// open_group opens a group of this thread that nobody ends, as some failures of NCCL do.
void open_group(void);

#endif
