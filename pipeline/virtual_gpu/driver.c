/* libcuda.so.1 of a GPU that is not there: loads kernels by name, counts their launches, runs none.
 *
 * A library handle, its only kernel and that kernel's function are one object here, because DeepGEMM
 * compiles exactly one kernel into each cubin. Locks are held as in cudart.c.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cuda.h>

/* The id of its file, or -1 for one that was loaded from memory. */
struct loaded { int id; };

#define MAX_LAUNCHES 256
/* Each lock guards the rest of its struct. The launches keep the first ids and count on. */
static struct { pthread_mutex_t lock; int num; char **paths; } files = {.lock = PTHREAD_MUTEX_INITIALIZER};
static struct { pthread_mutex_t lock; int num; int ids[MAX_LAUNCHES]; } launches = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- what the worker asks (ctypes) ------------------------------------------------------------- */

/* Copies out the ids of the kernels launched since the last call; returns how many there were. */
int vgpu_take_launches(int *ids, int capacity) {
    pthread_mutex_lock(&launches.lock);
    int count = launches.num;
    int noted = count < MAX_LAUNCHES ? count : MAX_LAUNCHES;
    memcpy(ids, launches.ids, (size_t)(noted < capacity ? noted : capacity) * sizeof *ids);
    launches.num = 0;
    pthread_mutex_unlock(&launches.lock);
    return count;
}

const char *vgpu_path(int id) {
    pthread_mutex_lock(&files.lock);
    const char *path = id >= 0 && id < files.num ? files.paths[id] : NULL;
    pthread_mutex_unlock(&files.lock);
    return path;
}

/* ---- libraries and kernels ---------------------------------------------------------------------- */

/* Keeps the path for the life of the process, as a launch may be asked about after its library is unloaded; the id of
 * the file, or -1 without memory. */
static int note_file(char *path) {
    pthread_mutex_lock(&files.lock);
    char **paths = realloc(files.paths, (size_t)(files.num + 1) * sizeof *paths);
    int id = paths == NULL ? -1 : files.num++;
    if (paths != NULL) {
        files.paths = paths;
        paths[id] = path;
    }
    pthread_mutex_unlock(&files.lock);
    return id;
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *jit, void **jit_values,
                               unsigned num_jit, CUlibraryOption *options, void **values, unsigned num_options) {
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return CUDA_ERROR_FILE_NOT_FOUND;
    fclose(file);
    struct loaded *entry = malloc(sizeof *entry);
    char *kept = strdup(path);
    if (entry == NULL || kept == NULL || (entry->id = note_file(kept)) < 0) {
        free(entry);
        free(kept);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *library = (CUlibrary)entry;
    return CUDA_SUCCESS;
}
CUresult cuLibraryUnload(CUlibrary library) { return CUDA_SUCCESS; }
CUresult cuLibraryGetKernelCount(unsigned *count, CUlibrary library) { *count = 1; return CUDA_SUCCESS; }
CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned capacity, CUlibrary library) {
    if (capacity > 0)
        kernels[0] = (CUkernel)library;
    return CUDA_SUCCESS;
}
CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
    *function = (CUfunction)kernel;
    return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) { return CUDA_SUCCESS; }
CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) { return CUDA_SUCCESS; }
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 32; break;
    default: *value = 0;
    }
    return CUDA_SUCCESS;
}

