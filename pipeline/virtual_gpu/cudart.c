/* CUDA runtime of a GPU that is not there, preloaded before libcudart.
 *
 * Questions about the device are answered from the environment (targets.py writes it), cudaMalloc
 * reserves address space that the kernel backs page by page only when touched, and launches, fills and
 * large copies do nothing. What is neither here nor safe in the real libcudart is in the generated
 * file of unanswered functions, which name themselves and fail.
 *
 * Each table has one lock, which is not held across a call into another library. Discovery's worker forks while it has
 * one thread and no context, so no child inherits a lock that somebody holds.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cuda_runtime_api.h>

/* Fills and copies up to this size take effect, so that values written and read back by a library are right; larger
 * ones would commit memory that nobody looks at. What comes from the host lies in memory already: a table of it (which
 * expert is where) may be larger and is read back. */
#define EFFECTIVE_COPY_BYTES (64 * 1024)
#define EFFECTIVE_UPLOAD_BYTES (64 * 1024 * 1024)
#define MAX_ALLOCATIONS 65536
/* cudaMalloc promises 256; the tensor maps of the Hopper copy engine want 16, torch's allocator 512. */
#define ALIGNMENT 4096

static long env_number(const char *name) {
    const char *text = getenv(name);
    if (text == NULL) {
        fprintf(stderr, "virtual GPU: %s is not set; start through pipeline.virtual_gpu\n", name);
        abort();
    }
    return strtol(text, NULL, 10);
}

static struct cudaDeviceProp device_properties;

static void read_properties(void) {
    struct cudaDeviceProp p = {0};
    const char *name = getenv("VGPU_NAME");
    snprintf(p.name, sizeof p.name, "%s", name ? name : "virtual GPU");
    memcpy(p.uuid.bytes, "virtual-gpu-0000", 16);
    p.major = (int)env_number("VGPU_CC_MAJOR");
    p.minor = (int)env_number("VGPU_CC_MINOR");
    p.multiProcessorCount = (int)env_number("VGPU_NUM_SMS");
    p.l2CacheSize = (int)env_number("VGPU_L2_BYTES");
    p.totalGlobalMem = (size_t)env_number("VGPU_MEMORY_BYTES");
    p.sharedMemPerBlockOptin = (size_t)env_number("VGPU_SHARED_BYTES_PER_BLOCK");
    p.sharedMemPerMultiprocessor = (size_t)env_number("VGPU_SHARED_BYTES_PER_SM");
    /* The rest is the same on sm_90 and sm_100: CUDA C programming guide, compute capabilities. */
    p.sharedMemPerBlock = 48 * 1024;
    p.reservedSharedMemPerBlock = 1024;
    p.regsPerBlock = p.regsPerMultiprocessor = 65536;
    p.maxThreadsPerBlock = 1024;
    p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
    p.maxThreadsDim[2] = 64;
    p.maxGridSize[0] = 2147483647;
    p.maxGridSize[1] = p.maxGridSize[2] = 65535;
    p.maxThreadsPerMultiProcessor = 2048;
    p.maxBlocksPerMultiProcessor = 32;
    p.totalConstMem = 65536;
    p.memPitch = 2147483647;
    p.textureAlignment = 512;
    p.texturePitchAlignment = 32;
    p.concurrentKernels = p.asyncEngineCount = 1;
    p.canMapHostMemory = p.unifiedAddressing = p.managedMemory = 1;
    p.streamPrioritiesSupported = p.cooperativeLaunch = p.clusterLaunch = 1;
    p.globalL1CacheSupported = p.localL1CacheSupported = 1;
    p.warpSize = 32;
    device_properties = p;
}

static const struct cudaDeviceProp *properties(void) {
    static pthread_once_t read = PTHREAD_ONCE_INIT;
    pthread_once(&read, read_properties);
    return &device_properties;
}

/* ---- device --------------------------------------------------------------------------------- */

/* CUDA keeps these per thread. */
static __thread int current_device;
static __thread enum cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

/* Several devices are alike and share the host's memory; VGPU_NUM_DEVICES says how many there are. */
cudaError_t cudaGetDeviceCount(int *count) {
    const char *text = getenv("VGPU_NUM_DEVICES");
    *count = text ? atoi(text) : 1;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) { *device = current_device; return cudaSuccess; }
