/* Driver functions whose answer the virtual runtime knows: the device, memory, streams, events, capture, occupancy.
 *
 * Handles and error codes are the same in both, so a call is handed on by name. A process that loads the driver without
 * the preloaded runtime gets CUDA_ERROR_NOT_SUPPORTED.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>

#include <cuda.h>

#define HAND_ON(driver, parameters, runtime, types, arguments)                         \
    CUresult driver parameters {                                                       \
        static int (*_Atomic answer) types;                                            \
        if (answer == NULL)                                                            \
            answer = (int (*) types)dlsym(RTLD_DEFAULT, runtime);                      \
        return answer == NULL ? CUDA_ERROR_NOT_SUPPORTED : (CUresult)answer arguments; \
    }

/* ---- device ------------------------------------------------------------------------------------------ */

HAND_ON(cuDeviceGetCount, (int *count), "cudaGetDeviceCount", (int *), (count))
HAND_ON(cuCtxGetDevice, (CUdevice *device), "cudaGetDevice", (int *), (device))
static HAND_ON(set_device, (CUdevice device), "cudaSetDevice", (int), (device))
static HAND_ON(attribute_of_runtime, (int *value, CUdevice_attribute attribute, CUdevice device),
               "cudaDeviceGetAttribute", (int *, int, int), (value, (int)attribute, device))

/* Attributes have the same numbers in both; those of memory that is mapped, shared or multicast by handle are the
 * driver's alone, and there is no such memory here. */
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED:
        *value = 0;
        return CUDA_SUCCESS;
    default:
        return attribute_of_runtime(value, attribute, device);
    }
}
HAND_ON(cuDeviceGetPCIBusId, (char *id, int length, CUdevice device), "cudaDeviceGetPCIBusId", (char *, int, int),
        (id, length, device))
HAND_ON(cuDeviceCanAccessPeer, (int *can, CUdevice device, CUdevice peer), "cudaDeviceCanAccessPeer", (int *, int, int),
        (can, device, peer))

/* ---- context: each device has its primary one, and a thread's current one is that of its current device --------- */

#define MAX_PUSHED 64
/* The devices of the contexts that this thread pushed others upon. */
static __thread struct { int num; CUdevice devices[MAX_PUSHED]; } below;

/* A handle is the device's number plus one, so that none is NULL. */
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    *context = (CUcontext)(uintptr_t)(device + 1);
    return CUDA_SUCCESS;
}
static CUdevice device_of(CUcontext context) { return (CUdevice)(uintptr_t)context - 1; }

CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context) {
    if (context == NULL)
        return cuCtxGetDevice(device);
    *device = device_of(context);
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context) {
    CUdevice device;
    return cuDevicePrimaryCtxRetain(context, cuCtxGetDevice(&device) == CUDA_SUCCESS ? device : 0);
}
/* A thread always has a context here, also after it gave its own up. */
CUresult cuCtxSetCurrent(CUcontext context) {
    return context == NULL ? CUDA_SUCCESS : set_device(device_of(context));
}
CUresult cuCtxPushCurrent_v2(CUcontext context) {
    CUcontext current;
    if (below.num == MAX_PUSHED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    cuCtxGetCurrent(&current);
    CUresult done = cuCtxSetCurrent(context);
    if (done == CUDA_SUCCESS)
        below.devices[below.num++] = device_of(current);
    return done;
}
CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    CUcontext current;
    cuCtxGetCurrent(&current);
    if (context != NULL)
        *context = current;
    return below.num == 0 ? CUDA_SUCCESS : set_device(below.devices[--below.num]);
}
CUresult cuStreamGetCtx(CUstream stream, CUcontext *context) { return cuCtxGetCurrent(context); }

/* ---- memory ------------------------------------------------------------------------------------------ */

