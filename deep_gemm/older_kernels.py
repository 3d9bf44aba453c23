"""Older kernels whose measurements choose for the kernels of this package, too.

An artefact is used with the kernels that were measured, which their hash identifies. Every change of the kernels gives
another hash, also one that makes configs faster and none slower. Without an entry here the heuristic would then choose
on every GPU model until it is swept again. An entry should rest on what artefacts of the older kernels choose, measured
on the new ones beside the heuristic's picks (docs/tuning.md, "New kernels and other GPUs"); what was measured, and what
was not, stands at the entries. They hold for these hashes alone: the next change of the kernels ends them.
"""

#: {op kind: (kernel hash, each older one whose measurements choose for it)}. The older ones are those of the H100's
#: artefact; the H200's is of the present kernels, but for `fp8_mqa_logits`. Where A and B are K-major, as all FP8
#: operands are, the machine code is the same to the byte (benchmarks/same_code.json). MN-major ones leave out what lies
#: beyond the matrix: on an H200 the choices for 17 products with such operands take 0.974 of their time before, 0.81 to
#: 1.00. `fp8_paged_mqa_logits` has no entry: with its new kernels the older choices for 108 caches take 1.001 of the
#: time of the heuristic's picks, and up to 1.22 (an H200).
SERVED: dict[str, tuple[str, ...]] = {
    "fp8_gemm": (
        "428cee41618f80e26cf4228c51250811bdcec9815fbbf0d4ea588009b06dbf71",
        "3fd8a3809f914908d14152c8718e417e18132c62940cf93103c48e5d60ffe7d9",
    ),
    "bf16_gemm": (
        "f45d32c05834c2277cf8fff2873774497f426197a903aaf05bbc06fa909afc79",
        "5f716e347b73095ea18361d375ddbf41e3810b89dd4934eec9a997e33d88e3d1",
    ),
    "m_grouped_fp8_gemm_contiguous": (
        "4309992e74fd74e8b6ec786ec38e7b0430575ec4557268b135b2d681237bf61c",
        "9e89cd50f86733efbe1b479a9845987b7b765ac5e9b7ea2622d0027fea91a8ef",
    ),
    "m_grouped_bf16_gemm_contiguous": (
        "8c665300b2a3fd68673c57f343bc6fa25a537917c80c244c9585d42604c8ea99",
        "22eae68bc056be1ee003b56858def5619861018fd3fb2095e8ca237a90770aca",
    ),
    "m_grouped_fp8_gemm_masked": (
        "4d6134eca75b4fde74f4a94eaa654c6f00c3238e5bbf9153e297d66f4e885068",
        "d3d7e8a9ce70f0f3a967eee4a4479a34a2c7d1ae62e9daa2e44a435ae39d0b96",
    ),
    "m_grouped_bf16_gemm_masked": (
        "27c5735770ce6521d0089151afd12518a08fa917ce1cbf1885a85abf477b6765",
        "46ee6815acaed838605327c830c53acdf97909e561e2c17f449b36ca8c5e41e0",
    ),
    "k_grouped_fp8_gemm_contiguous": (
        "6ae24d8a1829a5735866497df42a4b2970124ae9c908134e9ef6d7d332cf6ec1",
        "3149a65921defb18eee5caf7706ab3ddc7c60b7c40c1721eca4bc073f0578708",
    ),
    "k_grouped_bf16_gemm_contiguous": (
        "fdea9c8d5e089c65d86bda6d913b95ba3f9a4b7f2ed6362afc846bbbf5dc2be4",
        "3c42891f2fad5684aa9b90abf46df722f891fba6849b513f78844e672ca0d350",
    ),
    "m_grouped_fp8_gemm_psum": (
        "98aa0ab81704bfaffb9839bc03469bd16f433e9d4bafec2a4ede35b02b3dd7af",
        "678991e2ae13e20573609d49f2aa424420467ae83587832d71d9b18ce31703ff",
    ),
    "m_grouped_bf16_gemm_psum": (
        "227f4d135d180f4bc82b46a699b3529a48b19f828c2625b9a61dab0b3e31a9e8",
        "2d3c0afddf0b6c24d386ae9a80509bb48275f43439caec904d496befe87efbd2",
    ),
    "k_grouped_fp8_gemm_psum": (
        "52dc99542f063744b09ab0cc72945be08cb54a77dda7f78011b00643f308bb6a",
        "35c0ee602b4f30db92e2a29f0ed78c8ec3409b14b1c98811240bb818765f0c1c",
    ),
    "k_grouped_bf16_gemm_psum": (
        "0e89090bd80f0e123db1a763376ef7c3aa70cc6beffc987819b3cf5fbac58703",
        "c41872aed2aa6c9c097ce9d8457f1624cc15bd6ea3082d686ec8569594f92a82",
    ),
    "batched_fp8_gemm": (
        "36de6d9f615b6f91ac6047cbd54e2acbb372cafef71103de38ba461a4c133ae0",
        "589946387896ca3df6a3d7e1f4912e6724eeff4a10accfd323f980deed684ecf",
    ),
    "batched_bf16_gemm": (
        "07dcc63151c09721a1d6d3877a1fb67c55fbec59eb3d8cbd1939fbe597c40db0",
        "8026cac5e24c38ce9375f61d5d1f01ff387944313824a742fa842647fb616d07",
    ),
    "summed_bf16_gemm": (
        "c130d8db5c3dbbad0b70ad0a62520f61fdc076a3467a973376d8e2bdfa88351c",
        "1520a516e356a87e3d324f812127225a49cb2b2d334d603f8a36432dfd978cca",
    ),
    "fp8_mqa_logits": (
        "0b3874e5f8142d06a5da75e8eec89fe8dd61f9a16848882d4a9a54bc903adbd5",
        "2825fb7fc24ebfa90bcad6d8d28019c34d9bc7b1befcac93ddee3317169d4fba",
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
