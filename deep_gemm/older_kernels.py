"""Older kernels whose measurements choose for the kernels of this package, too.

An artefact is used with the kernels that were measured, which their hash identifies. Every change of the kernels gives
another hash, also one that makes configs faster and none slower. Without an entry here the heuristic would then choose
on every GPU model until it is swept again. An entry should rest on what artefacts of the older kernels choose, measured
on the new ones beside the heuristic's picks (docs/tuning.md, "New kernels and other GPUs"); what was measured, and what
was not, stands at the entries. They hold for these hashes alone: the next change of the kernels ends them.
"""

#: {op kind: (kernel hash, each older one whose measurements choose for it)}, the newest first. What each step from an
#: older hash to the next newer one changed, from the newest on, with the op kinds that have the step. Code that is said
#: to be the same was compared byte by byte (benchmarks/same_code.json counts it), and times are of H200s:
#:
#: - `fp8_gemm`, `bf16_gemm`: no code. Grids of a few tokens have several CTAs an SM: 42 kernels with rings for them
#:   take 0.94 of their time, 0.76 to 1.00, whether the heuristic or an artefact chose them. Problems of up to 64 rows
#:   were swept again from 4,225 columns on; fewer have no such grids.
#: - Masked groups and groups with ends: weights leave L2 first no more where an SM has the memory for three CTAs, which
#:   gained nothing (0.98 to 1.02 in 72 BF16 products), and of more than 32 groups the 32 held speak for the others.
#:   Masked products with 230 MB of weights and more were swept again, groups with ends were not timed.
#: - Masked groups and groups with ends: before, B of FP8 alone left L2 first, from 400 MB on and also beside groups of
#:   two tiles. Only swapped tiles of up to 64 tokens by 128 rows of the weight have other code since. Masked products
#:   of up to 64 expected rows with 230 MB of weights and more were swept again, groups with ends were not timed.
#: - All op kinds: before, no B left L2 first. Only FP8 kernels of masked groups and groups with ends that have swapped
#:   tiles had other code after it. Masked ones were swept again then; such tiles take 0.98 of their time before where
#:   weights are large, beside other tiles.
#: - Masked groups and groups with ends: both walks over groups share a class since.
#: - Masked FP8 products: an earlier form of the tiles of the next step.
#: - All op kinds: FP8 tiles of 64 rows may have their math warpgroups side by side. Other tiles have had the same code
#:   since, but for the order of instructions in some kernels of masked FP8 products, which were swept again, and of
#:   groups with ends, which were not timed.
#: - Masked groups and groups with ends: the latter walk their tiles otherwise. Nine choices for 130 to 8,192 rows take
#:   0.99 of the time, 0.97 to 1.02, and 41 kernels 1.00.
#: - C comes one tile ahead; of the kernels before is the H200's artefact where newer ones were not swept. Kernels that
#:   do not add onto C have the same code since, but for 17 of 3,073 (masked FP8, groups of K), whose instructions have
#:   another order. Of those that add, the older trees' choices take 0.984 of the time of the heuristic's picks in 88
#:   groups of K in FP8, 0.989 in 76 in BF16 and 0.998 in 44 weight gradients in FP8, 1.02 at most; no tree chose for
#:   BF16 products onto C, which had not been swept.
#: - From the H100's artefact on, whose hash is the last: with K-major operands, as all of FP8 are, the code is else the
#:   same. MN-major ones leave out what lies beyond the matrix: the choices for 17 such products take 0.974 of the time
#:   before, 0.81 to 1.00. `fp8_paged_mqa_logits` has no entry of the H100's: its choices for 108 caches take 1.002 of
#:   the time of the heuristic's picks, and up to 1.22.
SERVED: dict[str, tuple[str, ...]] = {
    "fp8_gemm": (
        "dd9eff728619ba7bfa11e9f980ee31438f667a83c926401a2f94bbbe5abbdd86",
        "5c7fe8b92236e1af0d497369b4ac6d964803686cfa98abd08e9c5ae78f48afb8",
        "0ec94ba9438ef1e74cca733c0bf6f025e0dc1362e47bee42832dd41c056b96e9",
        "e87432ae30afdd8165bc2c33d1a995a523922ca35ee919c39fe9899981631534",
        "428cee41618f80e26cf4228c51250811bdcec9815fbbf0d4ea588009b06dbf71",
        "3fd8a3809f914908d14152c8718e417e18132c62940cf93103c48e5d60ffe7d9",
    ),
    "bf16_gemm": (
        "af341a040db30649f2c8fb58798bd1de1fb71eb5d40dc794a8f4829ef4027321",
        "12572bdb85d09a1e05d3aac75361e9d2fdbf29358611b3c00c4d6e747887c3da",
        "e0741f3b3146265b4147c7143b78f8554a1de2f0b0c634cb19e2731472f6c304",
        "5592229e005e1735c3d94fb970619a707a5c8afcdb31202e32a39cf4dd074844",
        "f45d32c05834c2277cf8fff2873774497f426197a903aaf05bbc06fa909afc79",
        "5f716e347b73095ea18361d375ddbf41e3810b89dd4934eec9a997e33d88e3d1",
    ),
    "m_grouped_fp8_gemm_contiguous": (
        "74edc909486655e755ee203bd84a3e56a0ba517848d25aaf762ba0f26fb40267",
        "21907a20da967a60b6ebda460b32ecd10a3ff29e854ac601b3e9e13cafb4cd55",
        "a0f87bfd77311feddda3390ffcb446ba54db31f6ffeb9e79c3557434f0f3c796",
        "4309992e74fd74e8b6ec786ec38e7b0430575ec4557268b135b2d681237bf61c",
        "9e89cd50f86733efbe1b479a9845987b7b765ac5e9b7ea2622d0027fea91a8ef",
    ),
    "m_grouped_bf16_gemm_contiguous": (
        "81a3d48eeef645259cc73e79e7ddd0df1a0bbb0e4661f94f998788d38ab59d82",
        "f96bb05e9d67c2846bdeb1bdce4169bda6f485e6cb331ab90d4bd82d3e106cff",
        "3b9833dcb279777b8328c8e52d1c6b96ffc64e4c7889314ed48852fd9426b45a",
        "8c665300b2a3fd68673c57f343bc6fa25a537917c80c244c9585d42604c8ea99",
        "22eae68bc056be1ee003b56858def5619861018fd3fb2095e8ca237a90770aca",
    ),
    "m_grouped_fp8_gemm_masked": (
        "f147591e106d9480c2ae08e9500adbe0c58278576b90527c44cd70f4170a30fc",
        "d9599f706608f87fbd6a227642373a5dd37d363e87538f66792eeeb1fe79a245",
        "8426e3666e9d8e51659d783e2790ad54ec3f05cbcf49b6249aec5ad6abf0d681",
        "850d69fa5409e49d83c6d9dbb57fde7cc04d9bfe6af0bbb09f158d25ad3aff6d",
        "20544f3148fd6e07c9f8fc81db439d28e27db221eacbe98c07234fda88649041",
        "ac83c99af2a0791cc6c3ae8ba8abaa56dd67b21c283daf1c76e3ce3bf6db7d74",
        "fcde7f4711c5ec7828392b6acc6295adb462550c134a719ce9534f845bfa75b3",
        "2672abf78a1fd1d489da006cc532bf631a650ec5da2dcf92d242aad1066635e1",
        "4d6134eca75b4fde74f4a94eaa654c6f00c3238e5bbf9153e297d66f4e885068",
        "d3d7e8a9ce70f0f3a967eee4a4479a34a2c7d1ae62e9daa2e44a435ae39d0b96",
    ),
    "m_grouped_bf16_gemm_masked": (
        "fc0220fa383d9b8209300c8836873a273acb8a5b24dca1dd14b06038ae52622a",
        "2071618c1a8a15e196fd8841e98dffc20685c6d49ea3da82c66e6ee69c69b2a5",
        "9d9bf49fd832ac589f07793ce5109a18208fd0162450442396afbb8a2b3356d8",
        "919cf078818b7dea76ce2f4b73df34e8904d07d93b3702a5c98ef25b1b53648d",
        "1abb2deb4ce624f008c82b4e65bf66fbd6a2cab4d8a684fa810e59fa0eee9205",
        "21f2a3f5870ac75ce36a57e0a9c81bea29986654313ac748afbd7b0c3f091eed",
        "e902173e832f15919ee8df170d801d6e1233766318de7f6ed7aca02987b168b8",
        "27c5735770ce6521d0089151afd12518a08fa917ce1cbf1885a85abf477b6765",
        "46ee6815acaed838605327c830c53acdf97909e561e2c17f449b36ca8c5e41e0",
    ),
    "k_grouped_fp8_gemm_contiguous": (
        "a0ed41749dcca865e8abf4869b10f1e6bc98949d47d780741a8a9015138cc066",
        "b8d50abe650ebecb1a3dc637295e696a78ba9ef4a2a6a017999cfcff5244aec4",
        "16f56152843c9d621e6d86cbe54274f44794fd6c93e3187c6d5fedef1f33c965",
        "6ae24d8a1829a5735866497df42a4b2970124ae9c908134e9ef6d7d332cf6ec1",
        "3149a65921defb18eee5caf7706ab3ddc7c60b7c40c1721eca4bc073f0578708",
    ),
    "k_grouped_bf16_gemm_contiguous": (
        "e0676f992c532d28d2555e543fc363d61bc5cfc83d5cb76c2dbff42938df27a5",
        "d9f7bbb671235db09b75e92ed591562c30fb3ade1f3baf3d9c8b8e24a98827ba",
        "cd34d615544bd0e892d5e1e4f8531b10d7a9406a2da86fb0a59c4bcb57c87a04",
        "fdea9c8d5e089c65d86bda6d913b95ba3f9a4b7f2ed6362afc846bbbf5dc2be4",
        "3c42891f2fad5684aa9b90abf46df722f891fba6849b513f78844e672ca0d350",
    ),
    "m_grouped_fp8_gemm_psum": (
        "0640a09c2d7feadc0d363baa60718a05eca50e6273fa3cab7f93a02282a3d9a1",
        "2224ad5b58de63447f31ab753b9300c3d4d2062c102c029b4616419cfcd389a1",
        "caf9df5b09eed8a710efea3563c269b0d9a5d9f84f81c42d7e9947b96fabb202",
        "e7db63014e2bf1713698edc16b611640160d4237d771c37107b15df6c09c7402",
        "8d98f05470f18ee639b08ef70f85445c2f4f1a74b25625ea23fe6856b660f15e",
        "60bd7535e01bbfab5493852a93f29bc10ca7cf710f3750e8c197f41f86102845",
        "11636844eeec25ddfd377d5c0f5e9598229e6ee392afba90136c5d3af2bf8418",
        "98aa0ab81704bfaffb9839bc03469bd16f433e9d4bafec2a4ede35b02b3dd7af",
        "678991e2ae13e20573609d49f2aa424420467ae83587832d71d9b18ce31703ff",
    ),
    "m_grouped_bf16_gemm_psum": (
        "3b5db6ddb25992498ca8f7866dd03e8a26f7999c787e881a64738389bae0f483",
        "007c31ca3b6e45275d771c6948143ecc2235688eeba85f05104e400b52dcd2e4",
        "defa6a3ccaa631bf5343bcdb7cefda1ceb62d86d01f7a3b346d5862214e1f08d",
        "ef46cf61305affd5ba213fd7a5e9aa8fdda712fc579e1a6556b4cbfedacea6aa",
        "af282f0312eaea003f93280f61dfdcdb294a9fb9da10a8197f0b7d594323ef75",
        "1d2f8831cb43b1b07d2318d826492c11835d89a596f412f15d14760310a86136",
        "24fef6c7b2940f2b641f119b4f4bda29459b8654eb9b5e6e7208b86fc563c64c",
        "227f4d135d180f4bc82b46a699b3529a48b19f828c2625b9a61dab0b3e31a9e8",
        "2d3c0afddf0b6c24d386ae9a80509bb48275f43439caec904d496befe87efbd2",
    ),
    "k_grouped_fp8_gemm_psum": (
        "03c5517bc98a40921279ac4c32dd3692a60e664c7a9de6663ab28473ac4fcdb2",
        "32ba32f26daa09ffe4c7d2f86191b1218fefd23f6afabab85e6db5d960fa9bd7",
        "30fbed45cdf9d50a0ec89ed2ce89de981da01ef27a612e886f5cc2baa3fc8412",
        "52dc99542f063744b09ab0cc72945be08cb54a77dda7f78011b00643f308bb6a",
        "35c0ee602b4f30db92e2a29f0ed78c8ec3409b14b1c98811240bb818765f0c1c",
    ),
    "k_grouped_bf16_gemm_psum": (
        "0576ef89fbdad40927ac7a1522847add60ce417480c2af276f88a3eb7270bcec",
        "ba7a6914b1ff238a2583382f6b93c66669f141d14d4e5b88e05d208bb10a1ead",
        "0f368cf271174138b650c7f85f4ad368f7347b8ecd4c3aff20bd7ba0bc009699",
        "0e89090bd80f0e123db1a763376ef7c3aa70cc6beffc987819b3cf5fbac58703",
        "c41872aed2aa6c9c097ce9d8457f1624cc15bd6ea3082d686ec8569594f92a82",
    ),
    "batched_fp8_gemm": (
        "69bfd7e7e49f923044c0e1bc3670a334fcc57848ef19b8f43d43c889c413a57e",
        "31af8df5803d67992c4f33bf933ad3983a0285298edffcfc38812eadfb24dc7e",
        "11f3a6bffa9812b98af0bc6cc770530c056fb60f36f2fa0f76fe4207a1201c3a",
        "36de6d9f615b6f91ac6047cbd54e2acbb372cafef71103de38ba461a4c133ae0",
        "589946387896ca3df6a3d7e1f4912e6724eeff4a10accfd323f980deed684ecf",
    ),
    "batched_bf16_gemm": (
        "7f663c0c04ebc25421875c472dd8a6ecfb158f1502b5e4ce3764f94b47725b3e",
        "3608f5ca7736447b16837d74abbf3e3689a8085119bcad49ebb37131bea8d6d2",
        "0984bb80f7e0b3befd3f01e613eb3875c69d2d1991a546884d513fa83377dfe7",
        "07dcc63151c09721a1d6d3877a1fb67c55fbec59eb3d8cbd1939fbe597c40db0",
        "8026cac5e24c38ce9375f61d5d1f01ff387944313824a742fa842647fb616d07",
    ),
    "summed_bf16_gemm": (
        "8fc1593e2b728fb7f954aaa4942c678b4264521d9d14bd91f26565a641764c48",
        "819ce7ab7d933dc1bbbb3124f88628e5659fb8fd347e1b76dcb6ca44303c7869",
        "52f0e6f998153a728a5aff74720e508c4b1553038eaf969f8aa1cd1b3f5bce2a",
        "c130d8db5c3dbbad0b70ad0a62520f61fdc076a3467a973376d8e2bdfa88351c",
        "1520a516e356a87e3d324f812127225a49cb2b2d334d603f8a36432dfd978cca",
    ),
    "fp8_mqa_logits": (
        "84b375181ea113793498f7804198994f832cc7aa06eef29c9643ab4ed37a7dfb",
        "4533a80487b78eec929be26dbd51b6e86b6672278bbd1a4a6d54bd3b37cce5b1",
        "20ef4bfb9017a5cff947e97288cd4c408288e7b4bbd96f45c112424e7cec6b57",
        "0b3874e5f8142d06a5da75e8eec89fe8dd61f9a16848882d4a9a54bc903adbd5",
        "2825fb7fc24ebfa90bcad6d8d28019c34d9bc7b1befcac93ddee3317169d4fba",
    ),
    "fp8_paged_mqa_logits": (
        "f0ca265e6d14bb653076570262358a88a0edd0a54bf18a7f9e982c566d951dcf",
        "89ce3fddbd7703c4927727e5ef86a427480db7c71cd75a12f0aebf7541e12db7",
        "e8e5fed3f34fc277679c1b2b6d6a97be79ee18c87f83204ddd388019ada2f0c4",
        "72e1f5426a3a48a54565c378e85b78fe45437819055505e4aed66939f81fad79",
    ),
}


def list_serving(op: str, kernel_hash: str) -> list[str]:
    """Return the hashes whose measurements choose for kernels of `op` with `kernel_hash`: that one, then older ones.

    Of kernels before the present ones, where these were not measured, that is those and the ones before them.
    """
    known = SERVED.get(op, ())
    return list(known[known.index(kernel_hash) :]) if kernel_hash in known else [kernel_hash]


def find_serving(op: str, kernel_hash: str, recorded: str) -> str:
    """Return `recorded` where measurements of these kernels of `op` choose for the package's of `kernel_hash`, too;
    else `kernel_hash`, which only its own measurements match.
    """
    if recorded == kernel_hash:  # as nearly always, and every new choice asks
        return recorded
    current, *older = SERVED.get(op, ("",))
    return recorded if current == kernel_hash and recorded in older else kernel_hash