HAND_ON(cuMemAlloc_v2, (CUdeviceptr *pointer, size_t bytes), "cudaMalloc", (void **, size_t), ((void **)pointer, bytes))
HAND_ON(cuMemFree_v2, (CUdeviceptr pointer), "cudaFree", (void *), ((void *)pointer))
HAND_ON(cuMemGetInfo_v2, (size_t *available, size_t *total), "cudaMemGetInfo", (size_t *, size_t *), (available, total))
HAND_ON(cuMemHostAlloc, (void **pointer, size_t bytes, unsigned flags), "cudaHostAlloc", (void **, size_t, unsigned),
        (pointer, bytes, flags))
HAND_ON(cuMemAllocHost_v2, (void **pointer, size_t bytes), "cudaHostAlloc", (void **, size_t, unsigned),
        (pointer, bytes, 0))
HAND_ON(cuMemFreeHost, (void *pointer), "cudaFreeHost", (void *), (pointer))
HAND_ON(cuMemHostRegister_v2, (void *pointer, size_t bytes, unsigned flags), "cudaHostRegister",
        (void *, size_t, unsigned), (pointer, bytes, flags))
HAND_ON(cuMemHostUnregister, (void *pointer), "cudaHostUnregister", (void *), (pointer))

#define COPY(driver, to_type, from_type)                                                                   \
    HAND_ON(driver, (to_type to, from_type from, size_t bytes), "cudaMemcpy", (void *, const void *, size_t, int), \
            ((void *)to, (const void *)from, bytes, 4))
#define COPY_ASYNC(driver, to_type, from_type)                                                             \
    HAND_ON(driver, (to_type to, from_type from, size_t bytes, CUstream stream), "cudaMemcpy",             \
            (void *, const void *, size_t, int), ((void *)to, (const void *)from, bytes, 4))
COPY(cuMemcpy, CUdeviceptr, CUdeviceptr)
COPY(cuMemcpyHtoD_v2, CUdeviceptr, const void *)
COPY(cuMemcpyDtoH_v2, void *, CUdeviceptr)
COPY(cuMemcpyDtoD_v2, CUdeviceptr, CUdeviceptr)
COPY_ASYNC(cuMemcpyAsync, CUdeviceptr, CUdeviceptr)
COPY_ASYNC(cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *)
COPY_ASYNC(cuMemcpyDtoHAsync_v2, void *, CUdeviceptr)
COPY_ASYNC(cuMemcpyDtoDAsync_v2, CUdeviceptr, CUdeviceptr)
HAND_ON(cuMemsetD8_v2, (CUdeviceptr to, unsigned char value, size_t bytes), "cudaMemset", (void *, int, size_t),
        ((void *)to, value, bytes))
HAND_ON(cuMemsetD8Async, (CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream), "cudaMemset",
        (void *, int, size_t), ((void *)to, value, bytes))

/* ---- streams and events -------------------------------------------------------------------------------- */

HAND_ON(cuStreamCreate, (CUstream *stream, unsigned flags), "cudaStreamCreate", (void *), (stream))
HAND_ON(cuStreamCreateWithPriority, (CUstream *stream, unsigned flags, int priority), "cudaStreamCreate", (void *),
        (stream))
HAND_ON(cuStreamDestroy_v2, (CUstream stream), "cudaStreamDestroy", (void *), (stream))
HAND_ON(cuStreamQuery, (CUstream stream), "cudaStreamQuery", (void *), (stream))
HAND_ON(cuStreamSynchronize, (CUstream stream), "cudaStreamSynchronize", (void *), (stream))
HAND_ON(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags), "cudaStreamWaitEvent",
        (void *, void *, unsigned), (stream, event, flags))
HAND_ON(cuEventCreate, (CUevent *event, unsigned flags), "cudaEventCreate", (void *), (event))
HAND_ON(cuEventDestroy_v2, (CUevent event), "cudaEventDestroy", (void *), (event))
HAND_ON(cuEventQuery, (CUevent event), "cudaEventQuery", (void *), (event))
HAND_ON(cuEventSynchronize, (CUevent event), "cudaEventSynchronize", (void *), (event))
HAND_ON(cuEventRecord, (CUevent event, CUstream stream), "cudaEventRecord", (void *, void *), (event, stream))
HAND_ON(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned flags), "cudaEventRecord", (void *, void *),
        (event, stream))
