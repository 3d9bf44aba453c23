// What the stub driver keeps in the 128 bytes of a tensor map, which the emulator reads. C and C++.
#pragma once

#include <stdint.h>

typedef struct {
    int32_t number;  // of the encode call; 0: nobody encoded it
    uint8_t type;    // CUtensorMapDataType
    uint8_t rank, swizzle, interleave;
    uint64_t address;
    uint64_t dims[4];     // elements
    uint64_t strides[3];  // bytes, of dims 1 to 3
    uint16_t box[4];
    uint8_t element_strides[4];
    uint8_t unused[44];
} StubTensorMap;
