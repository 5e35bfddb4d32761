// The GPU kernels of the ops that _ops.so defines, which has to be loaded first.

#include <exception>
#include <initializer_list>
#include <memory>
#include <utility>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf/bits.h"
#include "tf/decode.h"
#include "tf/dropout.h"
#include "tf/encode.h"
#include "tf/gpu/bits.h"
#include "tf/gpu/bucket.h"
#include "tf/gpu/call.h"
#include "tf/gpu/device.h"
#include "tf/gpu/dropout.h"
#include "tf/reduce.h"

namespace gradcomp::tf {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::KernelDefBuilder;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

template <class Kernel>
void Init(OpKernelConstruction* context, Kernel* kernel) {
  Attrs attrs(reinterpret_cast<TF_OpKernelConstruction*>(context));
  try {
    kernel->Init(attrs);
  } catch (const std::exception& error) {
    attrs.Fail(kResourceExhausted, error.what());
  }
}

template <class Kernel>
bool Compute(const Kernel& kernel, GpuCall& call) {
  try {
    return kernel.Compute(call);
  } catch (const std::exception& error) {
    return call.Fail(kResourceExhausted, error.what());
  }
}

TF_OpKernelContext* ToC(OpKernelContext* context) {
  return reinterpret_cast<TF_OpKernelContext*>(context);
}

template <class Kernel>
class Launching : public OpKernel {
 public:
  explicit Launching(OpKernelConstruction* context) : OpKernel(context) { Init(context, &kernel_); }

  void Compute(OpKernelContext* context) override {
    GpuCall call(ToC(context));
    tf::Compute(kernel_, call);
  }

 private:
  Kernel kernel_;
};

// Done at once, or where payloads may be malformed, when the stream has come to what tells: no
// thread waits for it.
class Decoding : public AsyncOpKernel {
 public:
  explicit Decoding(OpKernelConstruction* context) : AsyncOpKernel(context) {
    Init(context, &kernel_);
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    auto reading = std::make_unique<Reading>(context, std::move(done));
    if (!tf::Compute(kernel_, reading->call) || !reading->call.is_reading() ||
        !reading->call.Check(cudaStreamAddCallback(reading->call.stream(), Read, reading.get(), 0),
                             "decode")) {
      return Finish(std::move(reading));
    }
    reading.release();  // Read() has it
  }

 private:
  struct Reading {
    Reading(OpKernelContext* context, DoneCallback done)
        : call(ToC(context)),
          done(std::move(done)),
          workers(context->device()->tensorflow_cpu_worker_threads()->workers) {}

    GpuCall call;
    DoneCallback done;
    tensorflow::thread::ThreadPool* workers;
  };

  // In a thread of CUDA's, which may not call CUDA, as what follows an op does.
  static void CUDART_CB Read(cudaStream_t, cudaError_t error, void* data) {
    auto* reading = static_cast<Reading*>(data);
    reading->workers->Schedule([reading, error] {
      if (reading->call.Check(error, "decode")) reading->call.CheckRead();
      Finish(std::unique_ptr<Reading>(reading));
    });
  }

  // The context may go with the call of `done`.
  static void Finish(std::unique_ptr<Reading> reading) {
    const DoneCallback done = std::move(reading->done);
    reading.reset();
    done();
  }

  DecodeKernel<Gpu> kernel_;
};

template <class Kernel>
void Register(const char* op, std::initializer_list<const char*> in_host_memory) {
  KernelDefBuilder kernel(op);
  // Where kDevice is the CPU, as in tests, these are taken, and not those of _ops.so.
  kernel.Device(kDevice).Priority(1);
  for (const char* argument : in_host_memory) kernel.HostMemory(argument);
  tensorflow::kernel_factory::OpKernelRegistrar(
      kernel.Build(), op,
      [](OpKernelConstruction* context) -> OpKernel* { return new Kernel(context); });
}

bool RegisterAll() {
  Register<Launching<EncodeKernel<Gpu>>>("GradcompEncode", {"segments", "rng"});
  Register<Launching<ReduceKernel<Gpu>>>("GradcompReduce", {"segments", "rng", "scale"});
  Register<Decoding>("GradcompDecode", {"segments", "scale", "dims"});
  Register<Launching<PackBitsKernel<GpuBits>>>("GradcompPackBits", {});
  Register<Launching<UnpackBitsKernel<GpuBits>>>("GradcompUnpackBits", {"dims"});
  Register<Launching<DrawMaskKernel<GpuDropout>>>("GradcompDrawMask", {"dims"});
  Register<Launching<ApplyMaskKernel<GpuDropout>>>("GradcompApplyMask", {"scale"});
  return true;
}

[[maybe_unused]] const bool registered = RegisterAll();

}  // namespace
}  // namespace gradcomp::tf