cudaError_t cudaSetDevice(int device) {
    int count;
    cudaGetDeviceCount(&count);
    if (device < 0 || device >= count)
        return cudaErrorInvalidDevice;
    current_device = device;
    return cudaSuccess;
}
cudaError_t cudaInitDevice(int device, unsigned flags, unsigned more) { return cudaSuccess; }
cudaError_t cudaSetDeviceFlags(unsigned flags) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize(void) { return cudaSuccess; }
cudaError_t cudaDeviceReset(void) { return cudaSuccess; }
cudaError_t cudaGetLastError(void) { return cudaSuccess; }
cudaError_t cudaPeekAtLastError(void) { return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) { *can = device != peer; return cudaSuccess; }
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) { return cudaSuccess; }

cudaError_t cudaDeviceGetPCIBusId(char *id, int length, int device) {
    snprintf(id, (size_t)length, "0000:%02X:00.0", device);
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device) {
    *out = *properties();
    out->uuid.bytes[15] = (char)('0' + device);
    out->pciBusID = device;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    const struct cudaDeviceProp *p = properties();
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = p->maxThreadsPerBlock; break;
    case cudaDevAttrMaxBlockDimX: *value = p->maxThreadsDim[0]; break;
    case cudaDevAttrMaxBlockDimY: *value = p->maxThreadsDim[1]; break;
    case cudaDevAttrMaxBlockDimZ: *value = p->maxThreadsDim[2]; break;
    case cudaDevAttrMaxGridDimX: *value = p->maxGridSize[0]; break;
    case cudaDevAttrMaxGridDimY: *value = p->maxGridSize[1]; break;
    case cudaDevAttrMaxGridDimZ: *value = p->maxGridSize[2]; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = (int)p->sharedMemPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)p->sharedMemPerBlockOptin; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = (int)p->sharedMemPerMultiprocessor; break;
    case cudaDevAttrReservedSharedMemoryPerBlock: *value = (int)p->reservedSharedMemPerBlock; break;
    case cudaDevAttrMaxRegistersPerBlock: *value = p->regsPerBlock; break;
    case cudaDevAttrMaxRegistersPerMultiprocessor: *value = p->regsPerMultiprocessor; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p->maxThreadsPerMultiProcessor; break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = p->maxBlocksPerMultiProcessor; break;
    case cudaDevAttrMultiProcessorCount: *value = p->multiProcessorCount; break;
    case cudaDevAttrL2CacheSize: *value = p->l2CacheSize; break;
    case cudaDevAttrWarpSize: *value = p->warpSize; break;
    case cudaDevAttrComputeCapabilityMajor: *value = p->major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = p->minor; break;
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrStreamPrioritiesSupported: *value = 1; break;
    case cudaDevAttrClockRate: *value = 1980000; break;
    case cudaDevAttrMemoryClockRate: *value = 3201000; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = 6144; break;
    case cudaDevAttrClusterLaunch:
    case cudaDevAttrComputePreemptionSupported:
    case cudaDevAttrAsyncEngineCount: *value = 1; break;
    case cudaDevAttrTotalConstantMemory: *value = (int)p->totalConstMem; break;
    case cudaDevAttrMaxPitch: *value = (int)p->memPitch; break;
    case cudaDevAttrTextureAlignment: *value = (int)p->textureAlignment; break;
    case cudaDevAttrTexturePitchAlignment: *value = (int)p->texturePitchAlignment; break;
    case cudaDevAttrGlobalL1CacheSupported:
    case cudaDevAttrLocalL1CacheSupported:
    case cudaDevAttrGpuOverlap:
    case cudaDevAttrEccEnabled:
    case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrConcurrentManagedAccess: *value = 1; break;
    case cudaDevAttrPciBusId: *value = device; break;
    case cudaDevAttrMemSyncDomainCount: *value = 4; break;
    case cudaDevAttrNumaId:
    case cudaDevAttrHostNumaId: *value = -1; break;
    /* No memory pools, so that torch allocates with cudaMalloc. */
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrIntegrated:
    case cudaDevAttrComputeMode:
    case cudaDevAttrPciDeviceId:
    case cudaDevAttrPciDomainId:
    case cudaDevAttrPageableMemoryAccess:
    case cudaDevAttrGPUDirectRDMASupported:
    case cudaDevAttrMpsEnabled: *value = 0; break;
    default:
        fprintf(stderr, "virtual GPU: cudaDeviceGetAttribute(%d) is not answered\n", (int)attribute);
        return cudaErrorNotSupported;
    }
    return cudaSuccess;
}

