/* NCCL of a GPU that is not there, for one rank without its peers.
 *
 * Communicators exist and what is sent arrives nowhere. What hands a result back is here. Every other function that
 * nccl.h declares is generated (build.py): one that asks or makes something names itself and fails, the rest succeeds,
 * because a collective is a launch, and launches do nothing.
 */
#include <stdlib.h>
#include <string.h>

#include <nccl.h>

struct communicator { int size, rank; };

ncclResult_t ncclGetVersion(int *version) { *version = NCCL_VERSION_CODE; return ncclSuccess; }
const char *ncclGetErrorString(ncclResult_t result) { return result == ncclSuccess ? "no error" : "error"; }
const char *ncclGetLastError(ncclComm_t communicator) { return "no error"; }

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) { memset(id, 0, sizeof *id); return ncclSuccess; }

ncclResult_t ncclCommInitRank(ncclComm_t *communicator, int size, ncclUniqueId id, int rank) {
    struct communicator *made = malloc(sizeof *made);
    if (made == NULL)
        return ncclSystemError;
    made->size = size;
    made->rank = rank;
    *communicator = (ncclComm_t)made;
    return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t *communicator, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t *config) {
    return ncclCommInitRank(communicator, size, id, rank);
}
ncclResult_t ncclCommSplit(ncclComm_t whole, int color, int key, ncclComm_t *communicator, ncclConfig_t *config) {
    const struct communicator *of = (const struct communicator *)whole;
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    return ncclCommInitRank(communicator, of->size, id, of->rank);
}
ncclResult_t ncclCommDestroy(ncclComm_t communicator) { free(communicator); return ncclSuccess; }
ncclResult_t ncclCommAbort(ncclComm_t communicator) { return ncclCommDestroy(communicator); }

ncclResult_t ncclCommCount(const ncclComm_t communicator, int *count) {
    *count = ((const struct communicator *)communicator)->size;
    return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t communicator, int *rank) {
    *rank = ((const struct communicator *)communicator)->rank;
    return ncclSuccess;
}
ncclResult_t ncclCommCuDevice(const ncclComm_t communicator, int *device) { *device = 0; return ncclSuccess; }
ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t *error) {
    *error = ncclSuccess;
    return ncclSuccess;
}

ncclResult_t ncclMemAlloc(void **pointer, size_t bytes) {
    return cudaMalloc(pointer, bytes) == 0 ? ncclSuccess : ncclUnhandledCudaError;
}
ncclResult_t ncclCommWindowRegister(ncclComm_t communicator, void *memory, size_t bytes, ncclWindow_t *window,
                                    int flags) {
    *window = (ncclWindow_t)memory;
    return ncclSuccess;
}
ncclResult_t ncclCommRegister(const ncclComm_t communicator, void *memory, size_t bytes, void **handle) {
    *handle = memory;
    return ncclSuccess;
}
