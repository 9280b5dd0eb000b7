// Included before Horovod's operations for TensorFlow: where TensorFlow has moved its streams into XLA it has no
// `AsGpuStreamValue` any more, which Horovod declares and calls.
#if HAVE_CUDA && __has_include("xla/stream_executor/stream.h")
#include <cuda_runtime.h>

#include "xla/stream_executor/stream.h"

namespace stream_executor {
namespace gpu {
inline cudaStream_t AsGpuStreamValue(Stream* stream) {
  return static_cast<cudaStream_t>(stream->platform_specific_handle().stream);
}
}  // namespace gpu
}  // namespace stream_executor
#endif
