"""cuda-python links the CUDA runtime statically, so its functions are replaced by calls of the virtual one."""

import ctypes


def install():
    """Replace the functions of cuda.bindings.runtime that a server calls; does nothing when it is not installed."""
    try:
        from cuda.bindings import runtime
    except ImportError:
        return
    virtual = ctypes.CDLL(None)

    def get_capture_info(stream):
        status = ctypes.c_int()
        code = virtual.cudaStreamIsCapturing(ctypes.c_void_p(int(stream)), ctypes.byref(status))
        return runtime.cudaError_t(code), runtime.cudaStreamCaptureStatus(status.value), 0

    runtime.cudaStreamGetCaptureInfo = get_capture_info
    runtime.cudaDeviceSynchronize = lambda: (runtime.cudaError_t(virtual.cudaDeviceSynchronize()),)
