// What products need of cuBLASLt: declarations of our own, so that no header of NVIDIA is needed.
// abi/check.sh compares them with cublasLt.h.
#ifndef FSDP_BLASLT_ABI_H
#define FSDP_BLASLT_ABI_H

#include <stddef.h>
#include <stdint.h>

enum { LT_R_32F = 0, LT_R_64F = 1, LT_R_16F = 2, LT_R_16BF = 14 };                 // cudaDataType_t
enum { LT_COMPUTE_32F = 68, LT_COMPUTE_64F = 70, LT_COMPUTE_32F_FAST_TF32 = 77 };  // cublasComputeType_t
enum { LT_OP_N = 0, LT_OP_T = 1 };                                                 // cublasOperation_t
enum { LT_SUCCESS = 0, LT_NOT_SUPPORTED = 15 };                                    // cublasStatus_t
enum { LT_EPILOGUE_DEFAULT = 1, LT_EPILOGUE_BIAS = 4, LT_EPILOGUE_DGELU = 192, LT_EPILOGUE_BGRADB = 512 }; // cublasLtEpilogue_t
enum { LT_REDUCTION_COMPUTE_TYPE = 2 };                                            // cublasLtReductionScheme_t
// Attributes of cublasLtMatmulDesc_t, cublasLtMatrixLayout_t and cublasLtMatmulPreference_t.
enum { LT_DESC_TRANSA = 3, LT_DESC_TRANSB = 4, LT_DESC_EPILOGUE = 7, LT_DESC_BIAS_POINTER = 8, LT_DESC_SM_COUNT_TARGET = 15 };
enum { LT_DESC_AUX_POINTER = 11, LT_DESC_AUX_LD = 12 };
enum { LT_LAYOUT_BATCH_COUNT = 5, LT_LAYOUT_STRIDED_BATCH_OFFSET = 6 };
enum {
  LT_PREF_MAX_WORKSPACE_BYTES = 1,
  LT_PREF_REDUCTION_SCHEME_MASK = 3,
  LT_PREF_MIN_ALIGNMENT_A_BYTES = 5,  // and of B, C and D
};

// The types of the functions, which the check replaces by NVIDIA's.
#ifndef LT_ABI_TYPES
typedef int lt_status, lt_type, lt_compute, lt_desc_attribute, lt_layout_attribute, lt_preference_attribute;
typedef void *lt_handle, *lt_desc, *lt_layout, *lt_preference, *lt_stream;
typedef struct { uint64_t data[8]; } lt_algo;
typedef struct {
  lt_algo algo;
  size_t workspace;
  lt_status state;
  float waves;
  int reserved[4];
} lt_found;  // cublasLtMatmulHeuristicResult_t
#endif

#define LT_FUNCTIONS(F)                                                                                                       \
  F(cublasLtCreate, lt_status, (lt_handle *))                                                                                 \
  F(cublasLtDestroy, lt_status, (lt_handle))                                                                                  \
  F(cublasLtGetVersion, size_t, (void))                                                                                       \
  F(cublasLtGetStatusString, const char *, (lt_status))                                                                       \
  F(cublasLtMatmulDescCreate, lt_status, (lt_desc *, lt_compute, lt_type))                                                    \
  F(cublasLtMatmulDescDestroy, lt_status, (lt_desc))                                                                          \
  F(cublasLtMatmulDescSetAttribute, lt_status, (lt_desc, lt_desc_attribute, const void *, size_t))                            \
  F(cublasLtMatrixLayoutCreate, lt_status, (lt_layout *, lt_type, uint64_t, uint64_t, int64_t))                               \
  F(cublasLtMatrixLayoutDestroy, lt_status, (lt_layout))                                                                      \
  F(cublasLtMatrixLayoutSetAttribute, lt_status, (lt_layout, lt_layout_attribute, const void *, size_t))                      \
  F(cublasLtMatmulPreferenceCreate, lt_status, (lt_preference *))                                                             \
  F(cublasLtMatmulPreferenceDestroy, lt_status, (lt_preference))                                                              \
  F(cublasLtMatmulPreferenceSetAttribute, lt_status, (lt_preference, lt_preference_attribute, const void *, size_t))          \
  F(cublasLtMatmulAlgoGetHeuristic, lt_status,                                                                                \
    (lt_handle, lt_desc, lt_layout, lt_layout, lt_layout, lt_layout, lt_preference, int, lt_found *, int *))                  \
  F(cublasLtMatmul, lt_status,                                                                                                \
    (lt_handle, lt_desc, const void *alpha, const void *a, lt_layout, const void *b, lt_layout, const void *beta,             \
     const void *c, lt_layout, void *d, lt_layout, const lt_algo *, void *workspace, size_t, lt_stream))

#endif