/* A module that is loaded from memory (Triton, CuTe) has no file of its own; its functions are one object, as above. */
CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned num_options, CUjit_option *options,
                            void **values) {
    struct loaded *entry = malloc(sizeof *entry);
    if (entry == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    entry->id = -1;
    *module = (CUmodule)entry;
    return CUDA_SUCCESS;
}
CUresult cuModuleLoadData(CUmodule *module, const void *image) { return cuModuleLoadDataEx(module, image, 0, NULL, NULL); }
/* Inductor's launcher loads Triton's cubins from their files; DeepGEMM's come through cuLibraryLoadFromFile. */
CUresult cuModuleLoad(CUmodule *module, const char *path) {
    return access(path, R_OK) == 0 ? cuModuleLoadData(module, NULL) : CUDA_ERROR_FILE_NOT_FOUND;
}
CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) { return cuModuleLoadData(module, image); }
CUresult cuModuleUnload(CUmodule module) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    *function = (CUfunction)module;
    return CUDA_SUCCESS;
}
CUresult cuLibraryLoadData(CUlibrary *library, const void *image, CUjit_option *jit, void **jit_values,
                           unsigned num_jit, CUlibraryOption *options, void **values, unsigned num_options) {
    return cuModuleLoadData((CUmodule *)library, image);
}
CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    *kernel = (CUkernel)library;
    return CUDA_SUCCESS;
}
CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library) { *module = (CUmodule)library; return CUDA_SUCCESS; }
CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device) {
    return CUDA_SUCCESS;
}
CUresult cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device) {
    return cuFuncGetAttribute(value, attribute, (CUfunction)kernel);
}
static CUresult launch(CUfunction function) {
    int id = ((struct loaded *)function)->id;
    if (id < 0)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&launches.lock);
    if (launches.num < MAX_LAUNCHES)
        launches.ids[launches.num] = id;
    launches.num++;
    pthread_mutex_unlock(&launches.lock);
    return CUDA_SUCCESS;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **args, void **extra) {
    return launch(function);
}
CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                        unsigned bz, unsigned shared, CUstream stream, void **args, void **extra) {
    return launch(function);
}

/* ---- tensor maps: only their size matters to a kernel that never runs ---------------------------- */

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                const cuuint64_t *dims, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *element_strides, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                CUtensorMapFloatOOBfill fill) {
    memset(map, 0, sizeof *map);
    return CUDA_SUCCESS;
}

/* ---- device and context --------------------------------------------------------------------------- */

/* torch asks to be told of driver messages; there are none. */
CUresult cuLogsRegisterCallback(CUlogsCallback callback, void *user_data, CUlogsCallbackHandle *handle) {
    return CUDA_SUCCESS;
}
CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle handle) { return CUDA_SUCCESS; }
CUresult cuInit(unsigned flags) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int *version) { *version = CUDA_VERSION; return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) { *device = ordinal; return CUDA_SUCCESS; }
CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    const char *text = getenv("VGPU_NAME");
    snprintf(name, (size_t)length, "%s", text ? text : "virtual GPU");
    return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    const char *text = getenv("VGPU_MEMORY_BYTES");
    *bytes = text ? strtoull(text, NULL, 10) : 0;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    memcpy(uuid->bytes, "virtual-gpu-0000", 16);
    uuid->bytes[15] = (char)('0' + device);
    return CUDA_SUCCESS;
}
CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version) { *version = 3020; return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    *flags = 0;
    *active = 1;
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) { return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) { return CUDA_SUCCESS; }
CUresult cuCtxSynchronize(void) { return CUDA_SUCCESS; }

/* ---- memory and streams: what the runtime has made ------------------------------------------------ */

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr pointer) {
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)value = pointer; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(unsigned *)value = CU_MEMORYTYPE_DEVICE; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)value = 0; break;
    case CU_POINTER_ATTRIBUTE_CONTEXT: return cuDevicePrimaryCtxRetain(value, 0);
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult error, const char **text) {
    /* Per thread, so that the text of one thread's error is not another's. */
    static __thread char name[32];
    snprintf(name, sizeof name, "CUresult %d", (int)error);
    *text = name;
    return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char **text) { return cuGetErrorName(error, text); }

/* Of a function with several versions the second is the usual one; a caller of an older release means another here. */
static const struct { const char *symbol; int since; const char *exported; } versions[] = {
    {"cuStreamGetCaptureInfo", 12030, "cuStreamGetCaptureInfo_v3"},
    {"cuStreamGetCaptureInfo", 11030, "cuStreamGetCaptureInfo_v2"},
    {"cuStreamGetCtx", 12050, "cuStreamGetCtx_v2"},
    {"cuStreamGetCtx", 9020, "cuStreamGetCtx"},
};

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
    const char *suffixes[] = {"_v2", "", "_v3", "_v4"};
    char exported[256];
    *function = NULL;
    for (size_t i = 0; i < sizeof versions / sizeof *versions && *function == NULL; i++)
        if (strcmp(symbol, versions[i].symbol) == 0 && version >= versions[i].since)
            *function = dlsym(RTLD_DEFAULT, versions[i].exported);
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes && *function == NULL; i++) {
        snprintf(exported, sizeof exported, "%s%s", symbol, suffixes[i]);
        *function = dlsym(RTLD_DEFAULT, exported);
    }
    if (status)
        *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode) { *mode = CU_MODULE_LAZY_LOADING; return CUDA_SUCCESS; }
