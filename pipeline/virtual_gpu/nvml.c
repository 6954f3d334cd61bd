/* NVML of a GPU that is not there: what a server asks of it at start.
 *
 * No CUDA wheel brings nvml.h, so the few types are written out here as NVIDIA's NVML API reference gives them.
 * A function that is not here does not exist; nvidia-ml-py then raises NVMLError_FunctionNotFound with its name.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda.h>

#define SUCCESS 0
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3

typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct {
    char id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char id[32];
} pci_info;

static long number(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? strtol(text, NULL, 10) : otherwise;
}
static long devices(void) { return number("VGPU_NUM_DEVICES", 1); }
/* A handle is the device's index plus one, so that none is NULL. */
static long index_of(void *device) { return (long)device - 1; }

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlInitWithFlags(unsigned flags) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int result) { return result == SUCCESS ? "no error" : "not answered by the virtual GPU"; }

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    snprintf(version, length, "%d.%d.0", 560 + 10 * (CUDA_VERSION / 1000 - 12), CUDA_VERSION / 10 % 100);
    return SUCCESS;
}
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = CUDA_VERSION; return SUCCESS; }

int nvmlDeviceGetCount_v2(unsigned *count) { *count = (unsigned)devices(); return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (index >= devices())
        return INVALID_ARGUMENT;
    *device = (void *)((long)index + 1);
    return SUCCESS;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) { return nvmlDeviceGetHandleByIndex_v2(0, device); }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device) {
    unsigned domain, bus = 0;
    sscanf(id, "%x:%x", &domain, &bus);
    return nvmlDeviceGetHandleByIndex_v2(bus, device);
}
int nvmlDeviceGetIndex(void *device, unsigned *index) { *index = (unsigned)index_of(device); return SUCCESS; }
int nvmlDeviceGetMinorNumber(void *device, unsigned *minor) { return nvmlDeviceGetIndex(device, minor); }
int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    const char *text = getenv("VGPU_NAME");
    snprintf(name, length, "%s", text ? text : "virtual GPU");
    return SUCCESS;
}
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
    snprintf(uuid, length, "GPU-00000000-0000-0000-0000-%012ld", index_of(device));
    return SUCCESS;
}
int nvmlDeviceGetPciInfo_v3(void *device, pci_info *info) {
    memset(info, 0, sizeof *info);
    info->bus = (unsigned)index_of(device);
    snprintf(info->id_legacy, sizeof info->id_legacy, "0000:%02X:00.0", info->bus);
    snprintf(info->id, sizeof info->id, "00000000:%02X:00.0", info->bus);
    return SUCCESS;
}
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    *major = (int)number("VGPU_CC_MAJOR", 0);
    *minor = (int)number("VGPU_CC_MINOR", 0);
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo(void *device, memory *info) {
    info->total = info->free = (unsigned long long)number("VGPU_MEMORY_BYTES", 0);
    info->used = 0;
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2 *info) {
    info->total = info->free = (unsigned long long)number("VGPU_MEMORY_BYTES", 0);
    info->used = info->reserved = 0;
    return SUCCESS;
}
/* Peers of one host are linked: a server with custom all-reduce asks before it uses it. */
int nvmlDeviceGetP2PStatus(void *from, void *to, int capability, int *status) { *status = 0; return SUCCESS; }
/* torch lists them when memory runs out. */
int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, void *processes) { *count = 0; return SUCCESS; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, void *processes) { *count = 0; return SUCCESS; }
int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, int *type) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, pci_info *info) { return NOT_SUPPORTED; }
