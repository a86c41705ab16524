// A libcuda for cuDNN to link to where there is none: plans for described devices load machine code, and run nothing.
#include <stddef.h>
#include <stdlib.h>

enum { NO_DEVICE = 100 };
#define ABSENT(name) \
  int name(void) { return NO_DEVICE; }
ABSENT(cuCtxGetCurrent)
ABSENT(cuCtxGetLimit)
ABSENT(cuCtxPopCurrent)
ABSENT(cuCtxPushCurrent)
ABSENT(cuDeviceGet)
ABSENT(cuGetProcAddress)
ABSENT(cuGetProcAddress_v2)
ABSENT(cuInit)
ABSENT(cuLaunchCooperativeKernel)
ABSENT(cuLaunchKernel)
ABSENT(cuLaunchKernelEx)
ABSENT(cuLibraryLoadFromFile)
ABSENT(cuLinkAddData)
ABSENT(cuLinkComplete)
ABSENT(cuLinkCreate)
ABSENT(cuLinkDestroy)
ABSENT(cuModuleUnload)
ABSENT(cuStreamGetCtx)
ABSENT(cuTensorMapEncodeIm2col)
ABSENT(cuTensorMapEncodeTiled)

// A library, a module, a kernel: a name that is nothing.
static int named(void** out) {
  *out = malloc(1);
  return 0;
}
int cuDeviceGetCount(int* n) { return *n = 0; }
int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
int cuGetErrorName(int error, const char** text) {
  *text = "CUDA_ERROR_NO_DEVICE";
  return 0;
}
int cuGetErrorString(int error, const char** text) {
  *text = "there is no device";
  return 0;
}
int cuKernelGetAttribute(int* value, int attribute, void* kernel, int device) { return *value = 0; }
int cuKernelGetFunction(void** function, void* kernel) {
  *function = kernel;
  return 0;
}
int cuKernelSetAttribute(int attribute, int value, void* kernel, int device) { return 0; }
int cuLibraryGetKernel(void** kernel, void* library, const char* name) { return named(kernel); }
int cuLibraryLoadData(void** library, const void* code) { return named(library); }
int cuLibraryUnload(void* library) { return 0; }
int cuModuleGetFunction(void** function, void* module, const char* name) { return named(function); }
int cuModuleLoadData(void** module, const void* code) { return named(module); }
int cuOccupancyMaxPotentialClusterSize(int* size, void* function, const void* config) {
  *size = 8;
  return 0;
}
