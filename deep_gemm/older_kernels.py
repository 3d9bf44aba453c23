"""Older kernels whose measurements choose for the kernels of this package, too.

An artefact is used with the kernels that were measured, which their hash identifies. Every change of the kernels gives
another hash, also one that makes configs faster and none slower. Without an entry here the heuristic would then choose
on every GPU model until it is swept again. An entry should rest on what artefacts of the older kernels choose, measured
on the new ones beside the heuristic's picks (docs/tuning.md, "New kernels and other GPUs"); what was measured, and what
was not, stands at the entries. They hold for these hashes alone: the next change of the kernels ends them.
"""

#: {op kind: (kernel hash, each older one whose measurements choose for it)}. The older ones are those of the H200's
#: artefact; the H100's is of the present kernels. What the H200's chooses was compared with full sweeps of the present
#: kernels on an H200 for BF16, on drawn products that may take tiles which its rows lack: it loses 1.7 % on 137 dense
#: ones and 4.6 % on 70 masked ones, the heuristic 4.0 and 8.2 %. On an H100 the artefact before, of still older
#: kernels, lost 1.4 % on the 72 products of choice_regret.json, the heuristic 2.6 %. FP8 was not timed so on an H200,
#: nor batched products, sums and the psum layout on either.
SERVED: dict[str, tuple[str, ...]] = {
    "fp8_gemm": (
        "ec6e1d979acebb9e2a3db35c61c372f9b4d68af6c7adc83ff42fb5e5964b1c76",
        "25213bfd6fb3a6ae341b5222c0e93c5351845253f4923bf885eb313223b76479",
    ),
    "bf16_gemm": (
        "de2d9133266a8cb2afb2a77e46858c526b81d56131d3ebb5b63afddeb887194f",
        "601e259a4425205842034ea1dea6922a404c5a49f753b1e0114121012afc0309",
    ),
    "m_grouped_fp8_gemm_contiguous": (
        "88224ac2a3f733648ef951abc4935f1b67c7042d90cb741fc7e95e2a337eda79",
        "ae06e66eeac65c389231e2a841f75959a1f3192f076a308cbe247daaf7aca259",
    ),
    "m_grouped_bf16_gemm_contiguous": (
        "b2038c936a6de398f27b5cdb470e3f0330387ee5da753bae72964ea97f56009c",
        "84f08668d979658928ce6484929cb02451b117d639923493a12572ea9e502c12",
    ),
    "m_grouped_fp8_gemm_masked": (
        "ffb12fabbe01994b469b91f813fa366ae30d056450ff823202411bb4256d13c3",
        "25a76a50be82bdf0155a820d089d61c75dedf2cfc921fc0a7e6f7377930f438b",
    ),
    "m_grouped_bf16_gemm_masked": (
        "46c9092925d4e2edd398701f254db858d9f3676beac2afd75990cb62abaf6a30",
        "022bd3eb96323f9372b3b4dd1f0e6d8eb32d0ee1cb8a4c4ee45c4ea84665c403",
    ),
    "k_grouped_fp8_gemm_contiguous": (
        "a889920314e4b125f1b6c3b2628d782ed9f3b6cff7adf070b1efb6e991ccc5ef",
        "320095a9168c4f085db9cd0dce7a7bab307dd5b3a411dcbae2ec58984b2da5fc",
    ),
    "k_grouped_bf16_gemm_contiguous": (
        "e42432f44aafa28fbae43fc0a3ab5881145c94f6c7468f823cac43ba99decff8",
        "02b43e5070f125a3c3737d27012c85fe59248a355978a4715a0bb249d8cb3187",
    ),
    "m_grouped_fp8_gemm_psum": (
        "7d40de7973c866db1c410504038eb9f181f159afa7a3da9049519a58008ff953",
        "cb4b789e97c202271f432934fd8f35116b0425cdb51f3e64a8875182ea0bddab",
    ),
    "m_grouped_bf16_gemm_psum": (
        "359d3d15853ca27d9227c597478bdae14e71124380d6fa5cc90bb7c631feb037",
        "388992f3fa4f307434099a1f52becff516453f30ce1d09c8c9da1b882c6c922a",
    ),
    "k_grouped_fp8_gemm_psum": (
        "80a2c4566cbcb3e84a5671f835c4fdd2c04f8c69daf672cc50db11e07f8648a1",
        "b95a28abf7ce7f4c88ac249e0b18de94379fa53fca12094411d61c4c2c2845e5",
    ),
    "k_grouped_bf16_gemm_psum": (
        "af0e25c9000c528b5c9e7bbb92c382996b87cf22ebd56f5b289e692b73fda61e",
        "5d031a829af2b8da870ac411c5b35868231fe7f41257bba26acf9529d98d16f7",
    ),
    "batched_fp8_gemm": (
        "4b39511c527d9ab95460f2cf74c09a6dab757b5827d62f12cf85c8acc390ce83",
        "be0e4b1f62e70ee2874eb0e5a460e34d2b4ee5761fac1049f90f270c452cf1ae",
    ),
    "batched_bf16_gemm": (
        "fa9f3a0cf8f4d45d28470b49b750709b90a547d92e713e777777a71cad8f6814",
        "b9568cf1be9729c97e1a4b1e17daf85010dbf5d681c4ee1f34be359110f02feb",
    ),
    "summed_bf16_gemm": (
        "3813ba28a6781c0a986f1dfc7ef6e07f15821813a52eb628e105811f7c35c846",
        "27a96a4aa466a2e9284ec19734c91aa23e02e7133da2eee002860f430b70a7bb",
    ),
    "fp8_mqa_logits": (
        "05948ad5d9bf6c71a04ebf28b8e3c4da26832f19335282d2e6dc3ed85c1ffa50",
        "60b2888d2e903c71132afa5e3be6c270003c5899c9437801fa0da456c2afbd36",
    ),
    "fp8_paged_mqa_logits": (
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
    return recorded if recorded in list_serving(op, kernel_hash) else kernel_hash
