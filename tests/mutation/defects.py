"""The defects: by file and the tests that must notice them, the text that is there and what becomes of it."""

#: {(file, tests): [(old, new), ...]}
Defects = dict[tuple[str, str], list[tuple[str, str]]]

_CHECKS = (
    "tests/cpu/db/test_checks.py tests/fault/test_db_damage.py tests/cpu/db/test_store.py tests/cpu/db/test_schema.py"
)

DEFECTS: Defects = {
    (
        "deep_gemm/jit/cache.py",
        "tests/fault/test_cache_order.py tests/cpu/jit/test_cache.py tests/fault/test_cache_mutants.py",
    ): [
        ("        fcntl.flock(descriptor, fcntl.LOCK_UN)\n", "        pass\n"),
        ("    if digest != _digest(", "    if False and digest != _digest("),
        ("(magic, schema, entry_key, length) != (_MAGIC, SCHEMA, bytes.fromhex(key), len(payload))", "False"),
        ("if len(entry) < _HEADER.size:", "if len(entry) < 1:"),
        ("status.st_nlink > 1", "False"),
        ("open_private_dir(self._root, forbidden=0o022)", "open_private_dir(self._root, forbidden=0o002)"),
        ("if len(payload) + _HEADER.size > MAX_ENTRY_BYTES:", "if len(payload) > 2 * MAX_ENTRY_BYTES:"),
        ("    if status.st_size > MAX_ENTRY_BYTES:\n", "    if False:\n"),
        ("sorted(bad)[:-NUM_BAD_KEPT]", "sorted(bad)[:0]"),
        (".st_mtime > STALE_S", ".st_mtime > 0"),
        ("return _try_flock(descriptor) and _remove(directory, name)", "return _remove(directory, name)"),
        ("is_held = _try_flock(descriptor) and _is_current(directory, name, descriptor)", "is_held = True"),
        ("        os.unlink(name, dir_fd=directory)\n    # Unlock", "        pass\n    # Unlock"),
        ("        _has_warned = True\n    message", "        _has_warned = False\n    message"),
    ],
    (
        "deep_gemm/jit/private_folder.py",
        "tests/fault/test_cache_order.py tests/cpu/jit/test_cache.py tests/fault/test_cache_mutants.py",
    ): [
        ("            os.fsync(descriptor)\n", "            pass\n"),
        ("    os.fsync(directory)\n\n\ndef _write", "\n\ndef _write"),
        ("if status.st_uid != os.geteuid():\n        raise OSError", "if False:\n        raise OSError"),
        ("    if status.st_mode & forbidden:", "    if False:"),
        ("forbidden: int = 0o077", "forbidden: int = 0o007"),
        ("    if not path.is_absolute():\n", "    if False:\n"),
        ("    if path.is_symlink():\n", "    if False:\n"),
        ("        os.mkdir(folder, 0o700)", "        os.mkdir(folder, 0o755)"),
        (
            "OPEN_FLAGS, 0o600, dir_fd=directory)\n    try:\n        try:",
            "OPEN_FLAGS, 0o644, dir_fd=directory)\n    try:\n        try:",
        ),
        ("            os.unlink(temp, dir_fd=directory)\n", "            pass\n"),
    ],
    ("deep_gemm/artifact.py", "tests/cpu/selector/test_artifact.py"): [
        ('if metadata.get("arrays_sha256") != hashlib.sha256(data).hexdigest():', "if False:"),
        ("if begin != position or end > len(data):", "if end > len(data):"),
        ("    if position != len(data):\n", "    if False:\n"),
        ("    if not is_canonical:\n", "    if False:\n"),
        ("if len(header) - len(stripped) >= ALIGNMENT:", "if False:"),
        (" or length % ALIGNMENT:", ":"),
        ("if not ALIGNMENT <= len(content) <= MAX_BYTES:", "if not ALIGNMENT <= len(content):"),
        ("        if depth > _MAX_DEPTH:\n", "        if False:\n"),
        ("    if len(digits) > _MAX_DIGITS:\n", "    if False:\n"),
        ("    if len(described) > _MAX_METADATA_BYTES:\n", "    if False:\n"),
        ('if not described.isascii() or entry["sha256"] != ', 'if False and entry["sha256"] != '),
        ("    if not _ARRAY_NAME.fullmatch(name):\n", "    if False:\n"),
        ("if offsets[1] - offsets[0] != DTYPES[dtype].itemsize * math.prod(shape):", "if False:"),
        ("len(shape) > _MAX_DIMENSIONS", "False"),
        ("members.keys() != rules.keys()", "False"),
        ("        if not rule.is_met(members[name]):\n", "        if False:\n"),
        ("type(value) is int and minimum <= value <= maximum)", "type(value) is int and minimum <= value)"),
    ],
    ("deep_gemm/selector.py", "tests/cpu/selector/test_selector.py tests/cpu/selector/test_artifact.py"): [
        ('if len(arrays) != len(ARRAYS) * len(metadata["ops"]):', "if False:"),
        ("        if array is None:\n", "        if False:\n"),
        ("array.dtype != DTYPES[dtype] or ", ""),
        ("        if type(content) is not bytes:\n", "        if False:\n"),
        ('exact_key(problem) if mode == "auto" else None', "exact_key(problem)"),
        ('return measured if measured.source == "exact" else choice', "return choice"),
        ('stale_reason="" if metadata["stale"] is None else f"stale: {metadata[\'stale\']}"', 'stale_reason=""'),
        ('metadata["features_version"] == _C.FEATURES_VERSION', "True"),
        ('metadata["heuristic_version"] == _C.HEURISTIC_VERSION', "True"),
        ('        if mode not in ("auto", "model"):\n', "        if False:\n"),
    ],
    ("deep_gemm/selection.py", "tests/cpu/selector/test_selection.py tests/fault/test_selector_faults.py"): [
        ("    if not _C.is_legal(problem, choice.config, device):\n", "    if False:\n"),
        ("    if selector.sku != sku:\n", "    if False:\n"),
        ("        _has_warned = True\n        warnings", "        warnings"),
        ("    except DeviceError:\n        raise\n    except Exception", "    except Exception"),
        (
            "loaded.selector.choose(served, device, loaded.mode, kernel_hash(served.op))",
            "loaded.selector.choose(served, device, loaded.mode)",
        ),
        ("    return sibling if sibling in known and op not in known else op\n", "    return op\n"),
        ('    if mode == "analytic":\n', "    if False:\n"),
        ("        if loaded.refusal:  #", "        if False:  #"),
    ],
    ("tuner/measure/statistics.py", "tests/cpu/tuner/measure/test_statistics.py"): [
        ("max(TIE_RATIO, 2.0 * noise)", "TIE_RATIO"),
        ("2.0 * noise), TIE_US)", "noise), TIE_US)"),
        ("max(best_us * max(TIE_RATIO, 2.0 * noise), TIE_US)", "best_us * max(TIE_RATIO, 2.0 * noise)"),
        ("entry.ratio * reference_us < limit", "entry.ratio * reference_us <= 2 * limit"),
        ("not entry.is_heuristic,\n", "entry.is_heuristic,\n"),
        ("not entry.in_portfolio,\n", ""),
        ("config.num_stages,\n", ""),
        ("        config.cluster_m * config.cluster_n,\n", ""),
        ("(len(ratios) - 1) // 2]", "len(ratios) // 2]"),
        ("if len(ratios) > 1 else DROP_RATIO_ONCE", "if True else DROP_RATIO_ONCE"),
        ("bound > DROP_BOUND_RATIO", "bound > DROP_RATIO"),
        ("        if total > tail:\n", "        if total >= 2 * tail:\n"),
        ("(1.0 - confidence) / 2.0), 1)", "1.0 - confidence), 1)"),
        ("ordered[rank - 1], ordered[-rank]", "ordered[rank], ordered[-rank]"),
        ("zip(samples, reference, strict=True)", "zip(samples, reference)"),
        ("quantile(samples, 0.1), quantile(samples, 0.9)", "quantile(samples, 0.9), quantile(samples, 0.1)"),
        ("median([abs(sample - middle) for sample in samples])", "median([sample - middle for sample in samples])"),
        ("max(abs(low - 1.0), abs(high - 1.0))", "high - 1.0"),
    ],
    ("tuner/search/winners.py", "tests/cpu/tuner/search/test_winners.py tests/cpu/tuner/search/test_sweep.py"): [
        ("statistics.find_tie_set(timed, reference_us, noise)", "statistics.find_tie_set(timed, reference_us, 0.0)"),
        ('row.role == "confirm" and ', ""),
        ("row.config == heuristic, ", "False, "),
        ("    if not timed:\n        return None\n", "    if False:\n        return None\n"),
    ],
    ("db/checks.py", _CHECKS): [
        ("    except RecursionError as error:\n", "    except MemoryError as error:\n"),
        ("if not isinstance(found, list) or not all(", "if not all("),
        ("    if len(known_ids) != len(ids):\n", "    if False:\n"),
        ('    if key != row["key"]:\n', "    if False:\n"),
        ('        check_names("block", row)\n', "        pass\n"),
        ("    if bad.any():\n", "    if False:\n"),
        ('low_enough = values >= 0 if name == "mad_us" else values > 0', "low_enough = values >= 0"),
        ("    if not blob or len(blob) % 4:\n", "    if False:\n"),
    ],
    ("db/queries.py", _CHECKS): [
        ('        if ties[:1] != [row["config_id"]]:\n', "        if False:\n"),
        ("    check_devices(path, found)\n", "    pass\n"),
        ("        if stored.op != block.problem.op:\n", "        if False:\n"),
        ("zip(rows, legal, strict=True) if is_legal]", "zip(rows, legal, strict=True)]"),
    ],
    ("db/naturals.py", "tests/fault/test_db_damage.py tests/cpu/db/test_transfer.py"): [
        ("max(known, row, key=rank)", "row"),
        ('(known["device_id"], known["problem_id"]) != (row["device_id"], row["problem_id"])', "False"),
        ("    if row.keys() != columns.keys():\n", "    if False:\n"),
        (
            "    except (KeyError, TypeError, ValueError) as error:\n        place",
            "    except MemoryError as error:\n        place",
        ),
        ("        check_key(path, f\"{name} {row['key']}\", row, MAKE_KEY[name])\n", "        pass\n"),
    ],
    ("db/checksums.py", "tests/fault/test_row_checksums.py"): [
        ("    if wrong.any():\n", "    if False:\n"),
        ('"device_id", "reference_config_id"),', '"device_id"),'),
        ('[words[word] for word in columns["status"]],\n', ""),
        ('np.float64) for part in parts], axis=1).astype("<f8") + 0.0', "np.float64) for part in parts], axis=1)"),
        ('for name in ("samples", "error"))', 'for name in ("samples",))'),
        ('[blocks.get(reference) for reference in columns["block_id"]],\n', ""),
        ('    return found | {"measurement": dict(zip(rows, checked, strict=True))}\n', "    return found\n"),
        (".where(table.c.checksum.is_(None))", ".where(table.c.checksum.is_not(None))"),
    ],
    ("tuner/search/past.py", "tests/cpu/tuner/search/test_wide_space.py tests/cpu/tuner/search/test_resume.py"): [
        (" or (key, row.config_id) not in searched:", " or True:"),
        ('row.role == "search" or (key', "(key"),
        ('for row in sorted(rows, key=lambda row: row.role == "confirm"):', "for row in rows:"),
        ("        if configs.get(row.block.reference_config_id) != picks[key]:\n            continue\n", ""),
    ],
    ("tuner/learn/dataset.py", "tests/cpu/tuner/learn/test_dataset.py"): [
        ("map(group_by_problem, read(FAILURES))", "map(group_by_problem, ())"),
        ("    usable.sort(key=lambda entry: problem_order(entry.problem))\n", ""),
        (" if config not in fine}", "}"),
        ("        newest = max([newest, *(row.block.created for row in rows)])\n", ""),
        ("block.legal.rows and not is_sentinel(known.regime)", "block.legal.rows"),
        ("column[entry.candidates[used[entry.candidates]]]", "column[entry.candidates]"),
    ],
    ("db/engine.py", "tests/fault/test_db_damage.py tests/fault/test_db_faults.py tests/cpu/db/test_schema.py"): [
        ('"trusted_schema = OFF",', '"trusted_schema = ON",'),
        ('("journal_mode = DELETE", "synchronous = FULL")', '("journal_mode = DELETE", "synchronous = OFF")'),
        ("    check_mark(path)\n    writer", "    writer"),
        ("    if not stat.S_ISREG(kind):\n", "    if False:\n"),
        (
            "    if problems:\n        raise damaged(path, problems[0])\n\n\ndef make_sqlite_engine",
            "    return\n\n\ndef make_sqlite_engine",
        ),
        ('"BEGIN IMMEDIATE" if mode == "rw" else "BEGIN"', '"BEGIN"'),
    ],
    ("db/lock.py", "tests/fault/test_db_files.py tests/fault/test_db_faults.py"): [
        ("            os.close(lock.handle)\n        lock", "            pass\n        lock"),
        ("fcntl.LOCK_EX | fcntl.LOCK_NB", "fcntl.LOCK_SH | fcntl.LOCK_NB"),
        ('os.pwrite(self.handle, f"{os.getpid()}\\n".encode(), 0)', "pass"),
        (" | os.O_NOFOLLOW", ""),
    ],
    ("tuner/files.py", "tests/fault/test_db_files.py tests/cpu/tuner/learn/test_train.py"): [
        ("        sweep_stale(target)\n", ""),
        ("        if not name.fullmatch(folder.name):\n", "        if False:\n"),
        ("status.st_mtime > STALE_S", "status.st_mtime > 0"),
        ("            flush(fresh)\n", ""),
        ("        if mode is not None:\n", "        if False:\n"),
    ],
    ("deep_gemm/jit/kernel_set.py", "tests/cpu/runtime/test_warm_up.py"): [
        ("        if not _C.is_small_sum(problem, device):\n", "        if True:\n"),
        ("        if job in SUMS:\n", "        if False:\n"),
    ],
    ("deep_gemm/jit/ahead.py", "tests/cpu/benchmarks/test_new_shapes.py tests/cpu/core/test_psum_kinds.py"): [
        ("_NUM_SPREAD = 24000", "_NUM_SPREAD = 80"),
        ("_list_recorded(find_recorded_op(op, selector), selector)", "_list_recorded(op, selector)"),
    ],
    ("tuner/measure/worker_client.py", "tests/fault/test_worker_faults.py"): [
        ('        if hello.get("package") != hashing.package_hash():\n', "        if False:\n"),
    ],
    ("db/interrupts.py", "tests/fault/test_interrupts.py"): [
        ("        seen.append(number)\n", "        handler(number, frame)\n"),
        ("        if len(seen) > 1:\n", "        if False:\n"),
        ("        signal.signal(signal.SIGINT, handler)\n", "        pass\n"),
        ("        if seen:\n", "        if False:\n"),
    ],
    ("db/store.py", "tests/fault/test_db_files.py tests/fault/test_interrupts.py tests/cpu/db/test_store.py"): [
        ("                if time.monotonic() >= start + self.patience_s:\n", "                if True:\n"),
        ('        if self.mode != "rw":\n', "        if False:\n"),
        ("rowcount != 1:", "rowcount > 1:"),
    ],
    ("tuner/learn/forest.py", "tests/fault/test_training_folder.py tests/cpu/tuner/learn/test_train.py"): [
        ("(child <= nodes[inner]).any()", "False"),
        ("(child >= ends[inner]).any()", "False"),
        ("(forest.feature >= num_features).any()", "False"),
        ("(rows >= len(forest.leaf_value)).any()", "False"),
        ("    check_leaves(forest)\n", ""),
        ("> MAX_LEAVES).any()", "> MAX_LEAVES + 1).any()"),
        ("not np.isfinite(forest.leaf_value).all()", "False"),
        ("    if arrays.keys() != {", "    if False and arrays.keys() != {"),
        ("<= self.threshold[nodes]", "< self.threshold[nodes]"),
    ],
    ("tuner/learn/train.py", "tests/fault/test_training_folder.py tests/cpu/tuner/learn/test_train.py"): [
        ("if hashlib.sha256(content).hexdigest() != record.estimator_sha256:", "if False:"),
        ("    if training.record.fingerprint != fingerprint(data):\n", "    if False:\n"),
        ('    if not database and "://" in found.record.database:\n', "    if False:\n"),
        ("    if len(content) > MAX_BYTES:\n", "    if False:\n"),
        ("(EVALUATION, OUT_OF_FOLD, UNCONFIRMED):\n        (folder", "():\n        (folder"),
    ],
    ("deep_gemm/vendor.py", "tests/fault/test_vendor_arguments.py"): [
        ("        if stride < extent:\n", "        if False:\n"),
        ("    if tensor.numel() and tensor.untyped_storage", "    if False and tensor.untyped_storage"),
        ("        _check_kind(name, tensor)\n", "        pass\n"),
        ("torch.inference_mode() if d.is_inference() else torch.no_grad()", "torch.no_grad()"),
    ],
}

