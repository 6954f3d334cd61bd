/* What a server of many threads does to the virtual GPU, each thing by eight threads at once.
 *
 * many_threads WHAT FILE: exit code 0 when WHAT adds up, else 1 and the number of answers that were wrong.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda.h>
#include <cuda_runtime_api.h>

#define THREADS 8
#define LOADS 2000
#define LAUNCHES 200000
#define ALLOCATIONS 3000
#define HELD 16
#define STREAMS 50000
#define ROUNDS 20000

int vgpu_take_launches(int *ids, int capacity);
const char *vgpu_path(int id);

static const char *file;
static pthread_barrier_t start;

/* ---- loads: every file gets a number of its own, and its path is found by it ---------------------------- */

static CUlibrary libraries[THREADS][LOADS];

static int load(CUlibrary *library) {
    return cuLibraryLoadFromFile(library, file, NULL, NULL, 0, NULL, NULL, 0) != CUDA_SUCCESS;
}
static int loads(int thread) {
    int wrong = 0;
    for (int i = 0; i < LOADS; i++)
        wrong += load(&libraries[thread][i]);
    return wrong;
}
static int check_loads(void) {
    static char seen[THREADS * LOADS];
    int id, wrong = vgpu_path(THREADS * LOADS) != NULL;
    for (int i = 0; i < THREADS * LOADS; i++) {
        cuLaunchKernelEx(NULL, (CUfunction)libraries[i / LOADS][i % LOADS], NULL, NULL);
        wrong += vgpu_take_launches(&id, 1) != 1 || id < 0 || id >= THREADS * LOADS || seen[id]++;
        wrong += vgpu_path(i) == NULL || strcmp(vgpu_path(i), file) != 0;
    }
    return wrong;
}

/* ---- launches: as many as there were -------------------------------------------------------------------- */

static int launches(int thread) {
    CUlibrary library;
    if (load(&library))
        return 1;
    for (int i = 0; i < LAUNCHES; i++)
        cuLaunchKernelEx(NULL, (CUfunction)library, NULL, NULL);
    return 0;
}
static int check_launches(void) {
    int ids[THREADS], wrong = vgpu_take_launches(ids, THREADS) != THREADS * LAUNCHES;
    for (int i = 0; i < THREADS; i++)
        wrong += vgpu_path(ids[i]) == NULL;
    return wrong;
}

/* ---- allocations: all are known while they are held, and nothing is left afterwards --------------------- */

static int allocations(int thread) {
    void *held[HELD] = {NULL};
    int wrong = 0;
    for (int i = 0; i < ALLOCATIONS + HELD; i++) {
        struct cudaPointerAttributes known;
        void **slot = &held[i % HELD];
        if (*slot != NULL) {
            cudaPointerGetAttributes(&known, *slot);
            wrong += known.type != cudaMemoryTypeDevice;
        }
        wrong += cudaFree(*slot) != cudaSuccess;
        *slot = NULL;
        wrong += i < ALLOCATIONS && cudaMalloc(slot, 4096 * (1 + (size_t)i % 4)) != cudaSuccess;
    }
    return wrong;
}
static int check_allocations(void) {
    size_t available, total;
    cudaMemGetInfo(&available, &total);
    return available != total;
}

/* ---- streams: no two have the same handle ----------------------------------------------------------------- */

static cudaStream_t streams_of[THREADS * STREAMS];

static int streams(int thread) {
    for (int i = 0; i < STREAMS; i++)
        cudaStreamCreate(&streams_of[thread * STREAMS + i]);
    return 0;
}
static int by_handle(const void *a, const void *b) {
    uintptr_t first = *(const uintptr_t *)a, second = *(const uintptr_t *)b;
    return (first > second) - (first < second);
}
static int check_streams(void) {
    int wrong = 0;
    qsort(streams_of, THREADS * STREAMS, sizeof *streams_of, by_handle);
    for (int i = 1; i < THREADS * STREAMS; i++)
        wrong += streams_of[i] == streams_of[i - 1];
    return wrong;
}

/* ---- captures: each thread's own, with what waits for it ---------------------------------------------------- */

