// What the package knows of NCCL's ABI: enums are ints, handles and streams are
// pointers, the unique id goes by value, and the configuration is a struct that has
// only ever grown at its end. abi/check.c compares every line with a real nccl.h;
// it defines NCCL_ABI_TYPES and gives the types of that header instead.
#ifndef GOFSDP_NCCL_ABI_H
#define GOFSDP_NCCL_ABI_H

#include <stddef.h>
#include <stdint.h>

// The values that the shim uses itself; those that users see are in nccl.go.
enum { NCCL_SUCCESS = 0, NCCL_UNHANDLED_CUDA_ERROR = 1, NCCL_INVALID_ARGUMENT = 4, NCCL_IN_PROGRESS = 7 };

// nccl_config is ncclConfig_t of NCCL 2.30.7. NCCL reads the part of it that it
// knows and takes defaults for what it knows beyond `version`.
typedef struct {
  size_t size;
  unsigned int magic, version;
  int blocking;
  int cgaClusterSize, minCTAs, maxCTAs;
  const char *netName;
  int splitShare;
  int trafficClass;
  const char *commName;
  int collnetEnable, CTAPolicy, shrinkShare, nvlsCTAs, nChannelsPerNetPeer, nvlinkCentricSched;
  int graphUsageMode, numRmaCtx, maxP2pPeers, graphStreamOrdering;
} nccl_config;

#define NCCL_CONFIG_MAGIC 0xcafebeefu
#define NCCL_CONFIG_VERSION 23007

typedef struct { char internal[128]; } nccl_unique_id;

#ifndef NCCL_ABI_TYPES
typedef int nccl_result, nccl_type, nccl_redop;
typedef struct ncclComm *nccl_comm;
typedef struct CUstream_st *nccl_stream;
typedef nccl_unique_id nccl_unique_id_arg;
typedef nccl_config nccl_config_arg;
#endif

// NCCL_FUNCTIONS lists the functions: name, result, parameters. The oldest NCCL that the
// package takes has them all.
#define NCCL_FUNCTIONS(F) \
  F(ncclGetVersion, nccl_result, (int *)) \
  F(ncclGetErrorString, const char *, (nccl_result)) \
  F(ncclGetLastError, const char *, (nccl_comm)) \
  F(ncclGetUniqueId, nccl_result, (nccl_unique_id_arg *)) \
  F(ncclCommInitRankConfig, nccl_result, (nccl_comm *, int, nccl_unique_id_arg, int, nccl_config_arg *)) \
  F(ncclCommSplit, nccl_result, (nccl_comm, int, int, nccl_comm *, nccl_config_arg *)) \
  F(ncclCommCount, nccl_result, (nccl_comm, int *)) \
  F(ncclCommUserRank, nccl_result, (nccl_comm, int *)) \
  F(ncclCommGetAsyncError, nccl_result, (nccl_comm, nccl_result *)) \
  F(ncclCommFinalize, nccl_result, (nccl_comm)) \
  F(ncclCommDestroy, nccl_result, (nccl_comm)) \
  F(ncclCommAbort, nccl_result, (nccl_comm)) \
  F(ncclGroupStart, nccl_result, (void)) \
  F(ncclGroupEnd, nccl_result, (void)) \
  F(ncclAllGather, nccl_result, (const void *, void *, size_t, nccl_type, nccl_comm, nccl_stream)) \
  F(ncclReduceScatter, nccl_result, (const void *, void *, size_t, nccl_type, nccl_redop, nccl_comm, nccl_stream)) \
  F(ncclAllReduce, nccl_result, (const void *, void *, size_t, nccl_type, nccl_redop, nccl_comm, nccl_stream)) \
  F(ncclBroadcast, nccl_result, (const void *, void *, size_t, nccl_type, int, nccl_comm, nccl_stream)) \
  F(ncclReduce, nccl_result, (const void *, void *, size_t, nccl_type, nccl_redop, int, nccl_comm, nccl_stream)) \
  F(ncclSend, nccl_result, (const void *, size_t, nccl_type, int, nccl_comm, nccl_stream)) \
  F(ncclRecv, nccl_result, (void *, size_t, nccl_type, int, nccl_comm, nccl_stream))

#endif