HAND_ON(cuEventElapsedTime, (float *ms, CUevent from, CUevent to), "cudaEventElapsedTime", (float *, void *, void *),
        (ms, from, to))

/* ---- capture and graphs ---------------------------------------------------------------------------------- */

HAND_ON(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus *status), "cudaStreamIsCapturing",
        (void *, void *), (stream, status))
HAND_ON(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode), "cudaStreamBeginCapture", (void *, int),
        (stream, (int)mode))
HAND_ON(cuStreamEndCapture, (CUstream stream, CUgraph *graph), "cudaStreamEndCapture", (void *, void *),
        (stream, graph))
HAND_ON(cuStreamGetCaptureInfo_v2,
        (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **nodes,
         size_t *num_nodes),
        "cudaStreamGetCaptureInfo", (void *, void *, void *, void *, void *, void *, size_t *),
        (stream, status, id, graph, nodes, NULL, num_nodes))
HAND_ON(cuStreamGetCaptureInfo_v3,
        (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **nodes,
         const CUgraphEdgeData **edges, size_t *num_nodes),
        "cudaStreamGetCaptureInfo", (void *, void *, void *, void *, void *, void *, size_t *),
        (stream, status, id, graph, nodes, edges, num_nodes))
HAND_ON(cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode *mode), "cudaThreadExchangeStreamCaptureMode", (void *),
        (mode))
HAND_ON(cuGraphInstantiateWithFlags, (CUgraphExec *exec, CUgraph graph, unsigned long long flags),
        "cudaGraphInstantiate", (void *, void *, unsigned long long), (exec, graph, flags))
HAND_ON(cuGraphInstantiateWithParams, (CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters),
        "cudaGraphInstantiate", (void *, void *, unsigned long long), (exec, graph, 0))
HAND_ON(cuGraphLaunch, (CUgraphExec exec, CUstream stream), "cudaGraphLaunch", (void *, void *), (exec, stream))
HAND_ON(cuGraphUpload, (CUgraphExec exec, CUstream stream), "cudaGraphUpload", (void *, void *), (exec, stream))
HAND_ON(cuGraphDestroy, (CUgraph graph), "cudaGraphDestroy", (void *), (graph))
HAND_ON(cuGraphExecDestroy, (CUgraphExec exec), "cudaGraphExecDestroy", (void *), (exec))
HAND_ON(cuGraphGetNodes, (CUgraph graph, CUgraphNode *nodes, size_t *num_nodes), "cudaGraphGetNodes",
        (void *, void *, size_t *), (graph, nodes, num_nodes))

/* ---- occupancy --------------------------------------------------------------------------------------------- */

#define OCCUPANCY "cudaOccupancyMaxActiveBlocksPerMultiprocessor"
HAND_ON(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *blocks, CUfunction function, int threads, size_t shared),
        OCCUPANCY, (int *, const void *, int, size_t), (blocks, function, threads, shared))
HAND_ON(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
        (int *blocks, CUfunction function, int threads, size_t shared, unsigned flags), OCCUPANCY,
        (int *, const void *, int, size_t), (blocks, function, threads, shared))

/* The two launch descriptions begin differently, so only their parts can be handed on. */
CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction function, const CUlaunchConfig *config) {
    int blocks, sms, size = 1;
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            size = (int)(config->attrs[i].value.clusterDim.x * config->attrs[i].value.clusterDim.y *
                         config->attrs[i].value.clusterDim.z);
    int threads = (int)(config->blockDimX * config->blockDimY * config->blockDimZ);
    if (cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, threads, config->sharedMemBytes) ||
        cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0))
        return CUDA_ERROR_NOT_SUPPORTED;
    *clusters = blocks * sms / (size > 0 ? size : 1);
    return CUDA_SUCCESS;
}
