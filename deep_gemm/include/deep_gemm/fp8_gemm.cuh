// FP8 GEMM with FP32 scales for SM90 (sm90/gemm.cuh), promotion every 128 of K.
#pragma once

#include "deep_gemm/sm90/gemm.cuh"
#include "deep_gemm/sm90/mainloop/fp8_mainloop.cuh"
#include "deep_gemm/sm90/mainloop/fp8_unrolled.cuh"

namespace deep_gemm {

template <class Config, class Wgmma>
struct Fp8MainloopOf {
    static constexpr bool kUnrolled = Config::kLoop,
                          kInChunks = Config::kScaleWarp || (kUnrolled && GemmLayout<Config>::kRing);
    using AnyLayout = typename Choose<kUnrolled, ChunkReader<Config>, RingReader<Config>>::Type;
    using MnMajor = typename Choose<Config::kScaleWarp, BlockReader<Config>, StageReader<Config>>::Type;
    using Reader = typename Choose<GemmLayout<Config>::kRing, AnyLayout, MnMajor>::Type;
    using Steps =
        typename Choose<kUnrolled, Fp8Unrolled<Config, Wgmma, Reader>, Fp8Mainloop<Config, Wgmma, Reader>>::Type;
    using Type = typename Choose<kInChunks, InChunks<Config, Steps, Reader>, Steps>::Type;
};

template <class Config, class Wgmma, class Scheduler>
using Fp8Gemm = Gemm<Config, typename Fp8MainloopOf<Config, Wgmma>::Type, Scheduler>;

}  // namespace deep_gemm
