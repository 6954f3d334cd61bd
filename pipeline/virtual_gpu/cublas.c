/* cuBLAS and cuBLASLt of a GPU that is not there: handles and descriptors exist, products compute nothing.
 *
 * What hands a result back is here. Every other function that the headers declare is generated (build.py): one that
 * asks or makes something names itself and fails, the rest succeeds, because on this GPU a product is a launch, and
 * launches do nothing. What a handle holds is not locked, as cuBLAS recommends one handle for each thread.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cublasLt.h>
#include <cublas_api.h>

/* The release whose headers this was built against. */
#define VERSION (CUBLAS_VER_MAJOR * 10000 + CUBLAS_VER_MINOR * 100 + CUBLAS_VER_PATCH)

struct handle {
    cudaStream_t stream;
    cublasMath_t math;
    cublasPointerMode_t pointers;
    cublasAtomicsMode_t atomics;
    int sms;
};

/* ---- handles -------------------------------------------------------------------------------------- */

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle) {
    *handle = calloc(1, sizeof(struct handle));
    return *handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) { free(handle); return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasGetVersion_v2(cublasHandle_t handle, int *version) {
    *version = VERSION;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetProperty(libraryPropertyType type, int *value) {
    *value = type == MAJOR_VERSION ? CUBLAS_VER_MAJOR : type == MINOR_VERSION ? CUBLAS_VER_MINOR : CUBLAS_VER_PATCH;
    return CUBLAS_STATUS_SUCCESS;
}
size_t cublasGetCudartVersion(void) { return CUDART_VERSION; }

/* The name says as much as the sentence that cuBLAS has for it. */
#define NAME(status) case status: return #status;
const char *cublasGetStatusName(cublasStatus_t status) {
    switch (status) {
    NAME(CUBLAS_STATUS_SUCCESS)
    NAME(CUBLAS_STATUS_NOT_INITIALIZED)
    NAME(CUBLAS_STATUS_ALLOC_FAILED)
    NAME(CUBLAS_STATUS_INVALID_VALUE)
    NAME(CUBLAS_STATUS_ARCH_MISMATCH)
    NAME(CUBLAS_STATUS_MAPPING_ERROR)
    NAME(CUBLAS_STATUS_EXECUTION_FAILED)
    NAME(CUBLAS_STATUS_INTERNAL_ERROR)
    NAME(CUBLAS_STATUS_NOT_SUPPORTED)
    NAME(CUBLAS_STATUS_LICENSE_ERROR)
    }
    return "unrecognized status";
}
const char *cublasGetStatusString(cublasStatus_t status) { return cublasGetStatusName(status); }
const char *cublasLtGetStatusName(cublasStatus_t status) { return cublasGetStatusName(status); }
const char *cublasLtGetStatusString(cublasStatus_t status) { return cublasGetStatusName(status); }

cublasStatus_t cublasSetStream_v2(cublasHandle_t h, cudaStream_t stream) {
    ((struct handle *)h)->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetStream_v2(cublasHandle_t h, cudaStream_t *stream) {
    *stream = ((struct handle *)h)->stream;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t h, cublasMath_t mode) {
    ((struct handle *)h)->math = mode;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetMathMode(cublasHandle_t h, cublasMath_t *mode) {
    *mode = ((struct handle *)h)->math;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t h, cublasPointerMode_t mode) {
    ((struct handle *)h)->pointers = mode;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t h, cublasPointerMode_t *mode) {
    *mode = ((struct handle *)h)->pointers;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetAtomicsMode(cublasHandle_t h, cublasAtomicsMode_t mode) {
    ((struct handle *)h)->atomics = mode;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetAtomicsMode(cublasHandle_t h, cublasAtomicsMode_t *mode) {
    *mode = ((struct handle *)h)->atomics;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetSmCountTarget(cublasHandle_t h, int sms) {
    ((struct handle *)h)->sms = sms;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetSmCountTarget(cublasHandle_t h, int *sms) {
    *sms = ((struct handle *)h)->sms;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- cuBLASLt: one algorithm for everything, no workspace --------------------------------------------- */

static void *descriptor(size_t bytes) { return calloc(1, bytes); }

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    *handle = descriptor(sizeof(struct handle));
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { free(handle); return CUBLAS_STATUS_SUCCESS; }
size_t cublasLtGetVersion(void) { return VERSION; }
size_t cublasLtGetCudartVersion(void) { return CUDART_VERSION; }
cublasStatus_t cublasLtGetProperty(libraryPropertyType type, int *value) { return cublasGetProperty(type, value); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t compute, cudaDataType_t scale) {
    *d = descriptor(sizeof(cublasLtMatmulDescOpaque_t));
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) { free(d); return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType t, uint64_t r, uint64_t c, int64_t ld) {
    *l = descriptor(sizeof(cublasLtMatrixLayoutOpaque_t));
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) { free(l); return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p) {
    *p = descriptor(sizeof(cublasLtMatmulPreferenceOpaque_t));
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) { free(p); return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatrixTransformDescCreate(cublasLtMatrixTransformDesc_t *d, cudaDataType scale) {
    *d = descriptor(sizeof(cublasLtMatrixTransformDescOpaque_t));
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixTransformDescDestroy(cublasLtMatrixTransformDesc_t d) {
    free(d);
    return CUBLAS_STATUS_SUCCESS;
}

/* The same for descriptors that lie in the caller's memory. */
static cublasStatus_t clear(void *descriptor, size_t bytes) {
    memset(descriptor, 0, bytes);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t d, size_t bytes, cublasComputeType_t compute,
                                               cudaDataType_t scale) {
    return clear(d, bytes);
}
cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t l, size_t bytes, cudaDataType_t t, uint64_t r,
                                                 uint64_t c, int64_t ld) {
    return clear(l, bytes);
}
cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t p, size_t bytes) {
    return clear(p, bytes);
}
cublasStatus_t cublasLtMatrixTransformDescInit_internal(cublasLtMatrixTransformDesc_t d, size_t bytes,
                                                        cudaDataType_t scale) {
    return clear(d, bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int capacity,
                                              cublasLtMatmulHeuristicResult_t results[], int *found) {
    *found = capacity > 0;
    if (capacity > 0) {
        memset(results, 0, sizeof results[0]);
        results[0].state = CUBLAS_STATUS_SUCCESS;
        results[0].wavesCount = 1;
    }
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetIds(cublasLtHandle_t handle, cublasComputeType_t compute, cudaDataType_t scale,
                                        cudaDataType_t a, cudaDataType_t b, cudaDataType_t c, cudaDataType_t d,
                                        int capacity, int ids[], int *found) {
    *found = capacity > 0;
    if (capacity > 0)
        ids[0] = 0;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoInit(cublasLtHandle_t handle, cublasComputeType_t compute, cudaDataType_t scale,
                                      cudaDataType_t a, cudaDataType_t b, cudaDataType_t c, cudaDataType_t d, int id,
                                      cublasLtMatmulAlgo_t *algo) {
    return clear(algo, sizeof *algo);
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algo, cublasLtMatmulHeuristicResult_t *result) {
    int found;
    return cublasLtMatmulAlgoGetHeuristic(handle, product, a, b, c, d, NULL, 1, result, &found);
}

/* Attributes are not kept: each reads as zero bytes, of the size that was asked. */
#define ATTRIBUTE(function, object, attribute)                                                                   \
    cublasStatus_t function(object o, attribute a, void *buffer, size_t bytes, size_t *written) {               \
        if (buffer)                                                                                             \
            memset(buffer, 0, bytes);                                                                           \
        if (written)                                                                                            \
            *written = bytes;                                                                                   \
        return CUBLAS_STATUS_SUCCESS;                                                                           \
    }
ATTRIBUTE(cublasLtMatmulDescGetAttribute, cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t)
ATTRIBUTE(cublasLtMatrixLayoutGetAttribute, cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t)
ATTRIBUTE(cublasLtMatmulPreferenceGetAttribute, cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t)
ATTRIBUTE(cublasLtMatmulAlgoCapGetAttribute, const cublasLtMatmulAlgo_t *, cublasLtMatmulAlgoCapAttributes_t)
ATTRIBUTE(cublasLtMatmulAlgoConfigGetAttribute, const cublasLtMatmulAlgo_t *, cublasLtMatmulAlgoConfigAttributes_t)
