// Programmatic dependent launch, for .cu files: a kernel's CTAs may become resident while the kernel before it in the stream
// still runs, so that its ramp hides behind the other's tail.
//
// Every kernel launched so calls GridDependencyWait() in all of its threads before the first access to memory that an
// earlier kernel writes or reads, parameters that lie in device memory included; before that it may read what no
// kernel writes (weights). The wait ends when the kernel before has finished, which itself waited for the one before it.
// GridDependencyLaunch() lets the next kernel's CTAs come, once all CTAs of this one have said so; the end of a CTA says
// it too.
#ifndef TESSERA_KERNELS_CUDA_LAUNCH_H_
#define TESSERA_KERNELS_CUDA_LAUNCH_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <utility>

namespace tessera::cuda {

// kernel<<<grid, block, shared, stream>>>(args...) with the attribute; can be captured in a graph.
template <class... Params, class... Args>
cudaError_t LaunchDependent(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared,
                            cudaStream_t stream, Args&&... args) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
}

#ifdef __CUDACC__
__device__ __forceinline__ void GridDependencyWait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void GridDependencyLaunch() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
#endif

}  // namespace tessera::cuda

#endif  // TESSERA_KERNELS_CUDA_LAUNCH_H_