/* ---- memory --------------------------------------------------------------------------------- */

struct allocation { uintptr_t start; size_t bytes; int device; };

/* Guards the three below it. */
static pthread_mutex_t allocations_lock = PTHREAD_MUTEX_INITIALIZER;
static struct allocation allocations[MAX_ALLOCATIONS];
static size_t num_allocations, allocated_bytes;

/* The device that a pointer belongs to, or -1 for the host's memory. */
static int device_of(const void *pointer) {
    int device = -1;
    pthread_mutex_lock(&allocations_lock);
    for (size_t i = 0; i < num_allocations && device < 0; i++)
        if ((uintptr_t)pointer - allocations[i].start < allocations[i].bytes)
            device = allocations[i].device;
    pthread_mutex_unlock(&allocations_lock);
    return device;
}
static int is_device(const void *pointer) { return device_of(pointer) >= 0; }

static int note_allocation(struct allocation made) {
    pthread_mutex_lock(&allocations_lock);
    int fits = num_allocations < MAX_ALLOCATIONS && allocated_bytes + made.bytes <= properties()->totalGlobalMem;
    if (fits) {
        allocations[num_allocations++] = made;
        allocated_bytes += made.bytes;
    }
    pthread_mutex_unlock(&allocations_lock);
    return fits;
}

/* Takes the allocation that starts there out of the table; its bytes, or 0 when there is none. */
static size_t forget_allocation(const void *start) {
    size_t bytes = 0;
    pthread_mutex_lock(&allocations_lock);
    for (size_t i = 0; i < num_allocations && bytes == 0; i++) {
        if (allocations[i].start != (uintptr_t)start)
            continue;
        bytes = allocations[i].bytes;
        allocated_bytes -= bytes;
        allocations[i] = allocations[--num_allocations];
    }
    pthread_mutex_unlock(&allocations_lock);
    return bytes;
}

cudaError_t cudaMalloc(void **pointer, size_t bytes) {
    size_t rounded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    *pointer = NULL;
    if (bytes == 0)
        return cudaSuccess;
    void *memory = mmap(NULL, rounded, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return cudaErrorMemoryAllocation;
    if (!note_allocation((struct allocation){(uintptr_t)memory, rounded, current_device})) {
        munmap(memory, rounded);
        return cudaErrorMemoryAllocation;
    }
    /* A dump of a process with virtual operands would be as large as the operands. */
    madvise(memory, rounded, MADV_DONTDUMP);
    *pointer = memory;
    return cudaSuccess;
}

cudaError_t cudaFree(void *pointer) {
    if (pointer == NULL)
        return cudaSuccess;
    size_t bytes = forget_allocation(pointer);
    if (bytes == 0)
        return cudaErrorInvalidValue;
    munmap(pointer, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    *total_bytes = properties()->totalGlobalMem;
    pthread_mutex_lock(&allocations_lock);
    *free_bytes = *total_bytes - allocated_bytes;
    pthread_mutex_unlock(&allocations_lock);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    *pointer = aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    return *pointer ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFreeHost(void *pointer) { free(pointer); return cudaSuccess; }
cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned flags) { return cudaSuccess; }
cudaError_t cudaHostUnregister(void *pointer) { return cudaSuccess; }

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *pointer) {
    memset(out, 0, sizeof *out);
    int device = device_of(pointer);
    out->type = device >= 0 ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
    out->device = device >= 0 ? device : 0;
    if (out->type == cudaMemoryTypeDevice)
        out->devicePointer = (void *)pointer;
    return cudaSuccess;
}

static cudaError_t copy(void *to, const void *from, size_t bytes) {
    if (!is_device(to) || bytes <= (is_device(from) ? EFFECTIVE_COPY_BYTES : EFFECTIVE_UPLOAD_BYTES))
        memmove(to, from, bytes);
    return cudaSuccess;
}

static cudaError_t fill(void *to, int value, size_t bytes) {
    if (bytes <= EFFECTIVE_COPY_BYTES)
        memset(to, value, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    return copy(to, from, bytes);
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t s) {
    return copy(to, from, bytes);
}
cudaError_t cudaMemset(void *to, int value, size_t bytes) { return fill(to, value, bytes); }
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t s) { return fill(to, value, bytes); }
cudaError_t cudaMemset2DAsync(void *to, size_t pitch, int value, size_t width, size_t height, cudaStream_t s) {
    for (size_t row = 0; width * height <= EFFECTIVE_COPY_BYTES && row < height; row++)
        memset((char *)to + row * pitch, value, width);
    return cudaSuccess;
}

/* ---- streams and events: everything has finished before it was asked about ------------------- */

static _Atomic uintptr_t next_handle = 0x1000;

cudaError_t cudaStreamCreate(cudaStream_t *s) { *s = (cudaStream_t)(next_handle += 16); return cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags) { return cudaStreamCreate(s); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned f, int p) { return cudaStreamCreate(s); }
cudaError_t cudaStreamDestroy(cudaStream_t s) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t s) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t s) { return cudaSuccess; }
cudaError_t cudaStreamGetPriority(cudaStream_t s, int *priority) { *priority = 0; return cudaSuccess; }
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    enum cudaStreamCaptureMode before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *e) { *e = (cudaEvent_t)(next_handle += 16); return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) { return cudaEventCreate(e); }
cudaError_t cudaEventDestroy(cudaEvent_t e) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t e) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t e) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) { *ms = 0; return cudaSuccess; }

