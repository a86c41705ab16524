// Of libcuda.so.1 for tests: modules that the fake compiler made, and launches in the emulator.
#include <cstdio>
#include <cstring>

#include "state.h"

extern "C" int emulator_launch(const char* name, const unsigned grid[3], unsigned threads, size_t shared_bytes,
                               void* const* args, size_t n_args, unsigned n_workers, unsigned order, char* error,
                               size_t error_bytes);

using namespace fake;

extern "C" int cuCtxGetCurrent(void** handle);

// As the macros of driver.cpp.
#define CALL(name) \
  std::lock_guard<std::recursive_mutex> held(state.lock); \
  if (Code code = planned(name)) return code; \
  Context* current = nullptr; \
  if (Code code = cuCtxGetCurrent((void**)&current)) return code; \
  if (!current) return INVALID_CONTEXT; \
  if (!current->alive) return DESTROYED
#define CALL_IN_CONTEXT(name) \
  CALL(name); \
  if (current->sticky) return current->sticky

template <class T> static T* live(const std::map<T*, std::unique_ptr<T>>& all, void* handle) {
  auto found = all.find((T*)handle);
  return found == all.end() ? nullptr : found->second.get();
}

extern "C" {

// What the fake compiler makes: lines of magic, architecture, file, and what the names of its kernels end with.
Code cuModuleLoadData(void** handle, const char* image) {
  CALL_IN_CONTEXT("cuModuleLoadData");
  char arch[32], file[128], suffix[128] = "";
  if (sscanf(image, "fake cubin\n%31s\n%127s\n%127s", arch, file, suffix) < 2) return INVALID_IMAGE;
  const Device& device = devices[current->device];
  std::string own = "sm_" + std::to_string(device.major) + std::to_string(device.minor);
  if (std::string(arch).substr(0, own.size()) != own) return NO_BINARY;
  auto module = std::make_unique<Module>(Module{current, file, suffix});
  *handle = module.get();
  state.modules[module.get()] = std::move(module);
  return 0;
}
Code cuModuleUnload(void* handle) {
  CALL("cuModuleUnload");
  Module* module = live(state.modules, handle);
  if (!module) return INVALID_HANDLE;
  drain(current);
  std::erase_if(state.functions, [&](auto& entry) { return entry.second->module == module; });
  state.modules.erase(module);
  return 0;
}
Code cuModuleGetFunction(void** handle, void* from, const char* name) {
  CALL_IN_CONTEXT("cuModuleGetFunction");
  Module* module = live(state.modules, from);
  if (!module) return INVALID_HANDLE;
  const emulator::Kernel* kernel = emulator::find(name);
  if (!kernel || !std::string(kernel->file).ends_with("/" + module->file)) return NOT_FOUND;
  if (!std::string(name).ends_with(module->suffix)) return NOT_FOUND;
  auto function = std::make_unique<Function>(Function{current, module, name, kernel});
  *handle = function.get();
  state.functions[function.get()] = std::move(function);
  return 0;
}
Code cuFuncSetAttribute(void* handle, int attribute, int value) {
  CALL_IN_CONTEXT("cuFuncSetAttribute");
  Function* function = live(state.functions, handle);
  if (!function) return INVALID_HANDLE;
  if (attribute != 8 || value < 0 || value > devices[current->device].shared_bytes) return INVALID_VALUE;
  function->shared_bytes = value;
  return 0;
}
Code cuFuncGetAttribute(int* value, int attribute, void* handle) {
  CALL_IN_CONTEXT("cuFuncGetAttribute");
  if (!live(state.functions, handle)) return INVALID_HANDLE;
  if (attribute != 3 && attribute != 4) return INVALID_VALUE;
  *value = attribute == 4 ? 32 : 0;
  return 0;
}

Code cuLaunchKernel(void* handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned threads, unsigned threads_y,
                    unsigned threads_z, unsigned shared_bytes, void* on, void** args, void** extra) {
  CALL_IN_CONTEXT("cuLaunchKernel");
  Function* function = live(state.functions, handle);
  auto found = state.streams.find((Stream*)on);
  if (!function || found == state.streams.end()) return INVALID_HANDLE;
  if (found->second->context != current || function->context != current) return INVALID_HANDLE;
  const emulator::Kernel& kernel = *function->kernel;
  if (!args || extra || threads != kernel.threads || threads_y != 1 || threads_z != 1) return INVALID_VALUE;
  if (!grid_x || !grid_y || !grid_z || grid_y > 65535 || grid_z > 65535) return INVALID_VALUE;
  if (shared_bytes > function->shared_bytes) return INVALID_VALUE;
  std::vector<std::vector<char>> copied;
  for (size_t i = 0; i < kernel.n_args; i++) {
    if (!args[i]) return INVALID_VALUE;
    copied.emplace_back((char*)args[i], (char*)args[i] + kernel.sizes[i]);
    char* at = nullptr;
    if (!kernel.types[i].pointer) continue;
    memcpy(&at, args[i], sizeof at);
    if (at && !find_device(at, 0)) return say(INVALID_VALUE, "an argument is no device memory");
  }
  // The order of threads is another one at each launch.
  unsigned order = state.launches++ % 4;
  enqueue(*found->second, [=, name = function->name] {
    note_run(name);
    unsigned grid[3] = {grid_x, grid_y, grid_z};
    std::vector<void*> params;
    for (const std::vector<char>& arg : copied) params.push_back((void*)arg.data());
    char error[1024] = "";
    int failed = 0;
    Code code = opened_by_kernels(current, [&] {
      failed = emulator_launch(name.c_str(), grid, threads, shared_bytes, params.data(), params.size(), 1, order, error,
                               sizeof error);
    });
    if (!failed) return code;
    bool is_address = strstr(error, "out of bounds") || strstr(error, "no memory of the device");
    return say(is_address ? ILLEGAL_ADDRESS : LAUNCH_FAILED, error);
  });
  return 0;
}

}  // extern "C"
