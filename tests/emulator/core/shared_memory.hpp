// The shared memory of one CTA, and what is known of each of its words: which asynchronous operations still read or
// write it, and which thread wrote it last with an ordinary store, so that accesses that only luck keeps apart are
// errors.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "types.hpp"

namespace emulator {

// Bytes begin .. begin + size - 1 of a CTA's shared window.
struct Range {
    u32 begin = 0, size = 0;
};

// Where an ordinary store came from, for the fence that an asynchronous read of it needs.
struct Writer {
    u32 thread = kNone;
    u64 step = 0;
    static constexpr u32 kNone = ~0u;
};

class SharedMemory {
 public:
    static constexpr u32 kBase = 1024;  // the window's first bytes are the system's

    void reset(u32 size) {
        bytes_.assign(kBase + size, kPoison);
        words_.assign((kBase + size) / 4 + 1, Word{});
    }

    // Throws std::string where the range lies outside.
    u8* at(Range range) {
        if (range.begin < kBase || u64(range.begin) + range.size > bytes_.size())
            throw describe("outside of shared memory", range);
        return bytes_.data() + range.begin;
    }

    // Ordinary accesses.
    void check_read(Range range) {
        each(range, [&](Word& word) {
            if (word.writers > 0)
                throw describe("read while an asynchronous write to it may still be under way", range);
            if (word.is_barrier) throw describe("ordinary read of a barrier", range);
        });
    }
    void check_write(Range range, Writer writer) {
        check_free(range);
        each(range, [&](Word& word) { word.writer = writer; });
    }

    // Asynchronous ones, from their issue until the program knows that they are over.
    void begin_read(Range range) {
        each(range, [&](Word& word) {
            if (word.writers > 0)
                throw describe("asynchronous read while an asynchronous write to it may still be under way", range);
            ++word.readers;
        });
    }
    void end_read(Range range) {
        each(range, [&](Word& word) { --word.readers; });
    }
    void begin_write(Range range) {
        check_free(range);
        each(range, [&](Word& word) { ++word.writers, word.writer = Writer{}; });
        std::memset(at(range), kPoison, range.size);
    }
    void end_write(Range range) {
        each(range, [&](Word& word) { --word.writers; });
    }

    // Calls `check(writer)` for the last ordinary store to each word.
    template <class Check>
    void each_writer(Range range, Check check) {
        each(range, [&](Word& word) {
            if (word.writer.thread != Writer::kNone) check(word.writer);
        });
    }

    void set_barrier(Range range) {
        each(range, [&](Word& word) { word.is_barrier = true; });
    }

    static std::string describe(const char* what, Range range) {
        return std::string(what) + ": shared memory " + std::to_string(range.begin - kBase) + " .. " +
               std::to_string(range.begin - kBase + range.size - 1);
    }

 private:
    static constexpr u8 kPoison = 0xff;  // NaN in every type of the kernels

    struct Word {
        u16 readers = 0, writers = 0;
        bool is_barrier = false;
        Writer writer;
    };

    template <class Visit>
    void each(Range range, Visit visit) {
        at(range);
        for (u32 word = range.begin / 4; word <= (range.begin + range.size - 1) / 4; ++word) visit(words_[word]);
    }

    void check_free(Range range) {
        each(range, [&](Word& word) {
            if (word.readers > 0)
                throw describe("written while an asynchronous read of it may still be under way", range);
            if (word.writers > 0)
                throw describe("written while an asynchronous write to it may still be under way", range);
            if (word.is_barrier) throw describe("a barrier overwritten", range);
        });
    }

    std::vector<u8> bytes_;
    std::vector<Word> words_;
};

}  // namespace emulator