/* ---- capture: a stream is captured, and so is one that waits for an event of a captured stream; graphs hold nothing - */

/* A large model that overlaps two streams in every layer makes a few hundred events in one capture. */
#define MAX_CAPTURED 4096
/* Guards the three below it. Threads may capture at the same time, each a stream of its own. */
static pthread_mutex_t captured_lock = PTHREAD_MUTEX_INITIALIZER;
static struct { const void *stream_or_event; unsigned long long capture; } captured[MAX_CAPTURED];
static int num_captured;
static unsigned long long num_captures;
static const int captured_nodes;

/* The number of its capture, or 0; the lock is held. */
static unsigned long long find_capture(const void *stream_or_event) {
    for (int i = 0; i < num_captured; i++)
        if (captured[i].stream_or_event == stream_or_event)
            return captured[i].capture;
    return 0;
}
static unsigned long long capture_of(const void *stream_or_event) {
    pthread_mutex_lock(&captured_lock);
    unsigned long long capture = find_capture(stream_or_event);
    pthread_mutex_unlock(&captured_lock);
    return capture;
}
/* Adds to a capture unless it is in one; the lock is held. */
static cudaError_t add_to_capture(const void *stream_or_event, unsigned long long capture) {
    if (find_capture(stream_or_event) != 0)
        return cudaSuccess;
    if (num_captured == MAX_CAPTURED) {
        fprintf(stderr, "virtual GPU: a capture of more than %d streams and events is not answered\n", MAX_CAPTURED);
        return cudaErrorNotSupported;
    }
    captured[num_captured].stream_or_event = stream_or_event;
    captured[num_captured++].capture = capture;
    return cudaSuccess;
}
/* The lock is held. */
static void end_capture(unsigned long long capture) {
    int kept = 0;
    for (int i = 0; i < num_captured; i++)
        if (captured[i].capture != capture)
            captured[kept++] = captured[i];
    num_captured = kept;
}
static cudaError_t follow_into_capture(const void *follower, const void *leader) {
    pthread_mutex_lock(&captured_lock);
    unsigned long long capture = find_capture(leader);
    cudaError_t done = capture != 0 ? add_to_capture(follower, capture) : cudaSuccess;
    pthread_mutex_unlock(&captured_lock);
    return done;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned flags) {
    return follow_into_capture(e, s);
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) { return cudaEventRecordWithFlags(e, s, 0); }
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags) {
    return follow_into_capture(s, e);
}
cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode) {
    pthread_mutex_lock(&captured_lock);
    unsigned long long abandoned = find_capture(s);
    if (abandoned != 0)
        end_capture(abandoned);
    cudaError_t done = add_to_capture(s, ++num_captures);
    pthread_mutex_unlock(&captured_lock);
    return done;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph) {
    pthread_mutex_lock(&captured_lock);
    unsigned long long capture = find_capture(s);
    end_capture(capture);
    pthread_mutex_unlock(&captured_lock);
    if (capture == 0)
        return cudaErrorIllegalState;
    *graph = (cudaGraph_t)(next_handle += 16);
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *status) {
    *status = capture_of(s) != 0 ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **dependencies,
                                     const cudaGraphEdgeData **edges, size_t *num_dependencies) {
    unsigned long long capture = capture_of(s);
    *status = capture != 0 ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    if (id) *id = capture;
    if (graph) *graph = (cudaGraph_t)&captured;
    if (dependencies) *dependencies = NULL;
    if (edges) *edges = NULL;
    if (num_dependencies) *num_dependencies = 0;
    return cudaSuccess;
}
cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t s, cudaGraphNode_t *nodes, const cudaGraphEdgeData *edges,
                                                size_t num, unsigned flags) {
    return cudaSuccess;
}
/* torch warns of a graph without nodes. */
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *num) {
    if (nodes != NULL && *num > 0)
        nodes[0] = (cudaGraphNode_t)&captured_nodes;
    *num = 1;
    return cudaSuccess;
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, enum cudaGraphNodeType *type) {
    *type = cudaGraphNodeTypeEmpty;
    return cudaSuccess;
}
cudaError_t cudaGraphCreate(cudaGraph_t *graph, unsigned flags) {
    *graph = (cudaGraph_t)(next_handle += 16);
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags) {
    *exec = (cudaGraphExec_t)(next_handle += 16);
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags) {
    return cudaGraphInstantiate(exec, graph, flags);
}
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t s) { return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s) { return cudaSuccess; }
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return cudaSuccess; }
cudaError_t cudaUserObjectCreate(cudaUserObject_t *object, void *pointer, cudaHostFn_t destroy, unsigned references,
                                 unsigned flags) {
    *object = (cudaUserObject_t)(next_handle += 16);
    return cudaSuccess;
}
cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned count) { return cudaSuccess; }
cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned count, unsigned flags) {
    return cudaSuccess;
}

