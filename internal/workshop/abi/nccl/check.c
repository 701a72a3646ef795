// Compares ../abi.h, field by field and function by function, with a real nccl.h. It
// has to compile, and to return 0.
#include <nccl.h>

// The prototypes of abi.h, with NCCL's own types.
#define NCCL_ABI_TYPES
typedef ncclResult_t nccl_result;
typedef ncclDataType_t nccl_type;
typedef ncclRedOp_t nccl_redop;
typedef ncclComm_t nccl_comm;
typedef cudaStream_t nccl_stream;
typedef ncclUniqueId nccl_unique_id_arg;
typedef ncclConfig_t nccl_config_arg;
#include "../../../../nccl/abi.h"

#define SAME_FUNCTION(name, result, parameters) \
  _Static_assert(__builtin_types_compatible_p(__typeof__(name), result parameters), #name);
NCCL_FUNCTIONS(SAME_FUNCTION)

// What the shim passes instead of those types. An enum is an int, as far as a call goes.
#define SAME_SIZE(theirs, ours) \
  _Static_assert(sizeof(theirs) == sizeof(ours) && _Alignof(theirs) == _Alignof(ours), #theirs);
SAME_SIZE(ncclResult_t, int)
SAME_SIZE(ncclDataType_t, int)
SAME_SIZE(ncclRedOp_t, int)
SAME_SIZE(ncclComm_t, void *)
SAME_SIZE(cudaStream_t, void *)
SAME_SIZE(ncclUniqueId, nccl_unique_id)

// The configuration: NCCL's may have grown, but only at its end.
#define SAME_FIELD(name)                                                                    \
  _Static_assert(offsetof(ncclConfig_t, name) == offsetof(nccl_config, name), #name);       \
  _Static_assert(__builtin_types_compatible_p(__typeof__(((ncclConfig_t *)0)->name),        \
                                              __typeof__(((nccl_config *)0)->name)), #name);
SAME_FIELD(size)
SAME_FIELD(magic)
SAME_FIELD(version)
SAME_FIELD(blocking)
SAME_FIELD(cgaClusterSize)
SAME_FIELD(minCTAs)
SAME_FIELD(maxCTAs)
SAME_FIELD(netName)
SAME_FIELD(splitShare)
#if NCCL_VERSION_CODE >= 22600
SAME_FIELD(trafficClass)
#endif
#if NCCL_VERSION_CODE >= 22700
SAME_FIELD(commName)
SAME_FIELD(collnetEnable)
SAME_FIELD(CTAPolicy)
SAME_FIELD(shrinkShare)
SAME_FIELD(nvlsCTAs)
#endif
#if NCCL_VERSION_CODE >= 22800
SAME_FIELD(nChannelsPerNetPeer)
SAME_FIELD(nvlinkCentricSched)
#endif
#if NCCL_VERSION_CODE >= 22900
SAME_FIELD(graphUsageMode)
SAME_FIELD(numRmaCtx)
#endif
#if NCCL_VERSION_CODE >= 23000
SAME_FIELD(maxP2pPeers)
#endif
#if NCCL_VERSION_CODE >= 23007
SAME_FIELD(graphStreamOrdering)
_Static_assert(sizeof(ncclConfig_t) >= sizeof(nccl_config), "ncclConfig_t");
#endif
static const ncclConfig_t initial = NCCL_CONFIG_INITIALIZER;

// The numbers that Go uses.
#define SAME_NUMBER(theirs, ours) _Static_assert((int)theirs == (int)ours, #theirs);
SAME_NUMBER(ncclSuccess, NCCL_SUCCESS)
SAME_NUMBER(ncclUnhandledCudaError, NCCL_UNHANDLED_CUDA_ERROR)
SAME_NUMBER(ncclSystemError, 2)
SAME_NUMBER(ncclInternalError, 3)
SAME_NUMBER(ncclInvalidArgument, NCCL_INVALID_ARGUMENT)
SAME_NUMBER(ncclInvalidUsage, 5)
SAME_NUMBER(ncclRemoteError, 6)
SAME_NUMBER(ncclInProgress, NCCL_IN_PROGRESS)
#if NCCL_VERSION_CODE >= 23003
SAME_NUMBER(ncclTimeout, 8)
#endif
SAME_NUMBER(ncclInt8, 0)
SAME_NUMBER(ncclUint8, 1)
SAME_NUMBER(ncclInt32, 2)
SAME_NUMBER(ncclUint32, 3)
SAME_NUMBER(ncclInt64, 4)
SAME_NUMBER(ncclUint64, 5)
SAME_NUMBER(ncclFloat16, 6)
SAME_NUMBER(ncclFloat32, 7)
SAME_NUMBER(ncclFloat64, 8)
SAME_NUMBER(ncclBfloat16, 9)
#if NCCL_VERSION_CODE >= 22400
SAME_NUMBER(ncclFloat8e4m3, 10)
SAME_NUMBER(ncclFloat8e5m2, 11)
#endif
SAME_NUMBER(ncclSum, 0)
SAME_NUMBER(ncclProd, 1)
SAME_NUMBER(ncclMax, 2)
SAME_NUMBER(ncclMin, 3)
SAME_NUMBER(ncclAvg, 4)
SAME_NUMBER(NCCL_SPLIT_NOCOLOR, -1)

int main(void) { return initial.magic != NCCL_CONFIG_MAGIC || (int)NCCL_CONFIG_UNDEF_INT != -2147483647 - 1; }
