/* What the libraries that take the place of CUDA's know of one another. */
#pragma once
#include <cstdint>
#include <functional>

/* Puts work on a stream of the driver, or into what is captured from it. */
extern "C" void memlet_stand_in_put(void *stream, std::function<void()> work);
