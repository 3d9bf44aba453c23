"""Defects that are planted into the database; see run.py."""

from tests.mutation.defects import Defects

_CHECKS = (
    "tests/cpu/db/test_checks.py tests/fault/test_db_damage.py tests/cpu/db/test_store.py tests/cpu/db/test_schema.py"
)

DB_DEFECTS: Defects = {
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
        ("max(known, row, key=key_of)", "row"),
        ('(known["device_id"], known["problem_id"]) != (row["device_id"], row["problem_id"])', "False"),
        ("    if row.keys() != columns.keys():\n", "    if False:\n"),
        (
            "    except (KeyError, TypeError, ValueError) as error:\n        place",
            "    except MemoryError as error:\n        place",
        ),
        ("        check_key(path, f\"{name} {row['key']}\", row, MAKE_KEY[name])\n", "        pass\n"),
    ],
    ("db/words.py", "tests/cpu/db/test_small_rows.py"): [
        ("        if word not in self.words:\n", "        if False:\n"),
        ("isinstance(stored, int) and stored in self.numbers else repr(stored)", "stored in self.numbers else stored"),
        ("enumerate(self.words)", "enumerate(reversed(self.words))"),
    ],
    ("db/checksums.py", "tests/fault/test_row_checksums.py tests/cpu/db/test_snapshot.py"): [
        ("    if wrong.any():\n", "    if False:\n"),
        ('"device_id", "reference_config_id"),', '"device_id"),'),
        ('[words[word] for word in columns["status"]],\n', ""),
        ('np.float64) for part in parts], axis=1).astype("<f8") + 0.0', "np.float64) for part in parts], axis=1)"),
        ('for name in ("samples", "error"))', 'for name in ("samples",))'),
        ('[blocks.get(reference) for reference in columns["block_id"]],\n', ""),
        ('    return found | {"measurement": dict(zip(rows, checked, strict=True))}\n', "    return found\n"),
        (".where(table.c.checksum.is_(None))", ".where(table.c.checksum.is_not(None))"),
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
    ("db/short_rows.py", "tests/cpu/db/test_short_rows.py"): [
        ('    conditions = [f"{name} IS NULL" for name in NAMES[length:]]', "    conditions = []"),
        ("    if length > NUM_BASE:", "    if False:"),
        ("    copy_rows(connection, NUM_BASE)\n", ""),
        ('    connection.execute("PRAGMA legacy_alter_table = ON")', "    pass"),
        ("        shorten(connection)\n", ""),
        ('    connection.execute(f"DROP TABLE {WHOLE}")\n', ""),
    ],
    ("db/publish.py", "tests/cpu/db/test_snapshot_times.py"): [
        (">= WHOLE_FROM_US", "> 2 * WHOLE_FROM_US"),
        ("WHOLE_FROM_US = 250.0", "WHOLE_FROM_US = 0.0"),
        ('float(round(row["median_us"]))', 'float(int(row["median_us"]))'),
    ],
}
