// TESSERA_HOST_DEVICE marks functions that both the host and CUDA device code use.
#ifndef TESSERA_KERNELS_HOST_DEVICE_H_
#define TESSERA_KERNELS_HOST_DEVICE_H_

// Always inlined on the host as well: some of these functions are used from files compiled for one instruction set
// each, and an out-of-line copy with AVX-512 code must not be the one the linker keeps for everybody.
#if defined(__CUDACC__)
#define TESSERA_HOST_DEVICE __host__ __device__ __forceinline__
#elif defined(__GNUC__)
#define TESSERA_HOST_DEVICE inline __attribute__((always_inline))
#else
#define TESSERA_HOST_DEVICE inline
#endif

#endif  // TESSERA_KERNELS_HOST_DEVICE_H_