_LEGALITY = "tests/cpu/core/test_legality.py tests/cpu/core/test_candidates.py"
_ARGUMENTS = (
    "tests/cpu/runtime/test_arguments.py tests/cpu/runtime/test_arguments_variants.py tests/fault/test_overlap.py"
)

#: Defects of C++, each of which compiles one file.
NATIVE_DEFECTS: Defects = {
    ("csrc/core/legality.cpp", _LEGALITY): [
        (
            "if (rows != 64 && rows != 128 && rows != 256)",
            "if (rows != 64 && rows != 128 && rows != 256 && rows != 192)",
        ),
        ("columns % 8 != 0) return Rule::kColumns", "columns % 4 != 0) return Rule::kColumns"),
        ("config.cluster_m * config.cluster_n <= 2", "config.cluster_m * config.cluster_n <= 4"),
        (
            "config.block_n % 16 != 0) return Rule::kClusterBlockN",
            "config.block_n % 8 != 0) return Rule::kClusterBlockN",
        ),
        ("kRegisterLimitTwoWarpgroups = 232", "kRegisterLimitTwoWarpgroups = 240"),
    ],
    ("csrc/runtime/overlap.cpp", _ARGUMENTS): [
        (" && offset + extent_bytes(high, 1) <= pitch", ""),
        ("offset >= extent_bytes(low, 1) && ", ""),
        (
            "if (high.address - low.address >= extent_bytes(low, 0))",
            "if (high.address - low.address > extent_bytes(low, 0))",
        ),
    ],
    ("csrc/runtime/dispatch.cpp", "tests/cpu/runtime/test_dispatch.py"): [
        (
            "found != table().entries.end()) return found->second;\n",
            "false) return found->second;\n",
        ),
        ("    ++table().misses;\n", ""),
        ("if (entries.size() >= kCapacity)", "if (entries.size() > kCapacity)"),
    ],
    ("csrc/runtime/tensor_view.cpp", "tests/fault/test_native_objects.py"): [
        ("view.device_kind == DeviceKind::kMeta || !has_elements(view)) return;", "true) return;"),
    ],
    ("csrc/core/heuristic.cpp", "tests/fault/test_native_objects.py"): [
        ("? kMost : std::min(product, kMost)", "? 1 : std::min(product, kMost)"),
    ],
}
