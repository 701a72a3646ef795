//go:build ignore

// Compares ../abi.h, value by value and function by function, with a real cublasLt.h. It has to
// compile.
#include <cublasLt.h>

// The prototypes of abi.h, with NVIDIA's own types.
#define LT_ABI_TYPES
typedef cublasStatus_t lt_status;
typedef cudaDataType_t lt_type;
typedef cublasComputeType_t lt_compute;
typedef cublasLtMatmulDescAttributes_t lt_desc_attribute;
typedef cublasLtMatrixLayoutAttribute_t lt_layout_attribute;
typedef cublasLtMatmulPreferenceAttributes_t lt_preference_attribute;
typedef cublasLtHandle_t lt_handle;
typedef cublasLtMatmulDesc_t lt_desc;
typedef cublasLtMatrixLayout_t lt_layout;
typedef cublasLtMatmulPreference_t lt_preference;
typedef cudaStream_t lt_stream;
typedef cublasLtMatmulAlgo_t lt_algo;
typedef cublasLtMatmulHeuristicResult_t lt_found;
#include "../../../blaslt/abi.h"

#define SAME_FUNCTION(name, result, parameters) \
  _Static_assert(__builtin_types_compatible_p(__typeof__(name), result parameters), #name);
LT_FUNCTIONS(SAME_FUNCTION)

// What the shim passes instead of those types. An enum is an int, as far as a call goes.
#define SAME(a, b) _Static_assert((long long)(a) == (long long)(b), #a);
#define SAME_SIZE(theirs, ours) SAME(sizeof(theirs), sizeof(ours)) SAME(_Alignof(theirs), _Alignof(ours))
SAME_SIZE(cublasStatus_t, int)
SAME_SIZE(cudaDataType_t, int)
SAME_SIZE(cublasComputeType_t, int)
SAME_SIZE(cublasOperation_t, int)
SAME_SIZE(cublasLtEpilogue_t, int)
SAME_SIZE(cublasLtMatmulDescAttributes_t, int)
SAME_SIZE(cublasLtMatrixLayoutAttribute_t, int)
SAME_SIZE(cublasLtMatmulPreferenceAttributes_t, int)
SAME_SIZE(cublasLtHandle_t, void *)
SAME_SIZE(cublasLtMatmulDesc_t, void *)
SAME_SIZE(cublasLtMatrixLayout_t, void *)
SAME_SIZE(cublasLtMatmulPreference_t, void *)
SAME_SIZE(cudaStream_t, void *)

// The structures, as abi.h declares them without these types.
typedef struct { uint64_t data[8]; } algo;
typedef struct { algo algo; size_t workspace; int state; float waves; int reserved[4]; } found;
SAME_SIZE(cublasLtMatmulAlgo_t, algo)
SAME_SIZE(cublasLtMatmulHeuristicResult_t, found)
SAME(offsetof(cublasLtMatmulHeuristicResult_t, algo), offsetof(found, algo))
SAME(offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize), offsetof(found, workspace))
SAME(offsetof(cublasLtMatmulHeuristicResult_t, state), offsetof(found, state))

SAME(CUDA_R_32F, LT_R_32F)
SAME(CUDA_R_64F, LT_R_64F)
SAME(CUDA_R_16F, LT_R_16F)
SAME(CUDA_R_16BF, LT_R_16BF)
SAME(CUBLAS_COMPUTE_32F, LT_COMPUTE_32F)
SAME(CUBLAS_COMPUTE_64F, LT_COMPUTE_64F)
SAME(CUBLAS_COMPUTE_32F_FAST_TF32, LT_COMPUTE_32F_FAST_TF32)
SAME(CUBLAS_OP_N, LT_OP_N)
SAME(CUBLAS_OP_T, LT_OP_T)
SAME(CUBLAS_STATUS_SUCCESS, LT_SUCCESS)
SAME(CUBLAS_STATUS_NOT_SUPPORTED, LT_NOT_SUPPORTED)
SAME(CUBLASLT_EPILOGUE_DEFAULT, LT_EPILOGUE_DEFAULT)
SAME(CUBLASLT_EPILOGUE_BIAS, LT_EPILOGUE_BIAS)
SAME(CUBLASLT_EPILOGUE_DGELU, LT_EPILOGUE_DGELU)
SAME(CUBLASLT_EPILOGUE_BGRADB, LT_EPILOGUE_BGRADB)
SAME(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, LT_REDUCTION_COMPUTE_TYPE)
SAME(CUBLASLT_MATMUL_DESC_TRANSA, LT_DESC_TRANSA)
SAME(CUBLASLT_MATMUL_DESC_TRANSB, LT_DESC_TRANSB)
SAME(CUBLASLT_MATMUL_DESC_EPILOGUE, LT_DESC_EPILOGUE)
SAME(CUBLASLT_MATMUL_DESC_BIAS_POINTER, LT_DESC_BIAS_POINTER)
SAME(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, LT_DESC_AUX_POINTER)
SAME(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, LT_DESC_AUX_LD)
SAME(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, LT_DESC_SM_COUNT_TARGET)
SAME(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, LT_LAYOUT_BATCH_COUNT)
SAME(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, LT_LAYOUT_STRIDED_BATCH_OFFSET)
SAME(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, LT_PREF_MAX_WORKSPACE_BYTES)
SAME(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, LT_PREF_REDUCTION_SCHEME_MASK)
SAME(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, LT_PREF_MIN_ALIGNMENT_A_BYTES)
SAME(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, LT_PREF_MIN_ALIGNMENT_A_BYTES + 1)
SAME(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, LT_PREF_MIN_ALIGNMENT_A_BYTES + 2)
SAME(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, LT_PREF_MIN_ALIGNMENT_A_BYTES + 3)