/* ---- functions and launches ------------------------------------------------------------------ */

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *function) {
    const struct cudaDeviceProp *p = properties();
    memset(out, 0, sizeof *out);
    out->maxThreadsPerBlock = p->maxThreadsPerBlock;
    out->numRegs = 32;
    out->maxDynamicSharedSizeBytes = (int)p->sharedMemPerBlockOptin;
    out->ptxVersion = out->binaryVersion = p->major * 10 + p->minor;
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute a, int value) { return cudaSuccess; }
/* Threads, blocks and shared memory bound the occupancy; registers are not known and taken to suffice. */
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int threads,
                                                                   size_t shared_bytes, unsigned flags) {
    const struct cudaDeviceProp *p = properties();
    int warps = (threads + p->warpSize - 1) / p->warpSize;
    int by_threads = warps > 0 ? p->maxThreadsPerMultiProcessor / (warps * p->warpSize) : 1;
    int by_shared = (int)(p->sharedMemPerMultiprocessor / (shared_bytes + p->reservedSharedMemPerBlock));
    *blocks = by_threads < by_shared ? by_threads : by_shared;
    if (*blocks > p->maxBlocksPerMultiProcessor)
        *blocks = p->maxBlocksPerMultiProcessor;
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int threads,
                                                          size_t shared_bytes) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared_bytes, 0);
}
/* As if the SMs of a cluster could be any: a real GPU loses the few that its GPCs have left over. */
cudaError_t cudaOccupancyMaxActiveClusters(int *clusters, const void *function, const cudaLaunchConfig_t *config) {
    int blocks, size = 1, threads = (int)(config->blockDim.x * config->blockDim.y * config->blockDim.z);
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == cudaLaunchAttributeClusterDimension)
            size = (int)(config->attrs[i].val.clusterDim.x * config->attrs[i].val.clusterDim.y *
                         config->attrs[i].val.clusterDim.z);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, threads, config->dynamicSmemBytes);
    *clusters = blocks * properties()->multiProcessorCount / (size > 0 ? size : 1);
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxPotentialClusterSize(int *size, const void *function, const cudaLaunchConfig_t *config) {
    *size = 8;
    return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void *f, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t s) {
    return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *f, void **args) { return cudaSuccess; }
cudaError_t __cudaLaunchKernel(cudaKernel_t k, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t s) {
    return cudaSuccess;
}

/* ---- the way to the driver -------------------------------------------------------------------- */

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult *status) {
    char versioned[256];
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    snprintf(versioned, sizeof versioned, "%s_v2", name);
    *function = driver ? dlsym(driver, versioned) : NULL;
    if (driver && *function == NULL)
        *function = dlsym(driver, name);
    if (status)
        *status = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

/* DeepGEMM makes a cuBLASLt handle at its first GEMM. Where there are headers of cuBLAS, cublas.c answers the rest. */
int cublasLtCreate(void **handle) { *handle = (void *)&next_handle; return 0; }
int cublasLtDestroy(void *handle) { return 0; }