static int captures(int thread) {
    int wrong = 0;
    cudaStream_t stream, side;
    cudaEvent_t event;
    cudaGraph_t graph;
    enum cudaStreamCaptureStatus status;
    cudaStreamCreate(&stream);
    cudaStreamCreate(&side);
    cudaEventCreate(&event);
    for (int i = 0; i < ROUNDS; i++) {
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
        cudaEventRecord(event, stream);
        cudaStreamWaitEvent(side, event, 0);
        cudaStreamIsCapturing(side, &status);
        wrong += status != cudaStreamCaptureStatusActive;
        wrong += cudaStreamEndCapture(stream, &graph) != cudaSuccess;
        cudaStreamIsCapturing(side, &status);
        wrong += status != cudaStreamCaptureStatusNone;
    }
    return wrong;
}

/* ---- what CUDA keeps for each thread: the current device and context, the capture mode ---------------------- */

static int devices(int thread) {
    int wrong = 0, device;
    CUcontext own, other, current;
    cuDevicePrimaryCtxRetain(&own, thread);
    cuDevicePrimaryCtxRetain(&other, (thread + 1) % THREADS);
    cuCtxSetCurrent(own);
    for (int i = 0; i < ROUNDS; i++) {
        wrong += cudaGetDevice(&device) != cudaSuccess || device != thread;
        cuCtxPushCurrent(other);
        wrong += cuCtxGetDevice(&device) != CUDA_SUCCESS || device != (thread + 1) % THREADS;
        wrong += cuCtxPopCurrent(&current) != CUDA_SUCCESS || current != other;
        wrong += cuCtxGetCurrent(&current) != CUDA_SUCCESS || current != own;
    }
    return wrong;
}
static int capture_modes(int thread) {
    int wrong = 0;
    enum cudaStreamCaptureMode own = (enum cudaStreamCaptureMode)(thread % 3), mode = own;
    cudaThreadExchangeStreamCaptureMode(&mode);
    wrong += mode != cudaStreamCaptureModeGlobal;
    for (int i = 0; i < ROUNDS; i++) {
        mode = own;
        cuThreadExchangeStreamCaptureMode((CUstreamCaptureMode *)&mode);
        wrong += mode != own;
    }
    return wrong;
}
static int error_names(int thread) {
    int wrong = 0;
    char expected[32];
    const char *name;
    snprintf(expected, sizeof expected, "CUresult %d", 100 + thread);
    for (int i = 0; i < ROUNDS; i++) {
        cuGetErrorName((CUresult)(100 + thread), &name);
        wrong += strcmp(name, expected) != 0;
    }
    return wrong;
}

/* ---------------------------------------------------------------------------------------------------------------- */

static const struct { const char *name; int (*by_each)(int thread); int (*at_the_end)(void); } things[] = {
    {"loads", loads, check_loads},
    {"launches", launches, check_launches},
    {"allocations", allocations, check_allocations},
    {"streams", streams, check_streams},
    {"captures", captures, NULL},
    {"devices", devices, NULL},
    {"capture_modes", capture_modes, NULL},
    {"error_names", error_names, NULL},
};
static int (*by_each)(int thread);

static void *run(void *thread) {
    pthread_barrier_wait(&start);
    return (void *)(intptr_t)by_each((int)(intptr_t)thread);
}

static long run_threads(void) {
    pthread_t threads[THREADS];
    long wrong = 0;
    pthread_barrier_init(&start, NULL, THREADS);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, run, (void *)(intptr_t)i);
    for (int i = 0; i < THREADS; i++) {
        void *of_thread;
        pthread_join(threads[i], &of_thread);
        wrong += (long)(intptr_t)of_thread;
    }
    return wrong;
}

int main(int num_arguments, char **arguments) {
    file = num_arguments == 3 ? arguments[2] : "";
    for (size_t i = 0; num_arguments == 3 && i < sizeof things / sizeof *things; i++) {
        if (strcmp(arguments[1], things[i].name) != 0)
            continue;
        by_each = things[i].by_each;
        long wrong = run_threads();
        wrong += things[i].at_the_end != NULL ? things[i].at_the_end() : 0;
        printf("%s: %ld wrong\n", things[i].name, wrong);
        return wrong != 0;
    }
    fprintf(stderr, "usage: many_threads WHAT FILE\n");
    return 2;
}
