"""Older kernels whose measurements choose for the kernels of this package, too.

An artefact is used with the kernels that were measured, which their hash identifies. Every change of the kernels gives
another hash, also one that makes configs faster and none slower. Without an entry here the heuristic would then choose
on every GPU model until it is swept again. An entry should rest on what artefacts of the older kernels choose, measured
on the new ones beside the heuristic's picks (docs/tuning.md, "New kernels and other GPUs"); what was measured, and what
was not, stands at the entries. They hold for these hashes alone: the next change of the kernels ends them.
"""

#: {op kind: (kernel hash, each older one whose measurements choose for it)}. The older ones are those of the H200's
#: artefact, of which dense and contiguous products are of the present kernels, as is all of the H100's. (The H200's
#: contiguous ones were measured with bands of before, which are no part of a kernel: docs/kernels.md.) The machine code
#: of logits is that of the kernels before: 132 kernels spread over the configs of all recorded problems are the same to
#: the byte. On an H200 the choices for masked FP8 lose 1.0 % on 16 drawn products, the heuristic's 5.4 %
#: (choice_regret.json); masked BF16 was compared with sweeps of still older kernels, where they lost 4.6 % on 70
#: products and the heuristic's 8.2 %. Groups of K, batched products and sums were not timed so.
SERVED: dict[str, tuple[str, ...]] = {
    "m_grouped_fp8_gemm_masked": (
        "d3d7e8a9ce70f0f3a967eee4a4479a34a2c7d1ae62e9daa2e44a435ae39d0b96",
        "25a76a50be82bdf0155a820d089d61c75dedf2cfc921fc0a7e6f7377930f438b",
    ),
    "m_grouped_bf16_gemm_masked": (
        "46ee6815acaed838605327c830c53acdf97909e561e2c17f449b36ca8c5e41e0",
        "022bd3eb96323f9372b3b4dd1f0e6d8eb32d0ee1cb8a4c4ee45c4ea84665c403",
    ),
    "k_grouped_fp8_gemm_contiguous": (
        "3149a65921defb18eee5caf7706ab3ddc7c60b7c40c1721eca4bc073f0578708",
        "320095a9168c4f085db9cd0dce7a7bab307dd5b3a411dcbae2ec58984b2da5fc",
    ),
    "k_grouped_bf16_gemm_contiguous": (
        "3c42891f2fad5684aa9b90abf46df722f891fba6849b513f78844e672ca0d350",
        "02b43e5070f125a3c3737d27012c85fe59248a355978a4715a0bb249d8cb3187",
    ),
    "k_grouped_fp8_gemm_psum": (
        "35c0ee602b4f30db92e2a29f0ed78c8ec3409b14b1c98811240bb818765f0c1c",
        "b95a28abf7ce7f4c88ac249e0b18de94379fa53fca12094411d61c4c2c2845e5",
    ),
    "k_grouped_bf16_gemm_psum": (
        "c41872aed2aa6c9c097ce9d8457f1624cc15bd6ea3082d686ec8569594f92a82",
        "5d031a829af2b8da870ac411c5b35868231fe7f41257bba26acf9529d98d16f7",
    ),
    "batched_fp8_gemm": (
        "589946387896ca3df6a3d7e1f4912e6724eeff4a10accfd323f980deed684ecf",
        "be0e4b1f62e70ee2874eb0e5a460e34d2b4ee5761fac1049f90f270c452cf1ae",
    ),
    "batched_bf16_gemm": (
        "8026cac5e24c38ce9375f61d5d1f01ff387944313824a742fa842647fb616d07",
        "b9568cf1be9729c97e1a4b1e17daf85010dbf5d681c4ee1f34be359110f02feb",
    ),
    "summed_bf16_gemm": (
        "1520a516e356a87e3d324f812127225a49cb2b2d334d603f8a36432dfd978cca",
        "27a96a4aa466a2e9284ec19734c91aa23e02e7133da2eee002860f430b70a7bb",
    ),
    "fp8_mqa_logits": (
        "2825fb7fc24ebfa90bcad6d8d28019c34d9bc7b1befcac93ddee3317169d4fba",
        "05948ad5d9bf6c71a04ebf28b8e3c4da26832f19335282d2e6dc3ed85c1ffa50",
        "60b2888d2e903c71132afa5e3be6c270003c5899c9437801fa0da456c2afbd36",
    ),
    "fp8_paged_mqa_logits": (
        "a5bdf2482899696d2b91828fb2d431f515f595f21cf9944a42b9afbcbd118b5b",
        "37ed7447b6ec3fd02a644187069642e86b02a7a13f03285dc4696babae2d628b",
        "ed1590e5aa39583a99ae9768d8e8d9e7ef7f9b59383df0093c6b4ffd71a7f287",
    ),
}


def list_serving(op: str, kernel_hash: str) -> list[str]:
    """Return the hashes whose measurements choose for kernels of `op` with `kernel_hash`: that one, then older ones."""
    current, *older = SERVED.get(op, ("",))
    return [kernel_hash, *older] if current == kernel_hash else [kernel_hash]


def find_serving(op: str, kernel_hash: str, recorded: str) -> str:
    """Return `recorded` where measurements of these kernels of `op` choose for those of `kernel_hash`, too; else
    `kernel_hash`, which only its own measurements match.
    """
    if recorded == kernel_hash:  # as nearly always, and every new choice asks
        return recorded
    return recorded if recorded in list_serving(op, kernel_hash) else kernel_hash
