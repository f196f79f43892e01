/* What the libraries that take the place of CUDA's know of one another. */
#pragma once
#include <cstdint>
#include <functional>

/* Puts work on a stream of the driver, or into what is captured from it. */
extern "C" void memlet_stand_in_put(void *stream, std::function<void()> work);
/* Whether so many bytes from an address on are memory of the GPU; where they are not its context is broken. */
extern "C" bool memlet_stand_in_holds(const void *address, int64_t bytes);
/* The error that every call returns from now on; 0 as long as all is well. */
extern "C" int memlet_stand_in_broken();
